"""summary.json: one run's answer, built here once and read by console, report, JUnit and compare.

It knows the keys of the file and puts into them what figures.py counted and validity.py judged.
`requests` and `tokens` cover the whole run, warm-up included; `metrics`, `slo` and `throughput`
what counts, the measured stages.

The one subtle rule: no figure is computed here that could be computed twice. Only the 95 %
intervals are, from requests.jsonl, because they need every request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from exporters import files, summary_intervals
from tokenswarm import economics, figures
from tokenswarm.records import BadInput
from tokenswarm.run import Run, Worker
from tokenswarm.validity import (
    Verdict,
    judge,
    kernel_stamp_share,
    loop_lag_p99_s,
    share,
    starved_share,
)

SCHEMA = 1
FILE = "summary.json"
REQUESTS = summary_intervals.REQUESTS
MOST_ERRORS = 100  # different texts; each worker keeps a few of every outcome


def build(run: Run, verdict: Verdict | None = None) -> dict[str, Any]:
    """The content of summary.json. Judges the run when no verdict is given."""
    verdict = verdict or judge(run)
    found = verdict.figures or figures.of(run)
    snapshot = run.merged
    total = snapshot.total()
    warnings = list(verdict.warnings)
    found = summary_intervals.add(run, found, warnings)
    made = {
        "schema": SCHEMA,
        "run": _about(run),
        "valid": verdict.valid,
        "invalid_reasons": [{"code": c, "detail": detail} for c, detail in verdict.reasons],
        "exit_code": verdict.exit_code,
        "window": found["window"],
        "requests": figures.requests(total),
        "tokens": {"prompt": total.prompt_tokens, "output": total.output_tokens},
        "makespan_s": _makespan_s(run),
        "steady_state": run.steady_state,
        "throughput": found["throughput"],
        "metrics": found["metrics"],
        "slo": _slo(run, verdict, found),
        "errors": _errors(total.errors),
        "probe": run.probe,
        "prompts": {
            "exact": total.exact,
            "compared": total.compared,
            "difference": {str(d): n for d, n in sorted(total.differences.items()) if d},
        },
        "generator": {"workers": [_worker(run, w) for w in run.workers.values()]},
        "stages": found["stages"],
        "cost": economics.cost(_hardware(run), found["throughput"]),
        "utilization": None,
        "server": run.server,
        "urls": figures.urls(total),
        "warnings": warnings,
    }
    made["utilization"] = _utilization(run, made)
    return made


def _about(run: Run) -> dict[str, Any]:
    workload = run.workload
    tokenizer = workload.tokenizer
    return {
        "id": run.id,
        "name": workload.name,
        "started": run.started,
        "ended": run.ended,
        "host": run.host,
        "backend": str(workload.backend.kind),
        "model": workload.backend.model,
        "tokenizer": f"{tokenizer.source}:{tokenizer.path}" if tokenizer is not None else None,
        "seed": workload.seed,
        "nonce": getattr(workload, "nonce", None),
        "load": str(workload.load.mode),
        "workers": sum(w.k is not None for w in run.workers.values()),
        "versions": run.versions,
    }


def _makespan_s(run: Run) -> float | None:
    """First request sent to last end of the run; None when nothing was sent."""
    snapshot = run.merged
    first, last = snapshot.first_sent_s, snapshot.last_event_s
    return max(0.0, last - first) if first is not None and last is not None else None


def _slo(run: Run, verdict: Verdict, found: dict[str, Any]) -> dict[str, Any]:
    """The verdict on the SLOs: passed is null when none failed and one has too few samples."""
    outcomes = [check.passed for check in verdict.checks]
    passed = False if False in outcomes else None if None in outcomes else True
    objectives = {o.key: o for o in run.objectives}
    checks = []
    for c in verdict.checks:
        o = objectives.get(c.key)
        checks.append({
            "key": c.key, "text": c.text, "actual": c.actual, "passed": c.passed,
            "detail": c.detail, "stage": c.stage, "per_request": c.per_request,
            "metric": o.metric if o else None, "bound": o.bound if o else None,
        })  # fmt: skip
    return {
        "passed": passed, **found["slo"], "error_ratio": found["error_ratio"], "checks": checks,
    }  # fmt: skip


def _errors(errors: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """The most frequent error texts with their counts; by_outcome has them all counted."""
    ordered = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:MOST_ERRORS]
    return [{"outcome": o, "error": text, "count": n} for (o, text), n in ordered]


def _worker(run: Run, worker: Worker) -> dict[str, Any]:
    """How one worker fared. cpu is its highest share of a core over an interval between reports."""
    health, stats = worker.snapshot.health, worker.snapshot.total()
    return {
        "id": worker.id,
        "index": worker.index,
        "host": worker.host,
        "state": worker.state,
        "cpu": health.cpu_max,
        "loop_lag_p99_s": loop_lag_p99_s(worker),
        "coalesced_share": share(stats.coalesced_reads, stats.reads),
        "kernel_stamp_share": kernel_stamp_share(stats),
        "starved_share": starved_share(worker),
        "rss_bytes": health.rss_bytes,
        "requests": stats.started,
        "lost": worker.state == "lost",
    }


def _hardware(run: Run) -> dict[str, Any]:
    """The workload's hardware section as plain data; empty where it has none."""
    hardware = getattr(run.workload, "hardware", None)
    return hardware.model_dump() if hardware is not None else {}


def _utilization(run: Run, made: dict[str, Any]) -> dict[str, Any] | None:
    """MBU and MFU where hardware and model are described."""
    described = None
    try:
        described = economics.described(_hardware(run))
    except BadInput as error:
        made["warnings"] += error.problems
    if described is None:
        return None
    made["warnings"] += economics.unknowns(described[1], _hardware(run))
    from tokenswarm.run_files import read_requests  # numpy takes 0.1 s to import

    path = run.out / REQUESTS if run.out is not None else None
    requests = read_requests(path) if path is not None and path.is_file() else None
    return economics.utilization(made, *described, economics.running_of(made, requests))


def to_json(summary: dict[str, Any]) -> bytes:
    """The bytes of summary.json."""
    return orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


class Summary(files.FileAtEnd):
    """Writes summary.json when a run ends."""

    def start(self, run: Run) -> None:
        """Refuse hardware that could not be reckoned with at the end. Raises BadInput."""
        economics.described(_hardware(run))

    def write(self, out: Path, run: Run, summary: dict[str, Any]) -> str | None:
        """Write the file."""
        return files.try_write(out / FILE, to_json(summary), run)
