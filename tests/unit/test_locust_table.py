"""Locust's own table shows each request of a run once, whenever Locust empties it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hand_made import record

from tokenswarm.records import Outcome

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed import locust_table
    from tokenswarm.distributed.locust_table import LocustTable, RequestFailed


@pytest.fixture
def seen() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def table(seen: list[dict[str, Any]]) -> LocustTable:
    fire = lambda **fields: seen.append(fields)  # noqa: E731
    return LocustTable(SimpleNamespace(events=SimpleNamespace(request=SimpleNamespace(fire=fire))))


def test_what_ended_before_locusts_word_is_told_after_it(table: LocustTable, seen: Any) -> None:
    table.hold()
    table.fire(record(), "chat")
    table.fire(record(), "chat")
    assert seen == []
    table.let_go(environment=None)  # as Locust calls a listener
    assert [row["name"] for row in seen] == ["chat", "chat"]
    table.fire(record(), "chat")
    table.let_go()
    assert len(seen) == 3


def test_a_word_that_never_comes_holds_up_only_so_many(
    table: LocustTable, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locust_table, "_MOST_HELD", 5)
    table.hold()
    for _ in range(7):
        table.fire(record(), "chat")
    assert len(seen) == 7


def test_the_response_time_is_e2e_and_a_failure_has_none(table: LocustTable, seen: Any) -> None:
    ok, lost = record(), record(outcome=Outcome.CONNECTION_LOST)
    table.fire(ok, "chat")
    table.fire(lost, "chat")
    table.fire(record(outcome=Outcome.CANCELLED), "chat")
    assert ok.last_ns is not None
    assert ok.sent_ns is not None
    assert [row["response_time"] for row in seen] == [(ok.last_ns - ok.sent_ns) / 1e6, None]
    assert seen[0]["exception"] is None
    assert isinstance(seen[1]["exception"], RequestFailed)
    assert str(seen[1]["exception"]) == "connection_lost"
