"""The folder of a run: made, and written to by the master itself.

Knows names of files, nothing of how a run goes on; what exporters write is theirs.

The one subtle rule: a disk that cannot be written to never ends a run. Only a folder that holds
another run does, before anything was sent.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from pathlib import Path

import orjson

from tokenswarm.records import BadInput
from tokenswarm.run import Run

logger = logging.getLogger(__name__)
SPOOLS = "workers"  # where workers keep records, see exporters/rebuild.py


def make_folder(out: str | None, name: str, started: float) -> tuple[Path | None, str | None]:
    """The run's folder, made; or None and why it cannot be written, when the run goes on without.

    Raises BadInput when it holds a run already, or is no folder. What a run that sent nothing
    left there (its server was not up yet) is no run.
    """
    if out is None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
        base = Path("runs") / f"{stamp}-{name}"
        tries = itertools.chain(
            [base], (base.with_name(f"{base.name}-{i}") for i in range(2, 1000))
        )
        folder = next(path for path in tries if not path.exists())
    else:
        folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = _signs_of_a_run(folder)
        probe_file = folder / f".writable-{os.getpid()}"
        probe_file.touch()
        probe_file.unlink()
    except FileExistsError:
        raise BadInput(f"--out {folder}: is a file; choose another name for the folder") from None
    except OSError as e:
        return None, (
            f"--out {folder}: cannot write there ({e.strerror or e}): no file of this run is kept, "
            "only the printed summary"
        )
    if taken:
        raise BadInput(
            f"--out {folder}: holds a run already ({', '.join(taken)}); "
            "choose another folder or remove that one"
        )
    return folder, None


def _signs_of_a_run(folder: Path) -> list[str]:
    """Names of what only a run that sent something leaves."""
    records = [folder / "requests.jsonl", *sorted((folder / SPOOLS).glob("*"))]
    found = [path for path in records if path.is_file() and path.stat().st_size]
    summary = folder / "summary.json"
    return [str(p.relative_to(folder)) for p in (*found, *([summary] if summary.exists() else []))]


def write_workers(run: Run) -> None:
    """Who takes part, for people who look into the folder."""
    if run.out is None:
        return
    rows = [
        {"id": w.id, "pid": w.pid, "index": w.index, "host": w.host, "k": w.k}
        for w in run.workers.values()
    ]
    write_text(run.out / "workers.json", orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())


def write_text(path: Path, text: str) -> None:
    """Write a file whole; a failure is told in the log and ends nothing."""
    try:
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as e:
        logger.warning("%s could not be written: %s", path, e.strerror or e)
