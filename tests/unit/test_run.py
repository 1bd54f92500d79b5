from __future__ import annotations

from hand_made import count, record, run, worker

from tokenswarm.run import StageWindow


def test_the_sum_is_kept_until_a_worker_counts_more() -> None:
    found = run(worker(0, record(0)), worker(1, record(1)))
    first = found.merged
    assert found.merged is first
    assert first.total().ok == 2
    count(found.workers["w0"].snapshot, record(2))
    assert found.merged.total().ok == 3


def test_a_report_that_came_again_adds_nothing() -> None:
    found = run(worker(0, record(0)))
    found.workers["w0"].reported_s += 1
    assert found.merged.total().ok == 1


def test_a_worker_that_joins_or_goes_is_seen() -> None:
    found = run(worker(0, record(0)))
    assert found.totals().ok == 1
    found.workers["w1"] = worker(1, record(1))
    assert found.totals().ok == 2


def test_the_window_spans_the_measured_stages() -> None:
    found = run()
    assert (found.measured, found.window()) == ([1], (10.0, 30.0))
    found.stages.append(StageWindow("more", False, 30.0, None))
    assert found.window() is None
    found.stages[2].end_s = 45.5
    assert found.window() == (10.0, 45.5)
