"""Merging snapshots: any split over workers, any order, any number of repeats of a report."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswarm.records import Outcome, Record
from tokenswarm.snapshot import Snapshot, merged

T0 = 1_750_000_000_000_000_000


@st.composite
def records(draw: st.DrawFn) -> Record:
    outcome = draw(st.sampled_from(Outcome))
    due = T0 + draw(st.integers(0, 10**10))
    sent = due + draw(st.integers(0, 10**8))
    gaps = draw(st.lists(st.integers(0, 10**9), max_size=8))
    events: list[int] = []
    for gap in gaps:
        events.append((events[-1] if events else sent) + gap)
    return Record(
        index=draw(st.integers(0, 10**6)), stage=draw(st.integers(0, 2)), due_ns=due,
        due_offset_ns=due - T0, outcome=outcome, sent_ns=sent, event_ns=events,
        output_tokens=draw(st.none() | st.integers(0, 30)), prompt_tokens=draw(st.integers(0, 99)),
        prompt_tokens_source=draw(st.sampled_from(["usage", "tokenizer"])),
        prompt_tokens_expected=draw(st.none() | st.integers(0, 99)),
        error=draw(st.none() | st.sampled_from(["a", "b"])), reads=len(events),
    )  # fmt: skip


def counted(found: list[Record]) -> Snapshot:
    snapshot = Snapshot()
    for r in found:
        stats = snapshot.stage(r.stage)
        stats.started += 1
        stats.add(r)
        snapshot.series.add(r, T0)
    return snapshot


def plain(snapshot: Snapshot) -> Any:
    wire = snapshot.to_wire()
    # counters keep the order of insertion, and a stage is made when first asked for
    for stage in wire["stages"]:
        stage["errors"].sort()
        stage["differences"].sort()
    while wire["stages"] and not any(wire["stages"][-1]["n"]):
        wire["stages"].pop()
    return wire


@settings(max_examples=50)
@given(st.lists(records(), max_size=20), st.lists(st.integers(0, 3), min_size=20, max_size=20))
def test_any_split_over_workers_adds_up_to_the_same(found: list[Record], to: list[int]) -> None:
    parts = [[r for r, w in zip(found, to, strict=False) if w == k] for k in range(4)]
    forwards = merged(counted(p) for p in parts)
    backwards = merged(counted(p) for p in reversed(parts))
    assert plain(forwards) == plain(backwards) == plain(counted(found))
    assert forwards.series == backwards.series == counted(found).series


@settings(max_examples=50)
@given(st.lists(records(), max_size=10))
def test_the_wire_form_round_trips(found: list[Record]) -> None:
    wire = json.loads(json.dumps(counted(found).to_wire(with_series=True)))
    back = Snapshot.from_wire(wire)
    assert json.loads(json.dumps(back.to_wire(with_series=True))) == wire


@settings(max_examples=50)
@given(st.lists(records(), max_size=20))
def test_every_request_is_counted_once(found: list[Record]) -> None:
    total = counted(found).total()
    assert total.ended == sum(total.outcomes.values()) == len(found)
    assert total.ok + total.failed + total.outcomes[Outcome.CANCELLED.value] == len(found)
    assert total.prompt_tokens == sum(r.prompt_tokens for r in found)
