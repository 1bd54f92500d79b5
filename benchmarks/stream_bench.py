"""How true are the figures, and what does a token event cost? `python -m benchmarks.stream_bench`.

The ground truth server has one core and tokenswarm the other; at 64 to 2,048 streams of a token
every 20 ms, what tokenswarm reports stands beside what the server did, and its CPU beside the
read limit.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import product
from benchmarks.ground_truth.truth import Limit, Served, Truth, ground_truth, quantile, read_limit
from benchmarks.process_tree import Usage, measured
from benchmarks.publish import circumstances, publish, table

STREAMS = (64, 256, 1024, 2048)
TTFT_MS, ITL_MS = 100, 20
TOKENS, ROUNDS = 100, 10  # of an answer; answers a stream
SERVER_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True)
class Figures:
    """Latencies of a run, in milliseconds, as somebody reports them."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    itl_p50: float
    itl_p99: float


@dataclass(frozen=True)
class Point:
    """One number of streams: the truth, what was reported, and what it cost."""

    streams: int
    requests: int
    true: Figures
    reported: Figures
    valid: bool
    invalid_reasons: list[str]
    stamp_after_us_p50: float
    stamp_after_us_p99: float
    events_per_s: float
    us_per_event: float
    peak_mb: float
    start_s: float
    server_us_per_event: float
    limit: Limit


def true_figures(truth: Truth, served: list[Served]) -> Figures:
    """What the server did."""
    ttft, tpot = [s.ttft_ms for s in served], [s.tpot_ms for s in served]
    return Figures(
        quantile(ttft, 0.5), quantile(ttft, 0.99), quantile(tpot, 0.5), quantile(tpot, 0.99),
        truth.itl_ms(0.5), truth.itl_ms(0.99),
    )  # fmt: skip


def reported_figures(metrics: dict[str, Any]) -> Figures:
    """What summary.json says, in milliseconds."""
    return Figures(
        *(metrics[name][q] * 1e3 for name in ("ttft_s", "tpot_s", "itl_s") for q in ("p50", "p99"))
    )


def stamps_after_us(served: list[Served], firsts: list[float]) -> list[float]:
    """From handing a first token to the kernel to its stamp here, both in order of time.

    This is the error of the clockwork alone: a request that waits in the server's socket before it
    is read makes TTFT longer for a client than for the server's log, and rightly so.
    """
    pairs = zip(sorted(s.first for s in served), firsts, strict=True)
    return [(here - there) * 1e6 for there, here in pairs]


def one_run(streams: int, folder: Path) -> tuple[Truth, Usage, dict[str, Any]]:
    """tokenswarm against the ground truth, one core each."""
    content = product.workload(
        kind="openai-completions", users=streams, requests=streams * ROUNDS,
        input_tokens=64, output_tokens=TOKENS,
    )  # fmt: skip
    with ground_truth(core=SERVER_CORE, ttft_ms=TTFT_MS, itl_ms=ITL_MS, prompt_usage=0) as truth:
        command = product.command(content, truth.url, folder)
        usage = measured(command, core=CLIENT_CORE, log=folder / "log", timeout_s=400)
    product.require_answers(usage.code, folder, truth.served)
    return truth, usage, product.summary(folder)


def limit_at(streams: int) -> Limit:
    """The cheapest reader at the same load."""
    with ground_truth(core=SERVER_CORE, ttft_ms=TTFT_MS, itl_ms=ITL_MS, prompt_usage=0) as truth:
        return read_limit(
            truth, core=CLIENT_CORE, streams=streams, requests=streams * ROUNDS, tokens=TOKENS
        )


def measure(streams: int) -> Point:
    """Everything about one number of streams."""
    limit = limit_at(streams)
    with tempfile.TemporaryDirectory() as name:
        truth, usage, summary = one_run(streams, Path(name))
        firsts = product.first_tokens(Path(name))
    served = truth.of_length(TOKENS)
    events = len(served) * TOKENS
    # The server's log and ours must tell of the same requests.
    counted = (summary["requests"]["ok"], summary["tokens"]["output"])
    if counted != (len(served), events):
        raise SystemExit(f"tokenswarm counted {counted}, the server {(len(served), events)}")
    stamps = stamps_after_us(served, firsts)
    begin, end = min(s.received for s in served), max(s.last for s in served)
    return Point(
        streams=streams,
        requests=len(served),
        true=true_figures(truth, served),
        reported=reported_figures(summary["metrics"]),
        valid=summary["valid"],
        invalid_reasons=[reason["code"] for reason in summary["invalid_reasons"]],
        stamp_after_us_p50=quantile(stamps, 0.5),
        stamp_after_us_p99=quantile(stamps, 0.99),
        events_per_s=events / (end - begin),
        us_per_event=usage.cpu_between(begin, end) / events * 1e6,
        peak_mb=usage.peak_mb,
        start_s=begin - usage.started,
        server_us_per_event=truth.cpu_s / events * 1e6,
        limit=limit,
    )


