"""What the master makes of reports that come late, twice or after a worker's last word."""

from __future__ import annotations

from typing import Any

import gevent
import pytest
from hand_made import T0, record
from hand_made import run as hand_made_run

from tokenswarm.run import Worker
from tokenswarm.snapshot import Snapshot

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed.crew import Crew
    from tokenswarm.distributed.inbox import Inbox
    from tokenswarm.distributed.spool import RecordFile
    from tokenswarm.distributed.stages import Stages


class Told:
    """A run and its inbox, without a master around them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, str | None]] = []
        self.run = hand_made_run(Worker("w0", 0, k=0))
        crew = Crew(lambda worker: True, lambda *message: self.sent.append(message))
        self.inbox = Inbox(self.run, crew, Stages(self.run, crew), RecordFile(None))


@pytest.fixture
def told() -> Told:
    return Told()


def wire(requests: int, sequence: int, last: bool = False) -> dict[str, Any]:
    snapshot = Snapshot()
    for k in range(requests):
        snapshot.add(record(k), T0)
    said = {"problem": None, "disk_error": None, "unacknowledged": False}
    return {"run": "r1", "sequence": sequence, "snapshot": snapshot.to_wire(with_series=last),
            **said}  # fmt: skip


def requests_of(told: Told) -> int:
    return int(told.run.workers["w0"].snapshot.total().ok)


def test_the_latest_report_counts_whatever_the_order(told: Told) -> None:
    told.inbox.report("w0", wire(5, 2))
    told.inbox.report("w0", wire(3, 1))
    told.inbox.report("w0", wire(5, 2))
    assert requests_of(told) == 5


def test_a_report_after_the_last_word_does_not_take_the_series_away(told: Told) -> None:
    told.inbox.receive("finished", "w0", wire(6, 3, last=True))
    told.inbox.report("w0", wire(6, 4))
    series = told.run.merged.series
    assert requests_of(told) == 6
    assert sum(series.tokens.values()) == 66


def test_a_report_of_another_run_changes_nothing(told: Told) -> None:
    told.inbox.report("w0", {**wire(5, 1), "run": "r0"})
    assert requests_of(told) == 0


def test_what_comes_when_the_counting_up_has_begun_changes_nothing(told: Told) -> None:
    told.inbox.report("w0", wire(5, 1))
    told.inbox.close()
    told.inbox.report("w0", wire(7, 2))
    told.inbox.receive("records", "w0", {"run": "r1", "number": 1, "data": b"{}\n"})
    assert requests_of(told) == 5
    assert (told.run.workers["w0"].records_received, told.sent) == (0, [])


def test_a_batch_of_records_is_counted_and_acknowledged_once_each_time(told: Told) -> None:
    for _ in range(2):
        told.inbox.receive("records", "w0", {"run": "r1", "number": 4, "data": b"{}\n{}\n"})
    assert told.run.workers["w0"].records_received == 2
    assert told.sent == [("ack", {"run": "r1", "number": 4}, "w0")] * 2


def test_a_worker_that_waits_for_the_masters_prompts_is_let_go_when_there_is_no_run(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master may find that it cannot open them; whoever listens must not wait for ever."""
    monkeypatch.setattr("tokenswarm.distributed.inbox.write_workers", lambda run: None)
    said = {"run": "r1", "digest": "d", "pid": 1, "host": "h", "where": ""}
    waiting = gevent.spawn(told.inbox.receive, "prepared", "w0", said)
    gevent.sleep(0.03)
    assert not waiting.ready()
    told.inbox.close()
    waiting.get(timeout=10)
