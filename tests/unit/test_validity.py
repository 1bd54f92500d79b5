"""Each reason not to believe a run, and runs that are to be believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hand_made import MS, S, objectives, record, run, worker

from tokenswarm.records import Outcome
from tokenswarm.run import Run
from tokenswarm.validity import CODES, judge


def enough(n: int = 200, **over: object) -> list:  # type: ignore[type-arg]
    return [record(k, due_s=10 + k * 0.05, **over) for k in range(n)]  # type: ignore[arg-type]


def codes(found: Run) -> list[str]:
    return [code for code, _ in judge(found).reasons]


def test_a_clean_run_is_valid_and_ends_with_0() -> None:
    verdict = judge(run(worker(0, *enough()), worker(1)))
    assert (verdict.valid, verdict.reasons, verdict.exit_code) == (True, [], 0)
    assert [c.passed for c in verdict.checks] == [True, True]


def test_a_failed_slo_ends_with_1_and_the_run_stays_valid() -> None:
    found = run(worker(0, *enough()), objectives=objectives({"p90(ttft)": "<50ms"}))
    verdict = judge(found)
    assert (verdict.valid, verdict.exit_code) == (True, 1)
    failed = [c for c in verdict.checks if c.passed is False]
    assert [(c.key, round(c.actual or 0, 4)) for c in failed] == [("p90(ttft)", 0.1)]


def test_errors_fail_the_default_slo() -> None:
    bad = [record(900 + k, Outcome.HTTP_ERROR) for k in range(3)]
    assert judge(run(worker(0, *enough(), *bad))).exit_code == 1


def test_cancelled_requests_are_no_errors() -> None:
    gone = [record(900 + k, Outcome.CANCELLED) for k in range(30)]
    assert judge(run(worker(0, *enough(), *gone))).exit_code == 0


def test_errors_in_warm_up_do_not_count() -> None:
    bad = [record(900 + k, Outcome.HTTP_ERROR, stage=0, due_s=k) for k in range(9)]
    assert judge(run(worker(0, *enough(), *bad))).exit_code == 0


def lost(r: Run) -> None:
    r.workers["w0"].state = "lost"


def no_last_report(r: Run) -> None:
    r.workers["w0"].final = False


def missing(r: Run) -> None:
    r.workers["w0"].state = "missing"


def records_missing(r: Run) -> None:
    r.workers["w0"].records_received -= 3


def in_flight(r: Run) -> None:
    r.workers["w0"].snapshot.stage(1).started += 1


def dropped(r: Run) -> None:
    r.workers["w0"].snapshot.stage(1).dropped = 1


def busy(r: Run) -> None:
    r.workers["w0"].snapshot.health.cpu_max = 0.95


def late_without_stamps(r: Run) -> None:
    r.workers["w0"].snapshot.health.lag.record(25 * MS, 100)
    r.workers["w0"].snapshot.stage(1).unstamped_reads = 100


def coalesced(r: Run) -> None:
    r.workers["w0"].snapshot.stage(1).coalesced_reads = 150


def not_ended(r: Run) -> None:
    r.ended = None


def other_length(r: Run) -> None:
    r.workers["w0"].snapshot.stage(0).add_comparison(-2)


def clock_was_set(r: Run) -> None:
    r.workers["w0"].snapshot.health.steps.append(-6 * MS)


def null_percentile(r: Run) -> None:
    r.objectives = objectives({"p999(ttft)": "<2s"})


def own_fault(r: Run) -> None:
    stage = r.workers["w0"].snapshot.stage(0)
    stage.started += 1
    stage.add(record(999, Outcome.INTERNAL_ERROR, stage=0, error="KeyError: 'x'"))
    r.workers["w0"].records_received += 0


@pytest.mark.parametrize(
    ("spoil", "code", "detail", "exit_code"),
    [
        (lost, "worker_lost", "worker w0 (here) died", 3),
        (no_last_report, "reports_missing", "no last report", 3),
        (missing, "reports_missing", "no last report", 3),
        (records_missing, "reports_missing", "3 request records", 3),
        (in_flight, "reports_missing", "1 requests were sent but no outcome", 3),
        (dropped, "arrivals_dropped", "1 of 201 arrivals", 3),
        (busy, "generator_saturated", "used 95% of a core (limit 90%)", 3),
        (late_without_stamps, "generator_saturated", "event loop p99 25 ms late", 3),
        (coalesced, "reads_coalesced", "6.8% of reads", 3),
        (not_ended, "cut_short", "did not come to its end", 3),
        (other_length, "prompt_length", "in 1 of 201 responses (up to -2)", 3),
        (clock_was_set, "clock_step", "set by -6.0 ms", 3),
        (null_percentile, "insufficient_samples", "p999(ttft) <2s: 200 values are too few", 3),
        (own_fault, "internal_error", "1 requests failed inside tokenswarm: KeyError: 'x'", 4),
    ],
)
def test_a_reason_not_to_believe(
    spoil: Callable[[Run], None], code: str, detail: str, exit_code: int
) -> None:
    found = run(worker(0, *enough()), worker(1))
    spoil(found)
    verdict = judge(found)
    assert [c for c, _ in verdict.reasons] == [code]
    assert detail in verdict.reasons[0][1]
    assert not verdict.valid
    assert verdict.exit_code == exit_code


@pytest.mark.parametrize("code", CODES)
def test_what_the_master_saw_is_passed_on_once(code: str) -> None:
    found = run(worker(0, *enough()), faults=[(code, "the master said so")])
    lost(found)
    details = [d for c, d in judge(found).reasons if c == code]
    assert details == ["the master said so"]


def test_reasons_come_in_the_order_of_the_contract() -> None:
    found = run(worker(0, *enough()), faults=[("cut_short", "a"), ("worker_late", "b")])
    lost(found)
    assert codes(found) == ["worker_lost", "worker_late", "cut_short"]


def test_an_invalid_run_ends_with_3_whatever_its_slos_say() -> None:
    found = run(worker(0, *enough()), objectives=objectives({"p90(ttft)": "<50ms"}))
    lost(found)
    assert judge(found).exit_code == 3


def test_a_loop_that_lags_does_no_harm_with_kernel_stamps() -> None:
    found = run(worker(0, *enough()))
    found.workers["w0"].snapshot.health.lag.record(25 * MS, 100)
    assert codes(found) == []


def test_a_worker_that_was_never_part_of_the_run_is_no_reason() -> None:
    found = run(worker(0, *enough()), worker(None, state="lost"))
    assert codes(found) == []


def test_small_steps_of_the_clock_are_no_reason() -> None:
    found = run(worker(0, *enough()))
    found.workers["w0"].snapshot.health.steps += [4 * MS, -5 * MS]
    assert codes(found) == []


def test_a_few_coalesced_reads_are_no_reason() -> None:
    found = run(worker(0, *enough(5)))
    found.workers["w0"].snapshot.stage(1).coalesced_reads = 40
    assert codes(found) == []  # of 55 reads: too few to tell


def open_loop(delays_ms: list[float], planned: int | None = None) -> Run:
    """Requests due evenly over the 20 s of the measured stage, sent so late."""
    step = 20 / len(delays_ms)
    rs = [record(k, due_s=10 + k * step, delay_ms=d) for k, d in enumerate(delays_ms)]
    return run(worker(0, *rs), mode="open", planned_requests=planned or len(rs))


def test_an_open_loop_that_keeps_its_rate_is_valid() -> None:
    assert codes(open_loop([1.0] * 400)) == []


def test_a_stall_that_was_caught_up_is_no_missed_rate() -> None:
    late = [3000 - 50 * k for k in range(60)]
    assert codes(open_loop([1.0] * 200 + late + [1.0] * 140)) == []


def test_a_generator_that_falls_behind_misses_the_rate() -> None:
    found = open_loop([2 * k for k in range(400)])  # 0.8 s late at the end of 20 s
    ((code, detail),) = judge(found).reasons
    assert code == "rate_not_reached"
    assert detail == "requests were sent at about 19.2/s, planned were 20/s"


def test_requests_that_never_became_due_miss_the_rate() -> None:
    found = open_loop([1.0] * 390, planned=400)
    assert judge(found).reasons == [("rate_not_reached", "390 of 400 planned requests became due")]


def test_a_run_that_was_cut_short_is_not_blamed_for_its_rate_too() -> None:
    found = open_loop([1.0] * 390, planned=400)
    found.faults.append(("cut_short", "Ctrl-C"))
    assert codes(found) == ["cut_short"]


def test_a_closed_loop_has_no_rate_to_miss() -> None:
    found = open_loop([2 * k for k in range(400)])
    found.workload.load.mode = "closed"
    assert codes(found) == []


def warnings(found: Run) -> str:
    return "\n".join(judge(found).warnings)


def test_weak_percentiles_are_named() -> None:
    slower = enough(100, ttft_ms=200, itl_ms=25)
    text = warnings(run(worker(0, *enough(400), *slower)))
    assert "p99 of ttft_s, ttft_due_s, tpot_s" in text
    assert "(n = 500)" in text
    # 5,000 gaps: p999 has five values beyond it
    assert "p999 of itl_s (n = 5000)" in text
    assert "prompt_tokens" not in text  # all are 100


def test_what_should_be_known_is_a_warning_and_no_reason() -> None:
    found = run(worker(0, *enough()), warnings=["probe: prompt_check: unavailable"])
    warmup, main = found.workers["w0"].snapshot.stage(0), found.workers["w0"].snapshot.stage(1)
    warmup.dropped = 4
    main.batched_reads, main.unstamped_reads = 440, 110
    main.source_differs, main.retries, main.retry_wait_ns = 2, 3, 4 * S
    verdict = judge(found)
    assert verdict.valid
    assert verdict.warnings[0] == "probe: prompt_check: unavailable"
    text = "\n".join(verdict.warnings)
    for part in ("4 arrivals were dropped during warm-up", "20.0% of reads brought several",
                 "5.0% of reads had no kernel time stamp", "2 answers had another number",
                 "3 retries, which waited 4.0 s"):  # fmt: skip
        assert part in text


def test_users_who_wait_for_their_prompts_make_a_run_invalid() -> None:
    starving = worker(0, *enough())
    health = starving.snapshot.health
    health.slots_ns, health.starved_ns = 900 * S, 100 * S
    assert codes(run(starving)) == ["generator_saturated"]
    health.starved_ns = 40 * S  # under the limit of 5 %
    assert codes(run(starving)) == []


def test_a_blink_of_waiting_says_nothing_of_a_worker() -> None:
    starving = worker(0, *enough())
    health = starving.snapshot.health
    health.slots_ns, health.starved_ns = S // 2, S * 4 // 10
    assert codes(run(starving)) == []
    health.slots_ns, health.starved_ns = S // 2, S * 6 // 10
    assert codes(run(starving)) == ["generator_saturated"]