def both(point: Point, name: str) -> str:
    """A figure as the server knows it and as tokenswarm reports it."""
    return f"{getattr(point.true, name):.2f} / {getattr(point.reported, name):.2f}"


def markdown(points: list[Point]) -> str:
    """The points as a table; latencies are true / reported."""
    return table(
        [
            {
                "streams": f"{p.streams:,}",
                "TTFT p50, ms": both(p, "ttft_p50"),
                "TTFT p99": both(p, "ttft_p99"),
                "TPOT p50": both(p, "tpot_p50"),
                "ITL p50": both(p, "itl_p50"),
                "ITL p99": both(p, "itl_p99"),
                "first token's stamp after its send, us p50 / p99": (
                    f"{p.stamp_after_us_p50:.0f} / {p.stamp_after_us_p99:.0f}"
                ),
                "events/s": f"{p.events_per_s:,.0f}",
                "CPU, us an event": f"{p.us_per_event:.1f}",
                "read limit, us": f"{p.limit.us_per_event:.1f}",
                "peak memory, MB": f"{p.peak_mb:,.0f}",
                "run believed": "yes" if p.valid else "no: " + ", ".join(p.invalid_reasons),
            }
            for p in points
        ]
    )


def figure(points: list[Point]) -> Any:
    """TTFT p99 true and reported, and CPU an event beside the limit."""
    from plotly.subplots import make_subplots  # slow to import, wanted only at the end

    names = [f"{p.streams:,}" for p in points]
    drawing = make_subplots(
        cols=2,
        subplot_titles=("TTFT p99, ms", "CPU of a token event, us"),
        horizontal_spacing=0.1,
    )
    bars = [
        (1, "true", "#8a8f98", [p.true.ttft_p99 for p in points]),
        (1, "tokenswarm", "#2f6fdf", [p.reported.ttft_p99 for p in points]),
        (2, "read limit in C", "#8a8f98", [p.limit.us_per_event for p in points]),
        (2, "tokenswarm", "#2f6fdf", [p.us_per_event for p in points]),
    ]
    for column, name, colour, values in bars:
        drawing.add_bar(
            x=names, y=values, name=name, marker_color=colour, row=1, col=column,
            text=[f"{value:.1f}" for value in values], textposition="outside", cliponaxis=False,
            showlegend=column == 2 or name == "true",
        )  # fmt: skip
    drawing.update_xaxes(title_text="streams at once, one token every 20 ms each", type="category")
    drawing.update_layout(
        width=1100, height=420, template="plotly_white", font_size=13,
        margin={"l": 50, "r": 20, "t": 50, "b": 90}, legend={"orientation": "h", "y": -0.25},
    )  # fmt: skip
    return drawing


def main() -> None:
    """Measure at each number of streams and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    streams = parser.parse_args().streams
    prepare()
    points: list[Point] = []
    about = circumstances()
    for n in streams:
        print(f"{n} streams: {n * ROUNDS:,} requests of {TOKENS} tokens", flush=True)
        points.append(measure(n))
        # After every number of streams: a long run that is cut short has told something.
        publish("streams", about, [asdict(p) for p in points], markdown(points), figure(points))


def prepare() -> None:
    """Build the prompt index once, outside every measurement."""
    content = product.workload(
        kind="openai-completions", users=1, requests=1, input_tokens=64, output_tokens=2
    )
    with tempfile.TemporaryDirectory() as name, ground_truth(core=SERVER_CORE, ttft_ms=1) as truth:
        subprocess.run(
            product.warm_up(truth.url, Path(name), content), check=False, capture_output=True
        )


if __name__ == "__main__":
    main()
