"""What the master makes of reports that come late, twice or after a worker's last word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hand_made import T0, record
from hand_made import run as hand_made_run

from tokenswarm.run import Worker
from tokenswarm.snapshot import Snapshot

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed.master import Master


@pytest.fixture
def master() -> Any:
    made: Any = Master(
        SimpleNamespace(), SimpleNamespace(), lambda *a: None, lambda w: True, lambda t: None,
        lambda n: None,
    )  # fmt: skip
    made.run = hand_made_run(Worker("w0", 0, k=0))
    made._concluded.clear()
    return made


def wire(requests: int, sequence: int, last: bool = False) -> dict[str, Any]:
    snapshot = Snapshot()
    for k in range(requests):
        snapshot.add(record(k), T0)
    said = {"problem": None, "disk_error": None, "unacknowledged": False}
    return {"run": "r1", "sequence": sequence, "snapshot": snapshot.to_wire(with_series=last),
            **said}  # fmt: skip


def requests_of(master: Any) -> int:
    return int(master.run.workers["w0"].snapshot.total().ok)


def test_the_latest_report_counts_whatever_the_order(master: Any) -> None:
    master.report("w0", wire(5, 2))
    master.report("w0", wire(3, 1))
    master.report("w0", wire(5, 2))
    assert requests_of(master) == 5


def test_a_report_after_the_last_word_does_not_take_the_series_away(master: Any) -> None:
    master.receive("finished", "w0", wire(6, 3, last=True))
    master.report("w0", wire(6, 4))
    series = master.run.merged.series
    assert requests_of(master) == 6
    assert sum(series.tokens.values()) == 66


def test_a_report_of_another_run_changes_nothing(master: Any) -> None:
    master.report("w0", {**wire(5, 1), "run": "r0"})
    assert requests_of(master) == 0
