from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hand_made import MS, T0, S, count, objectives, record

from tokenswarm.records import Outcome
from tokenswarm.snapshot import (
    OTHER_TEXTS,
    Health,
    Snapshot,
    StageStats,
    merged,
)
from tokenswarm.snapshot_series import Series, share_out


def through_json(wire: Any) -> Any:
    return json.loads(json.dumps(wire))


def test_counts_of_a_stage() -> None:
    stats = count(
        Snapshot(),
        record(0, prompt_tokens=101),
        record(1, reads=8, coalesced_reads=2, unstamped_reads=1, retries=3),
        record(2, Outcome.HTTP_ERROR, error="500 Internal Server Error"),
        record(3, Outcome.CANCELLED),
    ).stage(1)
    stats.dropped += 5
    assert stats.due == 9
    assert (stats.started, stats.ended, stats.in_flight) == (4, 4, 0)
    assert (stats.ok, stats.failed) == (2, 1)
    assert stats.error_ratio == (1 + 5) / (9 - 1)
    assert (stats.prompt_tokens, stats.output_tokens, stats.output_chars) == (401, 22, 88)
    assert (stats.events, stats.reads, stats.coalesced_reads, stats.unstamped_reads) == (
        22, 19, 2, 1,
    )  # fmt: skip
    assert (stats.compared, stats.exact, dict(stats.differences)) == (2, 1, {1: 1, 0: 1})
    assert stats.retries == 3
    assert dict(stats.errors) == {("http_error", "500 Internal Server Error"): 1}
    assert stats.histograms["ttft_s"].n == 2
    assert stats.histograms["send_delay_s"].n == 4
    assert stats.histograms["itl_s"].n == 20


def test_requests_are_judged_one_by_one() -> None:
    wanted = objectives({"ttft": "<150ms", "tpot": "<=20ms", "p99(e2e)": "<1s"})
    stats = StageStats()
    for r in (
        record(0),  # meets both
        record(1, ttft_ms=200),
        record(2, itl_ms=21),
        record(3, tokens=1),  # no TPOT: nothing is said of it
        record(4, Outcome.HTTP_ERROR),
        record(5, Outcome.CANCELLED),
    ):
        stats.judge(r, wanted, "main")
    assert stats.good == 2
    assert dict(stats.slo_evaluated) == {"ttft": 5, "tpot": 4, "p99(e2e)": 5}
    assert dict(stats.slo_met) == {"ttft": 3, "tpot": 2, "p99(e2e)": 4}


def test_nothing_is_good_without_an_slo_for_every_request() -> None:
    stats = StageStats()
    stats.judge(record(), objectives({"p99(ttft)": "<1s"}), "main")
    assert stats.good == 0


def test_an_slo_of_another_stage_does_not_judge() -> None:
    stats = StageStats()
    stats.judge(record(), objectives({"main: ttft": "<1ms", "tpot": "<1s"}), "other")
    assert (stats.good, dict(stats.slo_evaluated)) == (1, {"tpot": 1})


def test_error_ratio_of_nothing_is_unknown() -> None:
    assert StageStats().error_ratio is None


def test_error_texts_are_kept_for_each_outcome_up_to_a_limit() -> None:
    stats = StageStats()
    for k in range(100):
        stats.add_error(Outcome.HTTP_ERROR, f"text {k}")
    stats.add_error(Outcome.EMPTY, "no token")
    assert len(stats.errors) == 22
    assert stats.errors["http_error", OTHER_TEXTS] == 80
    assert stats.errors["empty", "no token"] == 1


def test_unasked_lengths_are_not_compared() -> None:
    stats = count(
        Snapshot(),
        record(0, prompt_tokens_expected=None),
        record(1, prompt_tokens_source="tokenizer"),
    ).stage(1)
    assert stats.compared == 0


def test_merging_workers_equals_counting_all_on_one() -> None:
    records = [record(k, stage=k % 3, due_s=10 + k, ttft_ms=50 + k) for k in range(30)]
    apart = merged([count(Snapshot(), *records[k::4]) for k in range(4)])
    together = count(Snapshot(), *records)
    assert apart.to_wire(with_series=True)["stages"] == together.to_wire()["stages"]
    assert apart.series == together.series
    assert apart.records == 30
    assert (apart.first_sent_s, apart.last_event_s) == (10.0, 39.280)


