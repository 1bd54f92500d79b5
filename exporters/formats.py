"""`tokenswarm export --format NAME DIR`: a run's results in the forms of other tools.

It reads a run's files and knows nothing of a Run. A format is one function from a folder to
pieces of bytes and one row of FORMATS; the first line of its docstring is its help.

The one subtle rule: figures come from summary.json wherever it has them, so that a number is
the same number in every form.
"""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from exporters.request_log import EXTRAS, read, rows
from exporters.summary import FILE as SUMMARY
from exporters.summary import REQUESTS
from tokenswarm.histogram import Histogram
from tokenswarm.measure import METRICS, NS, values
from tokenswarm.records import BadInput, Outcome, Record

STEP_S = 15  # between two samples of a series, as of a usual scrape
_MS = 1e3


def csv_table(folder: Path) -> Iterator[bytes]:
    """One row a request with the columns of requests.jsonl, for spreadsheets."""
    columns: list[str] = []
    for row in rows(_requests(folder)):
        if not columns:
            columns = [n for n in row if n != "itl_s" and n not in EXTRAS] + list(EXTRAS)
            yield _csv_line(columns)
        yield _csv_line([row.get(name) for name in columns])


def _csv_line(cells: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(value) for value in cells])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is made a text again."""
    risky = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if risky else value


def vllm_bench(folder: Path) -> Iterator[bytes]:
    """The JSON that `vllm bench serve --save-result --save-detailed` writes."""
    summary = _summary(folder)
    rates, metrics = summary["throughput"], summary["metrics"]
    measured = [row for row in rows(_requests(folder)) if not row["warmup"]]
    ok = [row for row in measured if row["outcome"] == "ok"]
    about = summary["run"]
    out: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.localtime(about["started"])),
        "endpoint_type": about["backend"],
        "backend": about["backend"],
        "label": about["name"],
        "model_id": about["model"],
        "tokenizer_id": about["tokenizer"],
        "num_prompts": len(measured),
        "request_rate": _request_rate(summary),
        "max_concurrency": _concurrency(summary),
        "duration": summary["window"]["seconds"],
        "completed": len(ok),
        "failed": len(measured) - len(ok),
        "total_input_tokens": sum(row["prompt_tokens"] for row in ok),
        "total_output_tokens": sum(row["output_tokens"] or 0 for row in ok),
        "request_throughput": rates["requests_per_s"],
        "request_goodput": summary["slo"]["goodput_per_s"],
        "output_throughput": rates["output_tokens_per_s"],
        "total_token_throughput": rates["total_tokens_per_s"],
        "input_lens": [row["prompt_tokens"] for row in measured],
        "output_lens": [row["output_tokens"] or 0 for row in measured],
        "ttfts": [row["ttft_s"] or 0.0 for row in measured],
        "itls": [row.get("itl_s") or [] for row in measured],
        "latencies": [row["e2e_s"] or 0.0 for row in measured],
        "start_times": [row["sent"] for row in measured],
        "errors": [row["error"] or "" for row in measured],
    }
    names = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
    for theirs, ours in names.items():
        out |= _vllm_metric(theirs, metrics[ours], [row.get(ours) for row in ok])
    yield orjson.dumps(out, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _vllm_metric(name: str, figures: dict[str, Any], found: list[Any]) -> dict[str, Any]:
    """mean, median, std and percentiles in milliseconds; null where they are not known."""
    samples = [v for value in found if value is not None
               for v in (value if isinstance(value, list) else [value])]  # fmt: skip
    std = statistics.pstdev(samples) * _MS if samples else None
    theirs = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    out = {
        f"{word}_{name}_ms": figures[ours] * _MS if figures[ours] is not None else None
        for word, ours in theirs.items()
    }
    return {**out, f"std_{name}_ms": std}


def _request_rate(summary: dict[str, Any]) -> float | str:
    """Requests a second of the measured stages; "inf" for a closed loop, as there."""
    rates = [s["rate_per_s"] for s in summary["stages"] if not s["warmup"]]
    known = [r for r in rates if r is not None]
    return max(known) if known else "inf"


def _concurrency(summary: dict[str, Any]) -> int | None:
    users = [s["users"] for s in summary["stages"] if not s["warmup"] and s["users"] is not None]
    return max(users) if users else None


def openmetrics(folder: Path) -> Iterator[bytes]:
    """Counters and histograms over time: promtool tsdb create-blocks-from openmetrics FILE."""
    name = _summary(folder)["run"]["name"]
    steps = _Steps()
    for record, row in read(_requests(folder)):
        steps.add(record, row["stage"], "itl_s" in row)
    yield from _counter_series("requests", "outcome", steps, steps.outcomes)
    for token_kind, counts in (("prompt_tokens", steps.prompt), ("output_tokens", steps.output)):
        yield from _counter_series(token_kind, "", steps, {"": counts})
    for metric_name, by_stage in steps.histograms.items():
        yield from _histogram_series(metric_name, name, steps, by_stage)
    yield b"# EOF\n"


class _Steps:
    """What ended in each step of STEP_S, by what it is labelled with."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[int, int]] = {o.value: {} for o in Outcome}
        self.prompt: dict[int, int] = {}
        self.output: dict[int, int] = {}
        self.histograms: dict[str, dict[str, dict[int, Histogram]]] = {
            name: {} for name, m in METRICS.items() if m.prometheus
        }
        self.last = -1
        self.first: int | None = None

    def add(self, record: Record, stage: str, with_itl: bool) -> None:
        """Count a request in the step in which it ended; its ITL where the gaps are known."""
        step = (record.end_ns or record.due_ns) // (STEP_S * NS) + 1
        self.first = step if self.first is None else min(step, self.first)
        self.last = max(self.last, step)
        for counts, n in (
            (self.outcomes[record.outcome.value], 1),
            (self.prompt, record.prompt_tokens),
            (self.output, record.output_tokens or 0),
        ):
            counts[step] = counts.get(step, 0) + n
        for name, by_stage in self.histograms.items():
            samples = values(record, METRICS[name])
            if samples and (name != "itl_s" or with_itl):
                by_step = by_stage.setdefault(stage, {})
                h = by_step.setdefault(step, Histogram(METRICS[name].bounds))
                h.record_all(samples)

    def times(self) -> range:
        """Every step, one with noughts before the first so that a rate has a beginning."""
        return range((self.first or 0) - 1, self.last + 1)


