"""One point of a study or search: a `tokenswarm run` of its own, in a folder of its own.

    run(point, say)      its result, from disk where it is there already
    result(folder)       what a finished point's folder says, None for a half one

It knows nothing of grids or of searching. The folder holds what any run leaves, `point.yaml`
(the workload as it was asked for), `console.log`, and `point.json`, which is written last.

The one subtle rule: a point is finished when `point.json` and `summary.json` are there. A run
that was interrupted leaves a summary too (`cut_short`), so the summary alone does not say it;
`point.json` is only written by a study that lived to see the run end by itself. The folder's
name ends in a digest of all settings, so results of other settings are never taken for these.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenswarm import workload
from tokenswarm.study_server import wait_fit

POINT, SUMMARY, LOG, ASKED = "point.json", "summary.json", "console.log", "point.yaml"
_HAS_RESULT = (0, 1, 3)
_PR_SET_PDEATHSIG = 1
_TAIL = 6

FIGURES: dict[str, tuple[str, ...]] = {
    "requests_due": ("requests", "due"),
    "requests_ok": ("requests", "ok"),
    "requests_failed": ("requests", "failed"),
    "requests_dropped": ("requests", "dropped"),
    "requests_lost": ("requests", "lost"),
    "window_s": ("window", "seconds"),
    "makespan_s": ("makespan_s",),
    "requests_per_s": ("throughput", "requests_per_s"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "total_tokens_per_s": ("throughput", "total_tokens_per_s"),
    "output_tokens_per_s_per_gpu": ("throughput", "output_tokens_per_s_per_gpu"),
    **{
        f"{name.removesuffix('_s')}_{q}_s": ("metrics", name, q)
        for name in ("ttft_s", "ttft_due_s", "itl_s", "tpot_s", "e2e_s", "e2e_due_s")
        for q in ("p50", "p90", "p99")
    },
    "e2e_mean_s": ("metrics", "e2e_s", "mean"),
    "tokens_per_s_per_user_p50": ("metrics", "tokens_per_s_per_user", "p50"),
    "error_ratio": ("slo", "error_ratio"),
    "goodput_per_s": ("slo", "goodput_per_s"),
    "attainment": ("slo", "attainment"),
    "usd_per_million_input_tokens": ("cost", "usd_per_million_input_tokens"),
    "usd_per_million_output_tokens": ("cost", "usd_per_million_output_tokens"),
    "usd_per_million_total_tokens": ("cost", "usd_per_million_total_tokens"),
}
"""Columns of study.csv and `figures` of study.json -> where summary.json has them."""


@dataclass(frozen=True, slots=True)
class Point:
    """What is run: a resolved workload on a host. server says what stands behind the host."""

    root: Path
    name: str
    workload: Any
    host: str
    server: str
    workers: int = 1
    repeat: int = 0
    drained_within_s: float = 300.0
    gpu: str | None = None  # what samples this machine's GPUs meanwhile; changes no result

    @property
    def digest(self) -> str:
        """Short name of all settings: another workload, server or repeat has another one."""
        said = [workload.dump(self.workload), self.server, self.workers, self.repeat]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:10]

    @property
    def folder(self) -> Path:
        """Where its files are."""
        plain = re.sub(r"[^\w.=+@-]+", "-", self.name).strip("-.")[:80]
        return self.root / f"{plain}-{self.digest}"


@dataclass(slots=True)
class Result:
    """What became of a point. state: done, or failed (it could not be run; error says why)."""

    folder: Path
    state: str = "done"
    exit_code: int | None = None
    error: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reused: bool = False

    @property
    def valid(self) -> bool:
        """The run may be believed."""
        return self.state == "done" and bool(self.summary.get("valid"))

    @property
    def reasons(self) -> list[str]:
        """Codes of why it is invalid."""
        return [r["code"] for r in self.summary.get("invalid_reasons", ())]

    @property
    def slo_passed(self) -> bool | None:
        """The verdict on the SLOs; None when it is not known."""
        return (self.summary.get("slo") or {}).get("passed")

    @property
    def figures(self) -> dict[str, Any]:
        """All of FIGURES, as the summary has them."""
        return {name: at(self.summary, path) for name, path in FIGURES.items()}

    def figure(self, name: str) -> float | None:
        """One of FIGURES."""
        value = at(self.summary, FIGURES[name])
        return None if value is None else float(value)


def at(summary: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """A value inside a summary; None where there is none."""
    value: Any = summary
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def result(folder: Path) -> Result | None:
    """The result of a finished point; None when it is not there or only half there."""
    try:
        said = json.loads((folder / POINT).read_text("utf-8"))
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(summary, dict) or "metrics" not in summary:
        return None
    return Result(folder, "done", said["exit_code"], None, summary, said["seconds"], True)


def run(point: Point, say: Callable[[str], None]) -> Result:
    """Run a point, unless it is finished already; half of one is done again.

    Raises Unfit when the server is not healthy and idle, KeyboardInterrupt when interrupted
    (the run has then ended in order).
    """
    folder = point.folder
    known = result(folder)
    if known is not None:
        return known
    wait_fit(point.workload, point.host, point.drained_within_s, say)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    asked = folder / ASKED
    asked.write_text(workload.dump(point.workload), "utf-8")
    command = [
        sys.executable, "-m", "tokenswarm.cli", "run", str(asked), "--host", point.host,
        "--workers", str(point.workers), "--out", str(folder), "--export", "prometheus=off",
        *(("--gpu", point.gpu) if point.gpu else ()),
    ]  # fmt: skip
    began = time.monotonic()
    with (folder / LOG).open("wb") as log:
        code = call(command, log)
    seconds = time.monotonic() - began
    if code in _HAS_RESULT and (folder / SUMMARY).is_file():
        said = {"name": point.name, "server": point.server, "host": point.host,
                "repeat": point.repeat, "exit_code": code, "seconds": seconds}  # fmt: skip
        write(folder / POINT, json.dumps(said, indent=2) + "\n")
        found = result(folder)
        if found is not None:
            found.reused = False
            return found
    return Result(folder, "failed", code, _last_words(folder / LOG), {}, seconds)


def call(command: list[str], log: Any) -> int:
    """Run a command to its end; an interrupt is passed on and waited for."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=_die_with_us,
    )  # fmt: skip
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, "utf-8")
    part.replace(path)


def _last_words(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    said = [line for line in lines if line.startswith("tokenswarm:")] or lines
    return " / ".join(line.removeprefix("tokenswarm: ") for line in said[-_TAIL:])


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
