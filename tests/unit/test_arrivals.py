from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from tokenswarm import workload
from tokenswarm.arrivals import Arrival, schedule, stage_ends, stripe
from tokenswarm.records import BadInput

S = 1_000_000_000


def load(text: str) -> workload.Load:
    head = "backend: {model: m}\nprompts: {input_tokens: 10, output_tokens: 5}\nload: "
    return workload.parse(f"{head}{{mode: open, {text}}}\n").load


def plan(text: str, seed: int = 7) -> list[Arrival]:
    return list(schedule(load(text), seed))


def gaps_s(arrivals: list[Arrival]) -> list[float]:
    return [(b.due_ns - a.due_ns) / S for a, b in itertools.pairwise(arrivals)]


def pvalue(result: Any) -> float:
    return float(result.pvalue)


# -------------------------------------------------------------------------------- constant


def test_constant_is_constant() -> None:
    arrivals = plan("arrivals: constant, rate_per_s: 10, duration: 3s")
    assert arrivals == [Arrival(k, 0, k * S // 10) for k in range(30)]


@pytest.mark.parametrize(
    ("rate", "seconds", "count"), [(0.1, 30, 3), (3.3, 10, 33), (7, 0.1, 1), (1000 / 3, 3, 1000)]
)
def test_constant_by_duration_has_rate_times_duration_arrivals(
    rate: float, seconds: float, count: int
) -> None:
    arrivals = plan(f"arrivals: constant, rate_per_s: {rate}, duration: {seconds}s")
    assert len(arrivals) == count
    assert all(a.due_ns == round(a.index / rate * S) for a in arrivals)


def test_stages_join_without_a_bunch_or_a_hole() -> None:
    arrivals = plan(
        "arrivals: constant, stages: [{requests: 5, rate_per_s: 10}, "
        "{duration: 1s, rate_per_s: 4}, {requests: 3, rate_per_s: 2}]"
    )
    assert [(a.stage, a.due_ns / S) for a in arrivals] == [
        *[(0, k / 10) for k in range(5)],
        *[(1, 0.5 + k / 4) for k in range(4)],
        *[(2, 1.5 + k / 2) for k in range(3)],
    ]
    assert stage_ends(load(
        "arrivals: constant, stages: [{requests: 5, rate_per_s: 10}, {duration: 1s, rate_per_s: 4}]"
    ), 7) == (S // 2, 3 * S // 2)  # fmt: skip


def test_what_is_left_of_a_gap_goes_on_in_the_next_stage() -> None:
    arrivals = plan(
        "arrivals: constant, stages: [{duration: 1.25s, rate_per_s: 2}, "
        "{duration: 1s, rate_per_s: 8}]"
    )
    # Half of the gap is over when the first stage ends; the other half takes 1/16 s at 8/s.
    assert [a.due_ns / S for a in arrivals if a.stage == 0] == [0.0, 0.5, 1.0]
    assert [a.due_ns / S for a in arrivals if a.stage == 1] == [1.3125 + k / 8 for k in range(8)]


def test_constant_under_a_ramp_is_due_where_the_area_is_whole() -> None:
    arrivals = plan(
        "arrivals: constant, stages: [{duration: 10s, shape: {ramp: {from: 0, to: 10}}}]"
    )
    # t^2 / 2 = k, up to k = 49: the fiftieth would be due at the end.
    assert [a.due_ns for a in arrivals] == [
        pytest.approx((2 * k) ** 0.5 * S, abs=2) for k in range(50)
    ]


def test_no_arrival_falls_into_a_pause() -> None:
    arrivals = plan("stages: [{duration: 30s, shape: {steps: {levels: [20, 0, 20]}}}]")
    assert [a for a in arrivals if 10 * S < a.due_ns < 20 * S] == []
    assert len(arrivals) > 300


# ------------------------------------------------------------------- random arrival processes
# Seeds are fixed, so these tests are repeatable; the false-alarm rate is the chance that a right
# program would have failed with a seed nobody chose.


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_are_exponential(seed: int) -> None:
    gaps = gaps_s(plan("rate_per_s: 50, requests: 20000", seed))
    # False alarm: 1 in 1,000 a seed, for each test.
    assert pvalue(stats.kstest(gaps, stats.expon(scale=1 / 50).cdf)) > 0.001
    correlation = stats.pearsonr(gaps[:-1], gaps[1:])
    assert pvalue(correlation) > 0.001


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 4.0])
def test_gamma_gaps_have_the_asked_for_burstiness(burstiness: float) -> None:
    gaps = gaps_s(
        plan(f"arrivals: gamma, burstiness: {burstiness}, rate_per_s: 50, requests: 20000")
    )
    wanted = stats.gamma(burstiness, scale=1 / burstiness / 50)
    assert pvalue(stats.kstest(gaps, wanted.cdf)) > 0.001  # false alarm: 1 in 1,000
    variation = stats.variation(gaps) * burstiness**0.5
    assert variation == pytest.approx(1.0, abs=0.06)  # over 4 standard errors


def test_poisson_counts_are_as_scattered_as_they_should_be() -> None:
    arrivals = plan("rate_per_s: 20, duration: 2000s")
    counts = [0] * 2000
    for arrival in arrivals:
        counts[arrival.due_ns // S] += 1
    mean = sum(counts) / len(counts)
    dispersion = sum((c - mean) ** 2 for c in counts) / mean
    low, high = stats.chi2(len(counts) - 1).interval(0.999)  # false alarm: 1 in 1,000
    assert low < dispersion < high
    assert abs(len(arrivals) - 40000) < 700  # 3.5 standard deviations: 1 in 2,000


def test_poisson_under_a_sine_is_poisson_in_rescaled_time() -> None:
    text = (
        "stages: [{duration: 1000s, rate_per_s: 20, shape: {sine: {amplitude: 15, period: 60s}}}]"
    )
    shape = load(text).resolved_stages()[0].profile
    assert shape is not None
    rescaled = [shape.cumulative(a.due_ns / S) for a in plan(text)]
    gaps = [b - a for a, b in itertools.pairwise(rescaled)]
    assert pvalue(stats.kstest(gaps, stats.expon().cdf)) > 0.001  # false alarm: 1 in 1,000


def test_n_requests_are_n_and_lie_in_their_stages() -> None:
    text = (
        "stages: [{requests: 100, rate_per_s: 50}, {duration: 3s, rate_per_s: 90}, "
        "{requests: 77, shape: {ramp: {from: 1, to: 40, over: 2s}}}]"
    )
    arrivals = plan(text)
    assert [a.index for a in arrivals] == list(range(len(arrivals)))
    assert [a.due_ns for a in arrivals] == sorted(a.due_ns for a in arrivals)
    counts = [sum(a.stage == stage for a in arrivals) for stage in range(3)]
    assert (counts[0], counts[2]) == (100, 77)
    assert abs(counts[1] - 270) < 82  # 5 standard deviations
    ends = stage_ends(load(text), 7)
    assert ends[1] - ends[0] == pytest.approx(3 * S, abs=1)
    assert all((0, *ends)[a.stage] <= a.due_ns <= ends[a.stage] for a in arrivals)


def test_the_seed_decides_and_nothing_else() -> None:
    text = "arrivals: gamma, burstiness: 0.5, rate_per_s: 9, requests: 50"
    assert plan(text, 1) == plan(text, 1)
    assert plan(text, 1) != plan(text, 2)
    assert plan(text, 1)[:20] == plan(text.replace("50", "20"), 1)


def test_planning_takes_microseconds_an_arrival() -> None:
    started = time.perf_counter()
    count = sum(1 for _ in schedule(load("rate_per_s: 1000, requests: 100000"), 7))
    assert count == 100_000
    assert time.perf_counter() - started < 2.0  # about 0.2 s; a loose floor, ten times that


# ----------------------------------------------------------------------------------- stripes


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_the_union_of_the_stripes_is_the_plan(n: int) -> None:
    whole = plan("rate_per_s: 30, requests: 100")
    shares = [list(stripe(schedule(load("rate_per_s: 30, requests: 100"), 7), k, n))
              for k in range(n)]  # fmt: skip
    assert sorted(itertools.chain(*shares)) == whole
    assert all(a.index % n == k for k, share in enumerate(shares) for a in share)


def test_a_stripe_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="worker 3 of 3 does not exist"):
        stripe([], 3, 3)


# ------------------------------------------------------------------------------------ traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(
        "time_s,input_tokens,output_tokens\n100,9,9\n101,9,9\n101,9,9\n105,9,9\n110,9,9\n"
    )
    return path


