from __future__ import annotations

import io
from typing import Any

import pytest
from hand_made import S, objectives, record, run, worker, workload

from exporters import console as console_module
from exporters import summary
from exporters.console import Console, Screen
from exporters.units import number, seconds, share
from tokenswarm.records import Outcome
from tokenswarm.run import Run, Worker
from tokenswarm.workload_model import Hardware


class Clock:
    """Both clocks of the console, moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(console_module.time, "time", made)
    return made


def screen(terminal: bool = False) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(file=out, force_terminal=terminal, width=100, highlight=False), out


def made(**over: Any) -> Run:
    rs = [record(k, due_s=10 + k * 0.02, ttft_ms=50 + k) for k in range(900)]
    warm = [record(2000 + k, stage=0, due_s=k) for k in range(5)]
    bad = [record(3000 + k, Outcome.HTTP_ERROR, error=f"HTTP 500: {'x' * 300}") for k in range(3)]
    facts: dict[str, Any] = {"start_ns": 100 * S, "started": 100.0}
    return run(worker(0, *rs, *warm), worker(1, *bad), **{**facts, **over})


def lines(out: io.StringIO) -> list[str]:
    return out.getvalue().splitlines()


def test_a_log_gets_a_line_after_two_seconds_and_then_every_ten(clock: Clock) -> None:
    target, out = screen()
    shown = Console(target, clock)
    found = made(state="running")
    shown.start(found)
    assert lines(out) == ["hand-made: http://127.0.0.1:8000"]
    seen = []
    for second in range(1, 31):
        clock.now = 100.0 + second
        before = len(lines(out))
        shown.interval(found)
        if len(lines(out)) > before:
            seen.append(second)
    assert seen == [2, 12, 22]


def test_the_line_shows_load_rates_latencies_and_errors(clock: Clock) -> None:
    target, out = screen()
    shown = Console(target, clock)
    found = made(state="running")
    snapshot = found.workers["w0"].snapshot
    snapshot.health.users, snapshot.health.in_flight = 4, 3
    shown.start(found)
    snapshot.live_tokens = 9955
    clock.now = 115.0
    shown.interval(found)
    assert lines(out)[-1] == (
        "0:15 main: 4 users, 3 in flight, 60.3 req/s, 663.7 tok/s, TTFT 497 ms / 940 ms "
        "ITL 20 ms / 20 ms (p50 / p99), errors: 3 http_error"
    )


def test_latencies_are_those_of_the_last_ten_seconds(clock: Clock) -> None:
    target, _ = screen()
    shown = Console(target, clock)
    slow = worker(0, *[record(k, ttft_ms=900) for k in range(50)])
    found = run(slow, state="running", start_ns=100 * S)
    shown.start(found)
    for second in range(1, 16):
        clock.now = 100.0 + second
        if second == 12:
            found.workers["w1"] = worker(1, *[record(k, ttft_ms=100) for k in range(50)])
        shown.interval(found)
    now = shown._look(found)
    assert now.recent["TTFT"]["count"] == 50
    assert now.recent["TTFT"]["p99"] == pytest.approx(0.1, rel=1e-3)
    assert now.overall["TTFT"]["count"] == 100
    assert now.overall["TTFT"]["p99"] == pytest.approx(0.9, rel=1e-3)
    assert now.requests_per_s == 5


def test_an_open_loop_shows_planned_and_achieved_rate(clock: Clock) -> None:
    target, out = screen()
    shown = Console(target, clock)
    found = made(mode="open", state="running", planned_rate=20.0)
    shown.start(found)
    clock.now = 105.0
    shown.interval(found)
    assert "0:05 warmup: 181.6/s sent, 20/s planned" in lines(out)[-1]


def test_a_terminal_gets_a_table_that_is_redrawn(clock: Clock) -> None:
    target, out = screen(terminal=True)
    shown = Console(target, clock)
    slo = {"p90(ttft)": "<2s", "p90(tpot)": "<5ms", "output_tokens_per_s": ">1"}
    found = made(state="running", objectives=objectives(slo))
    shown.start(found)
    clock.now = 112.0
    shown.interval(found)
    text = out.getvalue()
    for part in ("hand-made  running  0:12, 0:18 left", "TTFT p50 / p99", "last 10 s", "overall",
                 "3 http_error", "2 ready; CPU up to 0%", "2 of 3 hold so far",
                 "p90(tpot) <5ms: 20 ms"):  # fmt: skip
        assert part in text
    shown.close()
    assert out.getvalue().endswith("\x1b[2K") or "\x1b[?25h" in out.getvalue()


def printed(found: Run, width: int = 100) -> str:
    out = io.StringIO()
    shown = Console(Screen(file=out, width=width, highlight=False))
    shown.finish(found, summary.build(found))
    return out.getvalue()


def test_the_summary_fits_100_columns_and_shows_the_same_numbers() -> None:
    found = made(objectives=objectives({"p90(ttft)": "<2s", "p90(tpot)": "<5ms", "ttft": "<1s"}))
    text = printed(found)
    made_summary = summary.build(found)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    assert text.startswith("VALID RUN, an SLO failed\n")
    assert "908 due, 908 sent: 905 ok, 3 failed, 0 dropped, 0 lost" in text
    assert seconds(made_summary["metrics"]["ttft_s"]["p99"]) in text
    assert "PASS p90(ttft) <2s: " in text
    assert "FAIL p90(tpot) <5ms: 20 ms, wanted <5ms" in text
    assert "3 http_error: HTTP 500:" in text
    assert "warmup *" in text
    assert "% of requests met every SLO" in text


def test_price_and_utilization_are_shown_where_the_hardware_is_described() -> None:
    hardware = Hardware(gpu="A100-SXM-80GB", count=2, usd_per_hour=36.0, utilization=0.5,
                        model={"parameters": 7e9, "tensor_parallel": 1})  # fmt: skip
    found = run(worker(0, *[record(k) for k in range(100)]), workload=workload(hardware=hardware))
    use = summary.build(found)["utilization"]
    text = printed(found)
    assert "USD per million tokens: 40 input, 364 output, 36 total" in text
    assert (f"MBU {share(use['mbu'])}, MFU {share(use['mfu'])} of 2 x A100-SXM-80GB; 0.5 sequences "
            "a replica") in text  # fmt: skip


def test_the_verdict_of_an_invalid_run_comes_first_with_its_reasons() -> None:
    found = made(faults=[("worker_lost", "worker w1 died"), ("cut_short", "Ctrl-C")])
    head = printed(found).splitlines()[:3]
    assert head == [
        "INVALID RUN: its numbers must not be used",
        "  worker_lost: worker w1 died",
        "  cut_short: Ctrl-C",
    ]


def test_a_good_run_says_so() -> None:
    found = run(worker(0, *[record(k) for k in range(100)]))
    assert printed(found).splitlines()[0] == "VALID RUN, SLOs passed"


def test_markup_in_texts_is_shown_as_it_is() -> None:
    found = made(faults=[("internal_error", "[red]not markup[/red]")])
    assert "[red]not markup[/red]" in printed(found)


def test_a_run_that_did_nothing_has_a_summary_too() -> None:
    assert "0 due, 0 sent" in printed(run(Worker("w0", 0, k=0, final=True)))


def test_where_the_files_are(tmp_path: Any) -> None:
    assert f"Files in {tmp_path}" in printed(made(out=tmp_path)).replace("\n", "")


def test_a_closed_pipe_silences_the_console(clock: Clock) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    found = made()
    shown = Console(Screen(file=Closed(), width=100), clock)
    shown.start(found)
    clock.now = 110.0
    shown.interval(found)
    shown.finish(found, summary.build(found))
    shown.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (7, "7"), (1234567, "1,234,567"), (0.01234, "0.0123"),
     (12.345, "12.3"), (123.456, "123.5"), (12345.6, "12,346")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0 ms"), (0.0000123, "12.3 us"), (0.0123456, "12.3 ms"), (0.2484, "248 ms"),
     (1.5, "1.5 s"), (1600, "1,600 s")],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_shares() -> None:
    assert [share(v) for v in (None, 0.0123, 1.0)] == ["-", "1.23 %", "100 %"]
