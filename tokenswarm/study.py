"""`tokenswarm sweep`: a grid of runs over targets, lengths, load and anything settable.

Each point is a run of its own in its own folder (study_point.py); `study.json` and `study.csv`
are written anew after every point, so that they are right whenever they are looked at. A study
that was interrupted goes on where it was: points that are finished are read, not run.

It knows nothing of reports. The one subtle rule: a target's start command runs once, before its
first point that is not finished, and its stop command whenever it was started, however the
study ends.
"""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tokenswarm.study_model import Plan, Study, engine_sets, filled, load, written
from tokenswarm.study_point import FIGURES, Point, Result, result, run, write
from tokenswarm.study_server import Unfit, wait_fit

SCHEMA = 1
STUDY, TABLE, POINTS = "study.json", "study.csv", "points"
OK, INVALID, INTERRUPTED = 0, 3, 130
_FIRST = ("target", "gpu", "gpus", "usd_per_hour")
_STATE = ("repeat", "state", "valid", "slo_passed")


class Server:
    """The server of one target: made ready when first needed, stopped at the end."""

    def __init__(self, plan: Plan, simulated: bool, say: Callable[[str], None]) -> None:
        self._plan, self._simulated, self._say = plan, simulated, say
        self._engine: Any = None
        self._started = False
        self._failure: Unfit | None = None
        self.url = plan.host or ""
        self.identity = (
            f"engine {json.dumps(plan.target.engine, sort_keys=True)}"
            if simulated
            else json.dumps([plan.host, plan.settings, plan.target.start, plan.target.overlay])
        )

    def start(self) -> None:
        """Start it, once. Raises Unfit when the command fails or it does not get ready."""
        if self._failure is not None:
            raise self._failure
        if self._started:
            return
        self._started = True
        try:
            self._start()
        except (Unfit, RuntimeError) as e:
            self._failure = Unfit(str(e))
            raise self._failure from None

    def _start(self) -> None:
        target = self._plan.target
        if self._simulated:
            self._start_engine()
            return
        command = target.start
        if target.overlay is not None:
            command = f"kubectl apply -k {target.overlay}"
        if command:
            self._command("start", command)
            wait_fit(self._plan.workload, self.url, target.ready, self._say)

    def stop(self) -> None:
        """Stop it when it was started; what goes wrong is said."""
        if self._engine is not None:
            self._engine.stop()
            self._engine = None
        target = self._plan.target
        command = target.stop
        if target.overlay is not None:
            command = f"kubectl delete -k {target.overlay}"
        if self._started and not self._simulated and command:
            try:
                self._command("stop", command)
            except Unfit as e:
                self._say(str(e))
        self._started = False

    def _start_engine(self) -> None:
        from tokenswarm.simulator.process import EngineProcess

        engine = self._plan.target.engine
        arguments = ["--engine", str(engine.get("engine", "default"))]
        for text in engine_sets(engine):
            arguments += ["--set", text]
        self._engine = EngineProcess(*arguments)
        self.url = self._engine.url

    def _command(self, what: str, text: str) -> None:
        command = filled(text, self._plan.settings)
        self._say(f"{self._plan.label}: {what}: {command}")
        code = subprocess.call(command, shell=True, stdin=subprocess.DEVNULL)
        if code:
            raise Unfit(f"{self._plan.label}: {what} command ended with {code}: {command}")


def sweep(
    file: str,
    out: str | None,
    simulated: bool,
    say: Callable[[str], None],
    gpu: str | None = None,
) -> tuple[Path, int, list[dict[str, Any]]]:
    """Run a study. Returns its folder, exit code and points.

    Raises BadInput before anything is run. Exit codes: 0 all points are valid, 3 some are not
    or could not be run, 130 interrupted.
    """
    study, plans = load(file, simulated)
    plain = re.sub(r"[^\w.+-]+", "-", study.name)
    folder = Path(out) if out else Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{plain}"
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Result | None] = [None] * len(plans)
    started = time.time()

    def save() -> list[dict[str, Any]]:
        rows = [_row(plan, found, folder) for plan, found in zip(plans, results, strict=True)]
        about = {"schema": SCHEMA, "kind": "sweep", "name": study.name, "file": str(file),
                 "simulated": simulated, "started": started, "updated": time.time()}  # fmt: skip
        write(folder / STUDY, json.dumps({**about, "points": rows}, indent=2) + "\n")
        write(folder / TABLE, table(rows))
        return rows

    code = OK
    try:
        with interruptible():
            for position, found in _run_all(study, plans, folder, simulated, say, gpu):
                results[position] = found
                save()
    except KeyboardInterrupt:
        say(f"interrupted; the same command with --out {folder} goes on from here")
        code = INTERRUPTED
    rows = save()
    if code == OK and not all(r is not None and r.valid for r in results):
        code = INVALID
    return folder, code, rows