def due_s(text: str) -> list[float]:
    return [a.due_ns / S for a in plan(text)]


def test_a_trace_is_replayed_as_it_was(trace: Path) -> None:
    assert due_s(f"arrivals: trace, trace: {trace}") == [0, 1, 1, 5, 10]
    assert due_s(f"arrivals: trace, trace: {trace}, speed: 2") == [0, 0.5, 0.5, 2.5, 5]
    assert due_s(f"arrivals: trace, trace: {trace}, duration: 5s") == [0, 1, 1]
    assert due_s(f"arrivals: trace, trace: {trace}, requests: 4") == [0, 1, 1, 5]


def test_a_trace_can_be_scaled_to_a_rate(trace: Path) -> None:
    assert due_s(f"arrivals: trace, trace: {trace}, rate_per_s: 0.8") == [0, 0.5, 0.5, 2.5, 5]


def test_a_trace_goes_on_through_the_stages(trace: Path) -> None:
    arrivals = plan(
        f"arrivals: trace, trace: {trace}, stages: [{{duration: 3s, warmup: true}}, {{name: rest}}]"
    )
    assert [(a.stage, a.due_ns / S) for a in arrivals] == [
        (0, 0), (0, 1), (0, 1), (1, 5), (1, 10)
    ]  # fmt: skip


def test_a_trace_that_is_too_short_is_told_before_the_run(trace: Path) -> None:
    with pytest.raises(
        BadInput, match=r"trace\.csv: the trace ends after 5 arrivals, before the 6"
    ):
        schedule(load(f"arrivals: trace, trace: {trace}, requests: 6"), 7)