def test_wire_form_carries_everything() -> None:
    snapshot = count(Snapshot(), *[record(k, Outcome(o)) for k, o in enumerate(Outcome)])
    snapshot.stage(1).add_error(Outcome.MALFORMED, "no JSON")
    snapshot.stage(1).slo_evaluated["ttft"] = 3
    snapshot.live_tokens, snapshot.exhausted_s = 77, 12.5
    snapshot.health = Health(0.5, 0.7, 10**8, steps=[5 * MS], users=3, in_flight=2)
    snapshot.health.lag.record(MS)
    wire = through_json(snapshot.to_wire(with_series=True))
    back = Snapshot.from_wire(wire)
    assert through_json(back.to_wire(with_series=True)) == wire
    assert back.stage(1).outcomes == snapshot.stage(1).outcomes
    assert back.stage(1).errors == snapshot.stage(1).errors
    assert back.series == snapshot.series
    assert back.exhausted_s == 12.5


def test_the_series_travels_only_when_asked() -> None:
    snapshot = count(Snapshot(), record())
    assert Snapshot.from_wire(snapshot.to_wire()).series == Series()


@pytest.mark.parametrize("wire", [{}, {"stages": [{}]}, {"stages": 3}])
def test_a_wrong_wire_form_raises(wire: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Snapshot.from_wire(wire)


def test_a_window_counts_token_events_inside_it() -> None:
    series = Series()
    # tokens at 10.1, 10.12, ... 10.3 s
    series.add(record(due_s=10.0), T0)
    assert series.between("tokens", 10.0, 10.2) == 5
    assert series.between("tokens", 10.2, 30.0) == 6
    assert series.between("requests", 10.3, 30.0) == 1
    assert series.between("prompt_tokens", 10.1, 10.11) == 100
    assert series.between("chars", 0, 100) == 44


def test_a_failed_request_delivered_tokens_but_is_no_request_done() -> None:
    series = Series()
    events = [T0 + S, T0 + 2 * S]
    series.add(record(outcome=Outcome.TRUNCATED, event_ns=events, output_tokens=2), T0)
    assert series.between("tokens", 0, 3) == 2
    assert series.between("requests", 0, 3) == 0


def test_folding_keeps_sums_and_windows_that_begin_at_edges() -> None:
    series = Series()
    for k in range(100):
        series.add(record(k, due_s=k * 0.1 + 0.003), T0)
    before = {w: series.between("tokens", *w) for w in [(0, 4.05), (4.05, 20), (0, 20)]}
    size = len(series.tokens)
    series.fold(before_s=9.0, edges_s=[4.05])
    assert len(series.tokens) < size / 2
    assert {w: series.between("tokens", *w) for w in before} == before


def test_a_soak_of_days_keeps_minutes_where_no_window_is_cut() -> None:
    hour, series = 3600, Series()
    for k in range(20 * hour // 10):
        series.add(record(k, due_s=k * 10 + 0.003), T0)
        if k % 360 == 0:
            series.fold(before_s=k * 10 - 60, edges_s=[1800, 6 * hour + 7.5])
    cuts = (0, 1800, 6 * hour + 7.5, 17 * hour, 19 * hour + 35, 20 * hour)
    expected = [sum(low <= k * 10 < high for k in range(7200)) for low, high in pairwise(cuts)]
    assert [series.between("requests", *w) for w in pairwise(cuts)] == expected
    assert [series.between("tokens", *w) for w in pairwise(cuts)] == [11 * n for n in expected]
    assert [series.between("chars", *w) for w in pairwise(cuts)] == [44 * n for n in expected]
    # the first hour, one minute with an edge and the last 121 as they came, the rest by the minute
    kept = 360 + 6 + 121 * 6 + (17 * 60 - 2)
    assert (len(series.requests), len(series.chars)) == (kept, kept)


@pytest.mark.parametrize(
    ("buckets", "total", "shares"),
    [
        ([1, 2, 3], 3, {1: 1, 2: 1, 3: 1}),
        ([1, 2, 3], 10, {1: 4, 2: 3, 3: 3}),
        ([1, 2, 3], 1, {1: 1}),
        ([1, 1, 1], 7, {1: 7}),
    ],
)
def test_a_total_is_shared_out_in_whole_numbers(
    buckets: list[int], total: int, shares: dict[int, int]
) -> None:
    series = Series()
    share_out(series.tokens, buckets, total)
    assert dict(series.tokens) == shares
    assert series.tokens.total() == total


def test_a_mark_is_another_once_more_was_counted() -> None:
    snapshot = count(Snapshot(), record())
    before = snapshot.mark()
    assert snapshot.mark() == before
    count(snapshot, record(1))
    assert snapshot.mark() != before