def _run_all(
    study: Study,
    plans: list[Plan],
    folder: Path,
    simulated: bool,
    say: Callable[[str], None],
    gpu: str | None,
) -> Iterator[tuple[int, Result]]:
    """Run the points in order; the target's server is up while its points are run."""
    server: Server | None = None
    key: Any = None
    try:
        for position, plan in enumerate(plans):
            if key != (plan.target.label, plan.settings):
                if server is not None:
                    server.stop()
                server, key = Server(plan, simulated, say), (plan.target.label, plan.settings)
            assert server is not None
            head = f"[{position + 1}/{len(plans)}] {plan.name}"
            found = _run_one(study, plan, folder, server, say, gpu)
            say(f"{head}: {words(found)}")
            yield position, found
    finally:
        if server is not None:
            server.stop()


def _run_one(
    study: Study,
    plan: Plan,
    folder: Path,
    server: Server,
    say: Callable[[str], None],
    gpu: str | None,
) -> Result:
    def point() -> Point:
        return Point(folder / POINTS, plan.name, plan.workload, server.url, server.identity,
                     study.workers, plan.repeat, study.drained_within, gpu)  # fmt: skip

    found = result(point().folder)
    if found is not None:
        return found
    try:
        server.start()
        return run(point(), say)
    except Unfit as e:
        return Result(point().folder, "failed", None, str(e))


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does, so that servers are stopped and files are written."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def words(found: Result) -> str:
    """A point's result in one line."""
    if found.state != "done":
        return f"FAILED: {found.error}"
    rate, ttft = found.figure("output_tokens_per_s"), found.figure("ttft_p50_s")
    slo = {True: "SLOs met", False: "SLOs missed", None: "SLOs not known"}[found.slo_passed]
    state = slo if found.valid else f"INVALID ({', '.join(found.reasons)})"
    figures = [
        "" if rate is None else f"{rate:,.0f} output tokens/s",
        "" if ttft is None else f"TTFT p50 {ttft * 1e3:.0f} ms",
        "from disk" if found.reused else f"{found.seconds:.0f} s",
    ]
    return ", ".join([state, *filter(None, figures)])


def _row(plan: Plan, found: Result | None, root: Path) -> dict[str, Any]:
    """A point as study.json has it."""
    hardware = plan.workload.hardware
    done = found is not None and found.state == "done"
    return {
        "target": plan.label,
        "host": plan.host,
        "settings": plan.settings,
        "hardware": None if hardware is None else hardware.model_dump(mode="json"),
        "axes": {key: list(v) if isinstance(v, tuple) else v for key, v in plan.axes.items()},
        "repeat": plan.repeat,
        "state": "pending" if found is None else found.state,
        "folder": str(found.folder.relative_to(root)) if found is not None and done else None,
        "exit_code": found.exit_code if found else None,
        "error": found.error if found else None,
        "valid": found.valid if found is not None and done else None,
        "invalid_reasons": found.reasons if found else [],
        "slo_passed": found.slo_passed if found else None,
        "figures": found.figures if found else dict.fromkeys(FIGURES),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The points as CSV: one line each, axes and settings as columns."""
    axes = list(dict.fromkeys(key for row in rows for key in row["axes"]))
    settings = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*_FIRST, *settings, *axes, *_STATE, *FIGURES, "folder", "error"])
    for row in rows:
        hardware = row["hardware"] or {}
        cells = [row["target"], hardware.get("gpu"), hardware.get("count"),
                 hardware.get("usd_per_hour")]  # fmt: skip
        cells += [row["settings"].get(key) for key in settings]
        cells += [written(row["axes"][key]) if key in row["axes"] else None for key in axes]
        cells += [row["repeat"], row["state"], row["valid"], row["slo_passed"]]
        cells += [row["figures"][name] for name in FIGURES]
        out.writerow([*cells, row["folder"], row["error"]])
    return text.getvalue()


def sayer(out: TextIO) -> Callable[[str], None]:
    """Says a line at once."""

    def say(text: str) -> None:
        out.write(f"{text}\n")
        out.flush()

    return say