def _head(name: str, kind: str, text: str) -> bytes:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()


def _counter_series(
    name: str, label: str, steps: _Steps, counts: dict[str, dict[int, int]]
) -> Iterator[bytes]:
    yield _head(f"tokenswarm_{name}", "counter", "From requests.jsonl")
    for value, by_step in counts.items():
        labels = f'{{{label}="{value}"}}' if label else ""
        total = 0
        for step in steps.times():
            total += by_step.get(step, 0)
            yield f"tokenswarm_{name}_total{labels} {total} {step * STEP_S}\n".encode()


def _histogram_series(
    metric_name: str, workload: str, steps: _Steps, by_stage: dict[str, dict[int, Histogram]]
) -> Iterator[bytes]:
    """Cumulative buckets; all samples of an instant stand together, as OpenMetrics wants it."""
    metric = METRICS[metric_name]
    family = metric.prometheus
    yield _head(family, "histogram", metric.help)
    edges = [*(str(bound / metric.scale) for bound in metric.bounds), "+Inf"]
    for stage, by_step in by_stage.items():
        labels = f'workload="{_escape(workload)}",stage="{_escape(stage)}"'
        totals = Histogram(metric.bounds)
        for step in steps.times():
            if step in by_step:
                totals.merge(by_step[step])
            at = step * STEP_S
            counts = zip(edges, accumulate(totals.exact), strict=True)
            point = [f'{family}_bucket{{{labels},le="{le}"}} {n} {at}\n' for le, n in counts]
            point.append(f"{family}_count{{{labels}}} {totals.n} {at}\n")
            point.append(f"{family}_sum{{{labels}}} {totals.sum / metric.scale} {at}\n")
            yield "".join(point).encode()


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


FORMATS: dict[str, Callable[[Path], Iterator[bytes]]] = {
    "csv": csv_table,
    "vllm-bench": vllm_bench,
    "openmetrics": openmetrics,
}


def export(folder: str | Path, name: str, out: BinaryIO) -> None:
    """Write a run in another tool's form. Raises BadInput for an unknown form or no run."""
    if name not in FORMATS:
        raise BadInput(
            f"--format {name}: unknown format '{name}'. Expected one of: {', '.join(FORMATS)}"
        )
    for piece in FORMATS[name](Path(folder)):
        out.write(piece)


def _requests(folder: Path) -> Path:
    path = folder / REQUESTS
    if not path.is_file():
        raise BadInput(f"{path}: not there. The run needs record.requests: true")
    return path


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise BadInput(
            f"{path}: cannot be read ({error}). tokenswarm report {folder} makes it anew"
        ) from error
    return found
