"""Every formula with literals. Times: due 1000 ms, sent 1003 ms, events as given."""

from __future__ import annotations

from typing import Any

import pytest

from tokenswarm import measure
from tokenswarm.measure import METRICS, spread_lagged, values
from tokenswarm.records import Outcome, Record

MS = 1_000_000


def record(*events_ms: float, outcome: Outcome = Outcome.OK, **over: Any) -> Record:
    facts: dict[str, Any] = {
        "sent_ns": 1003 * MS,
        "event_ns": [round(ms * MS) for ms in events_ms],
        "output_tokens": len(events_ms),
    }
    return Record(index=0, stage=0, due_ns=1000 * MS, due_offset_ns=0, outcome=outcome,
                  **{**facts, **over})  # fmt: skip


FIVE = (1103, 1123, 1143, 1143, 1203)  # ttft 100, gaps 20 20 0 60


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ttft_s", [100 * MS]),
        ("ttft_due_s", [103 * MS]),
        ("itl_s", [20 * MS, 20 * MS, 0, 60 * MS]),
        ("tpot_s", [25 * MS]),
        ("e2e_s", [200 * MS]),
        ("e2e_due_s", [203 * MS]),
        ("send_delay_s", [3 * MS]),
        ("connect_s", []),
        ("output_tokens", [5]),
        ("prompt_tokens", [0]),
        ("tokens_per_s_per_user", [40_000_000]),
        ("tps_novita", [50_000_000]),
        ("ttft_answer_s", []),
    ],
)
def test_metrics_of_five_tokens(name: str, expected: list[int]) -> None:
    assert values(record(*FIVE), METRICS[name]) == expected


def test_e2e_is_ttft_plus_tpot_times_the_tokens_after_the_first_event() -> None:
    r = record(*FIVE, output_tokens=9, first_event_tokens=4)
    (ttft,), (tpot,), (e2e,) = (values(r, METRICS[n]) for n in ("ttft_s", "tpot_s", "e2e_s"))
    assert tpot == 20 * MS
    assert e2e == ttft + tpot * (9 - 4)


def test_inter_token_latencies_sum_to_last_minus_first() -> None:
    r = record(*FIVE)
    assert r.last_ns is not None
    assert r.first_ns is not None
    assert sum(measure.itl(r)) == r.last_ns - r.first_ns


@pytest.mark.parametrize("name", ["tpot_s", "tokens_per_s_per_user", "tps_novita", "itl_s"])
def test_speed_is_undefined_for_a_single_token(name: str) -> None:
    assert values(record(1103), METRICS[name]) == []


def test_tpot_is_undefined_when_all_tokens_came_in_the_first_event() -> None:
    assert measure.tpot(record(1103, 1123, output_tokens=4, first_event_tokens=4)) is None


def test_tpot_is_undefined_when_the_number_of_tokens_is_not_known() -> None:
    assert measure.tpot(record(1103, 1123, output_tokens=None)) is None


@pytest.mark.parametrize("name", list(METRICS))
def test_a_failed_request_has_no_latency_but_its_send_delay(name: str) -> None:
    r = record(*FIVE, outcome=Outcome.STREAM_ERROR, connect_ns=MS, longest_gap_ns=60 * MS)
    assert values(r, METRICS[name]) == ([3 * MS] if name == "send_delay_s" else [])


@pytest.mark.parametrize("name", list(METRICS))
def test_a_request_never_sent_gives_nothing(name: str) -> None:
    r = record(outcome=Outcome.CANCELLED, sent_ns=None, output_tokens=None)
    assert values(r, METRICS[name]) == []


def test_samples_of_a_clock_that_was_set_back_are_left_out() -> None:
    r = record(1103, 1123, 1113, 1133)
    assert values(r, METRICS["itl_s"]) == [20 * MS, 20 * MS]
    assert values(record(999), METRICS["ttft_s"]) == []


def test_a_request_sent_early_is_not_negative_late() -> None:
    assert measure.send_delay(record(1103, sent_ns=999 * MS)) == 0


def test_answer_ttft_leaves_reasoning_out() -> None:
    assert measure.answer_ttft(record(*FIVE, first_answer_ns=1143 * MS)) == 140 * MS


def test_events_of_one_read_came_together_while_the_loop_was_on_time() -> None:
    stamps = [100, 130, 130, 130]
    spread_lagged(stamps, 1, lagging=False)
    assert stamps == [100, 130, 130, 130]


def test_events_of_one_read_are_spread_while_the_loop_lagged() -> None:
    stamps = [100, 130, 130, 130]
    spread_lagged(stamps, 1, lagging=True)
    assert stamps == [100, 110, 120, 130]


def test_a_first_read_is_never_spread_there_is_nothing_before_it() -> None:
    stamps = [130, 130]
    spread_lagged(stamps, 0, lagging=True)
    assert stamps == [130, 130]


@pytest.mark.parametrize(
    ("bounds", "low_s", "ladder_s", "vllm"),
    [
        (measure.TTFT_BOUNDS_NS, 0.001, 250, (0.001, 0.005, 0.06, 0.08, 0.75, 7.5, 160, 640, 2560)),
        (measure.E2E_BOUNDS_NS, 0.001, 250, (0.3, 0.5, 0.8, 1.5, 15, 120, 240, 480, 7680)),
        (measure.ITL_BOUNDS_NS, 0.0001, 10, (0.01, 0.025, 0.075, 0.15, 0.3, 0.75, 7.5, 80)),
    ],
)
def test_bounds_hold_ten_a_decade_and_those_of_vllm(
    bounds: tuple[int, ...], low_s: float, ladder_s: float, vllm: tuple[float, ...]
) -> None:
    assert bounds[0] == round(low_s * 1e9)
    assert bounds[-1] == round(vllm[-1] * 1e9)
    assert round(ladder_s * 1e9) in bounds
    assert list(bounds) == sorted(set(bounds))
    assert {round(v * 1e9) for v in vllm} <= set(bounds)
    assert sum(10**8 <= b < 10**9 for b in bounds) >= 10
