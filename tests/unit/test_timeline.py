from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hand_made import MS, T0, S, count, record, run, worker

from exporters import summary
from exporters.timeline import Timeline, stage_at
from tokenswarm.records import Outcome
from tokenswarm.run import Run


class Clock:
    now = T0 / S

    def __call__(self) -> float:
        return self.now


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "timeline.jsonl").read_text().splitlines()]


def going(out: Path, **over: Any) -> Run:
    facts: dict[str, Any] = {"state": "running", "ended": None}
    return run(worker(0), worker(1), out=out, **{**facts, **over})


def test_each_line_holds_what_came_since_the_one_before(tmp_path: Path) -> None:
    clock, found = Clock(), going(tmp_path, planned_rate=5.0)
    timeline = Timeline(clock=clock)
    timeline.start(found)
    snapshot = found.workers["w0"].snapshot
    snapshot.health.cpu, snapshot.health.users, snapshot.health.in_flight = 0.3, 4, 2

    count(snapshot, record(0, stage=0, due_s=0.1, ttft_ms=100), record(1, Outcome.THROTTLED))
    snapshot.live_tokens = 15
    snapshot.health.lag.record(2 * MS, 10)
    clock.now += 1
    timeline.interval(found)

    count(snapshot, *[record(k, ttft_ms=300, due_s=11.0) for k in range(4)])
    snapshot.stage(1).dropped = 6
    snapshot.live_tokens = 60
    snapshot.health.lag.record(9 * MS, 10)
    clock.now += 11
    timeline.interval(found)
    timeline.close()

    first, second = rows(tmp_path)
    assert (first["t"], first["offset_s"], first["seconds"]) == (T0 / S + 1, 1.0, 1.0)
    assert (first["stage"], first["state"]) == ("warmup", "running")
    assert (first["users"], first["in_flight"]) == (4, 2)
    assert (first["planned_rate"], first["achieved_rate"]) == (5.0, 2.0)
    assert (first["sent"], first["ok"], first["failed"]) == (2, 1, 1)
    assert first["failed_by_outcome"] == {"throttled": 1}
    assert (first["output_tokens"], first["prompt_tokens"]) == (11, 200)
    assert first["output_tokens_per_s"] == 15.0
    assert first["ttft_s"]["count"] == 1
    assert first["ttft_s"]["p50"] == pytest.approx(0.1, rel=1e-3)
    assert first["itl_s"]["count"] == 10
    assert first["workers"][0]["cpu"] == 0.3
    assert first["workers"][0]["loop_lag_p99_s"] == pytest.approx(0.002, rel=1e-3)
    assert first["workers"][1]["loop_lag_p99_s"] is None

    assert (second["sent"], second["ok"], second["failed"], second["dropped"]) == (4, 4, 0, 6)
    assert second["seconds"] == 11.0
    assert second["stage"] == "warmup"  # its middle, 6.5 s, lies there
    assert second["ttft_s"]["count"] == 4
    assert second["ttft_s"]["p50"] == pytest.approx(0.3, rel=1e-3)
    assert second["output_tokens_per_s"] == 45 / 11
    assert second["workers"][0]["loop_lag_p99_s"] == pytest.approx(0.009, rel=1e-3)


def test_nothing_is_lost_at_the_end(tmp_path: Path) -> None:
    clock, found = Clock(), going(tmp_path)
    timeline = Timeline(clock=clock)
    timeline.start(found)
    snapshot = found.workers["w0"].snapshot
    for k in range(7):
        count(snapshot, record(k, due_s=k))
        clock.now += 1
        timeline.interval(found)
    count(snapshot, record(8), record(9))
    found.ended = clock.now + 0.25
    timeline.finish(found, summary.build(found))
    got = rows(tmp_path)
    assert sum(r["ok"] for r in got) == 9
    assert sum(r["itl_s"]["count"] for r in got) == 90
    assert sum(r["output_tokens"] for r in got) == 99
    assert got[-1]["seconds"] == 0.25
    assert [b["t"] for b in got] == sorted({b["t"] for b in got})


def test_a_line_waits_for_every_worker_that_is_at_work(tmp_path: Path) -> None:
    clock, found = Clock(), going(tmp_path)
    timeline = Timeline(clock=clock)
    for w in found.workers.values():
        w.state, w.reported_s = "running", 50.0
    timeline.start(found)
    clock.now += 1
    found.workers["w0"].reported_s = 51.0
    timeline.interval(found)
    assert not (tmp_path / "timeline.jsonl").exists()
    clock.now += 1
    found.workers["w1"].reported_s = 52.0
    timeline.interval(found)
    assert [r["seconds"] for r in rows(tmp_path)] == [2.0]
    clock.now += 6  # silent for long: the others' figures must not wait
    timeline.interval(found)
    assert [r["seconds"] for r in rows(tmp_path)] == [2.0, 6.0]


def test_a_second_run_starts_from_nothing(tmp_path: Path) -> None:
    clock, timeline = Clock(), Timeline()
    timeline = Timeline(clock=clock)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found = going(tmp_path / name, started=clock.now)
        timeline.start(found)
        count(found.workers["w0"].snapshot, record())
        clock.now += 1
        timeline.finish(found, summary.build(found))
        assert [r["ok"] for r in rows(tmp_path / name)] == [1]


def test_a_folder_that_went_away_is_said_once(tmp_path: Path) -> None:
    clock, found = Clock(), going(tmp_path / "gone")
    timeline = Timeline(clock=clock)
    timeline.start(found)
    for _ in range(3):
        clock.now += 1
        timeline.interval(found)
    said = summary.build(found)
    timeline.finish(found, said)
    text = f"cannot write {tmp_path / 'gone' / 'timeline.jsonl'}: No such file or directory"
    assert found.warnings == [text]
    assert said["warnings"][-1] == "4 lines of timeline.jsonl were not written"


def test_no_folder_no_file() -> None:
    found = run(worker(0, record()))
    timeline = Timeline()
    timeline.start(found)
    timeline.interval(found)
    timeline.finish(found, summary.build(found))


@pytest.mark.parametrize(
    ("offset", "name"),
    [(-1.0, None), (0.0, "warmup"), (9.99, "warmup"), (10.0, "main"), (29.9, "main"), (30.0, None)],
)
def test_the_stage_of_an_instant(offset: float, name: str | None) -> None:
    assert stage_at(run(), offset) == name


def test_waiting_before_the_plan_is_no_part_of_the_first_interval(tmp_path: Path) -> None:
    clock, found = Clock(), going(tmp_path, started=T0 / S - 5)
    timeline = Timeline(clock=clock)
    timeline.start(found)
    clock.now += 1
    timeline.interval(found)
    timeline.close()
    assert [(r["seconds"], r["stage"]) for r in rows(tmp_path)] == [(1.0, "warmup")]
