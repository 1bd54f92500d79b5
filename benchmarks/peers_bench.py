"""Four tools, one job, one truth: `python -m benchmarks.peers_bench`.

Each tool in turn, on one core, against the ground truth server on the other, at 64, 256 and 1,024
streams of a token every 20 ms; what it reports stands beside what the server did while it ran.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.ground_truth.truth import Truth, ground_truth, quantile
from benchmarks.peers import PEERS, Job, Reported, environment
from benchmarks.process_tree import Usage, measured
from benchmarks.publish import circumstances, publish, table
from benchmarks.stream_bench import CLIENT_CORE, ITL_MS, SERVER_CORE, TTFT_MS, prepare

STREAMS = (64, 256, 1024)
INPUT_TOKENS, OUTPUT_TOKENS = 128, 100
TIMEOUT_S = 600
COLOURS = {
    "tokenswarm": "#2f6fdf", "aiperf": "#e08a2e", "guidellm": "#3f9f6b", "vllm bench": "#a05fc0",
}  # fmt: skip


def rounds(streams: int) -> int:
    """Answers a stream: the more streams, the fewer, so that a slow tool comes to an end."""
    return 10 if streams <= 256 else 5


@dataclass(frozen=True)
class Point:
    """One tool at one number of streams."""

    tool: str
    streams: int
    requests: int
    failure: str | None
    true: Reported | None
    reported: Reported | None
    tokens_per_s: float
    possible_tokens_per_s: float
    most_streams: int
    us_per_event: float
    whole_us_per_event: float
    peak_mb: float
    first_request_s: float
    first_request_cpu_s: float


def true_figures(truth: Truth) -> Reported:
    """What the server did."""
    served = truth.of_length(OUTPUT_TOKENS)
    ttft, tpot = [s.ttft_ms for s in served], [s.tpot_ms for s in served]
    return Reported(*(quantile(values, q) for values in (ttft, tpot) for q in (0.5, 0.99)))


def measure(tool: str, streams: int, keep: Path | None) -> Point:
    """Run one tool at one number of streams."""
    peer = PEERS[tool]
    requests = streams * rounds(streams)
    with tempfile.TemporaryDirectory() as name:
        folder = keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        with ground_truth(
            core=SERVER_CORE,
            ttft_ms=TTFT_MS,
            itl_ms=ITL_MS,
            prompt_usage=not peer.checks_prompts,
        ) as truth:
            job = Job(truth.url, streams, requests, INPUT_TOKENS, OUTPUT_TOKENS, folder)
            usage = measured(
                [str(peer.program), *peer.command(job)],
                core=CLIENT_CORE,
                log=folder / "log",
                timeout_s=TIMEOUT_S,
                environment=environment(peer),
            )
        try:
            reported, failure = peer.read(folder), None
        except (OSError, LookupError, StopIteration, TypeError, ValueError) as e:
            last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
            reported, failure = None, f"exit code {usage.code}, {e!r}: {last}"
    return _point(tool, streams, truth, usage, reported, failure)


def _point(
    tool: str, streams: int, truth: Truth, usage: Usage, reported: Reported | None,
    failure: str | None,
) -> Point:  # fmt: skip
    served = truth.of_length(OUTPUT_TOKENS)
    if not served:
        nan = math.nan
        return Point(tool, streams, 0, failure or "nothing was sent", None, reported,
                     nan, nan, 0, nan, nan, usage.peak_mb, nan, nan)  # fmt: skip
    begin, end = min(s.received for s in served), max(s.last for s in served)
    events = len(served) * OUTPUT_TOKENS
    answer_s = (TTFT_MS + ITL_MS * (OUTPUT_TOKENS - 1)) / 1e3
    return Point(
        tool=tool,
        streams=streams,
        requests=len(served),
        failure=failure,
        true=true_figures(truth),
        reported=reported,
        tokens_per_s=events / (end - begin),
        possible_tokens_per_s=streams * OUTPUT_TOKENS / answer_s,
        most_streams=truth.max_streams,
        us_per_event=usage.cpu_between(begin, end) / events * 1e6,
        whole_us_per_event=usage.cpu_s[-1] / events * 1e6,
        peak_mb=usage.peak_mb,
        first_request_s=begin - usage.started,
        first_request_cpu_s=usage.cpu_until(begin),
    )


def both(point: Point, name: str) -> str:
    """A figure as the server knows it and as the tool reports it."""
    if point.true is None or point.reported is None:
        return "-"
    true, reported = getattr(point.true, name), getattr(point.reported, name)
    digits = 1 if name.startswith("ttft") else 2
    return f"{true:,.{digits}f} / {reported:,.{digits}f}"


def markdown(points: list[Point]) -> str:
    """The points as a table; latencies are true / reported."""
    return table(
        [
            {
                "streams": f"{p.streams:,}",
                "tool": p.tool,
                "TTFT p50, ms": both(p, "ttft_p50"),
                "TTFT p99": both(p, "ttft_p99"),
                "TPOT p50": both(p, "tpot_p50"),
                "TPOT p99": both(p, "tpot_p99"),
                "tokens/s (of possible)": f"{p.tokens_per_s:,.0f} "
                f"({p.tokens_per_s / p.possible_tokens_per_s:.0%})",
                "CPU, us an event (whole run)": f"{p.us_per_event:.0f} "
                f"({p.whole_us_per_event:.0f})",
                "peak memory, MB": f"{p.peak_mb:,.0f}",
                "s to the first request (CPU s)": f"{p.first_request_s:.1f} "
                f"({p.first_request_cpu_s:.1f})",
            }
            for p in points
            if p.true is not None
        ]
    )


def figure(points: list[Point]) -> Any:
    """How far the reported TTFT p99 is from the truth, what an event costs, what arrived."""
    from plotly.subplots import make_subplots  # slow to import, wanted only at the end

    titles = ("TTFT p99: reported minus true, ms", "CPU of a token event, us",
              "tokens delivered, of the possible")  # fmt: skip
    drawing = make_subplots(cols=3, subplot_titles=titles, horizontal_spacing=0.07)
    for tool in dict.fromkeys(p.tool for p in points):
        mine = [p for p in points if p.tool == tool and p.true and p.reported]
        names = [f"{p.streams:,}" for p in mine]
        columns = [
            [abs(p.reported.ttft_p99 - p.true.ttft_p99) for p in mine if p.reported and p.true],
            [p.us_per_event for p in mine],
            [100 * p.tokens_per_s / p.possible_tokens_per_s for p in mine],
        ]
        for column, values in enumerate(columns, start=1):
            texts = [f"{v:.0f}%" if column == 3 else f"{v:,.3g}" for v in values]
            drawing.add_bar(
                x=names, y=values, name=tool, marker_color=COLOURS[tool], row=1, col=column,
                text=texts, textposition="outside", cliponaxis=False, showlegend=column == 1,
            )  # fmt: skip
    drawing.update_yaxes(type="log", dtick=1, row=1, col=1)
    drawing.update_xaxes(title_text="streams at once", type="category")
    drawing.update_layout(
        width=1400, height=440, template="plotly_white", font_size=13,
        margin={"l": 50, "r": 20, "t": 50, "b": 90}, legend={"orientation": "h", "y": -0.25},
    )  # fmt: skip
    return drawing


def main() -> None:
    """Run every tool at each number of streams and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--tools", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--keep", type=Path, help="folder for what the tools write")
    args = parser.parse_args()
    prepare()
    points: list[Point] = []
    versions = {tool: PEERS[tool].version for tool in args.tools if PEERS[tool].version}
    about = circumstances(**versions)
    for n in args.streams:
        for tool in args.tools:
            print(f"{n} streams: {tool}", flush=True)
            keep = args.keep / f"{tool.replace(' ', '-')}-{n}" if args.keep else None
            points.append(measure(tool, n, keep))
            if points[-1].failure:
                print(f"  {points[-1].failure}", flush=True)
        # After every number of streams: a long run that is cut short has told something.
        publish("peers", about, [asdict(p) for p in points], markdown(points), figure(points))


if __name__ == "__main__":
    main()
