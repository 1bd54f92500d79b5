"""`tokenswarm report DIR`: the results of a run's folder, also of a run that crashed or goes on.

A folder with a summary only gets its report and JUnit file drawn again. Without one the run is
counted once more from its records: requests.jsonl, and what workers kept on their disks in
`workers/` and could not hand in. Such a run is never valid: `cut_short`.

The one subtle rule: what the records do not hold is not made up. The gaps between a request's
tokens are only there with `record.itl: true`; without it inter-token latency has a mean and a
count and no percentile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from exporters import files, html_file, junit, summary
from exporters.request_log import Torn, read
from tokenswarm import figures, workload
from tokenswarm.measure import NS
from tokenswarm.records import BadInput, Outcome, Record
from tokenswarm.run import Run, StageWindow, Worker
from tokenswarm.validity import judge

WORKLOAD, WORKERS, SPOOLS = "workload.yaml", "workers.json", "workers"
REBUILT = "rebuilt"  # key of a summary that was made here: it is made anew the next time


@dataclass(slots=True)
class _Gaps:
    """Sum and number of inter-token gaps by stage, for runs without itl_s."""

    sum_ns: dict[int, int] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Count a request's gaps; failed ones have none that count."""
        if record.outcome is Outcome.OK and len(record.event_ns) > 1:
            took = record.event_ns[-1] - record.event_ns[0]
            self.sum_ns[record.stage] = self.sum_ns.get(record.stage, 0) + took
            more = len(record.event_ns) - 1
            self.count[record.stage] = self.count.get(record.stage, 0) + more

    def figures(self, stages: list[int]) -> dict[str, Any]:
        """Count and mean over some stages; everything else is not known."""
        count = sum(self.count.get(s, 0) for s in stages)
        total = sum(self.sum_ns.get(s, 0) for s in stages)
        mean = total / count / NS if count else None
        return {**figures.distribution(None, NS), "count": count, "mean": mean}


def rebuild(folder: str | Path) -> dict[str, Any]:
    """Write summary.json, report.html and junit.xml of a folder as far as they can be known.

    Returns the summary. Raises BadInput when the folder holds no run; what cannot be written is
    in the summary's warnings.
    """
    out = Path(folder)
    if not out.is_dir():
        raise BadInput(f"{out}: no such folder. tokenswarm report takes the --out folder of a run")
    made = _finished(out)
    if made is None:
        run, gaps = _recount(out)
        made = _summarise(run, gaps)
        _note(made, files.try_write(out / summary.FILE, summary.to_json(made)))
    _note(made, files.try_write(out / junit.FILE, junit.build(made)))
    _note(made, html_file.write(out, made))
    return made


def _note(made: dict[str, Any], problem: str | None) -> None:
    if problem:
        made["warnings"].append(problem)


def _finished(out: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its end; None when there is none that can be read."""
    try:
        found = orjson.loads((out / summary.FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    whole = isinstance(found, dict) and "metrics" in found and not found.get(REBUILT)
    return found if whole else None


def _recount(out: Path) -> tuple[Run, _Gaps]:
    """A Run made of a folder's records. Raises BadInput when there are none."""
    sources = [p for p in [out / summary.REQUESTS, *sorted((out / SPOOLS).glob("*.jsonl"))]
               if p.is_file()]  # fmt: skip
    if not sources or not (out / WORKLOAD).is_file():
        raise BadInput(
            f"{out}: holds no run: expected {summary.FILE}, or {WORKLOAD} with "
            f"{summary.REQUESTS} (record.requests: true)"
        )
    work = workload.load(out / WORKLOAD)
    plan = work.load.resolved_stages()
    run = Run(
        id=out.name,
        workload=work,
        host="",
        out=out,
        state="done",
        stages=[StageWindow(s.name, s.warmup, None, None, s.users, s.rate_per_s) for s in plan],
        workers={w.id: w for w in _workers(out)},
        objectives=work.objectives(),
    )
    torn, gaps = Torn(), _Gaps()
    ends: dict[int, float] = {}
    count = 0
    for record, row in _records(sources, torn, [s.name for s in plan]):
        count += 1
        if record.stage == len(run.stages):  # of a plan that workload.yaml does not have any more
            run.stages.append(StageWindow(row["stage"], record.warmup))
        _count(run, record, row["worker"])
        gaps.add(record)
        ends[record.stage] = max(ends.get(record.stage, 0.0), _last_s(run, record))
    if not work.record.itl:
        for w in run.workers.values():
            for stats in w.snapshot.stages:
                stats.histograms.pop("itl_s", None)
    _set_windows(run, [s.duration for s in plan], ends)
    run.faults.append(
        ("cut_short", f"the run has not come to its end; these are the {count} requests recorded")
    )
    if torn.lines:
        run.warnings.append(f"{torn.lines} lines of the records could not be read (torn?)")
    return run, gaps


def _workers(out: Path) -> Iterator[Worker]:
    """Workers of workers.json; none when it cannot be read."""
    try:
        rows = orjson.loads((out / WORKERS).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return
    for row in rows:
        yield Worker(row["id"], row["index"], row.get("pid"), row.get("host", ""), k=row.get("k"))


def _records(
    sources: list[Path], torn: Torn, stages: list[str]
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Records of all files; a request that a worker handed in and still has is taken once."""
    seen: dict[str, set[int]] = {}
    for path in sources:
        for record, row in read(path, torn, stages):
            of_worker = seen.setdefault(row["worker"], set())
            if record.index not in of_worker:
                of_worker.add(record.index)
                yield record, row


def _count(run: Run, record: Record, worker_id: str) -> None:
    if run.start_ns is None:
        run.start_ns = record.due_ns - record.due_offset_ns
        run.started = run.start_ns / NS
    worker = run.workers.get(worker_id)
    if worker is None:
        worker = run.workers[worker_id] = Worker(worker_id, len(run.workers), k=len(run.workers))
    worker.final = True
    stats = worker.snapshot.stage(record.stage)
    stats.started += 1
    worker.snapshot.add(record, run.start_ns)
    worker.records_received += 1
    stats.judge(record, run.objectives, run.stages[record.stage].name)


def _last_s(run: Run, record: Record) -> float:
    """When a request was last heard of, seconds since the plan's start."""
    assert run.start_ns is not None
    return ((record.end_ns or record.sent_ns or record.due_ns) - run.start_ns) / NS


def _set_windows(run: Run, durations: list[float | None], ends: dict[int, float]) -> None:
    """Planned windows, cut off where the records end."""
    at, last = 0.0, max(ends.values(), default=0.0)
    for index, stage in enumerate(run.stages):
        duration = durations[index] if index < len(durations) else None
        planned = at + duration if duration is not None else ends.get(index, at)
        if at < last:
            stage.start_s, stage.end_s = at, min(planned, last)
        at = planned
    run.ended = run.started + last


def _summarise(run: Run, gaps: _Gaps) -> dict[str, Any]:
    """The summary, with the mean of inter-token latency where only that is known."""
    made = summary.build(run, judge(run))
    made[REBUILT] = True
    if not run.workload.record.itl:
        made["metrics"]["itl_s"] = {
            **gaps.figures(run.measured), "ci95": made["metrics"]["itl_s"]["ci95"]
        }  # fmt: skip
        for index, stage in enumerate(made["stages"]):
            known = stage["metrics"]["itl_s"]["ci95"]
            stage["metrics"]["itl_s"] = {**gaps.figures([index]), "ci95": known}
        made["warnings"].append("itl_s has no percentiles: record.itl was false")
    return made
