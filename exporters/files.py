"""Files of a run, written so that a full disk costs a file and never the run.

It knows nothing of what is written. The one subtle rule: nothing here raises OSError; what
could not be written is said once in the run's warnings and in the log, and counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenswarm.run import Run

_log = logging.getLogger(__name__)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that others see the old one or the whole new one. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def report(run: Run | None, path: Path, error: OSError) -> str:
    """Say that a file could not be written; returns the text."""
    text = f"cannot write {path}: {error.strerror or error}"
    _log.error("%s", text)
    if run is not None and text not in run.warnings:
        run.warnings.append(text)
    return text


def try_write(path: Path, content: bytes, run: Run | None = None) -> str | None:
    """Write a whole file; None when it is there, else the text that says why not."""
    try:
        write_whole(path, content)
    except OSError as error:
        return report(run, path, error)
    return None


class FileAtEnd:
    """A sink that writes one file when a run ends, into the run's folder or else into out."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = out

    def write(self, out: Path, run: Run, summary: dict[str, Any]) -> str | None:
        """Write the file into a folder; None when it is there, else the text that says why not."""
        raise NotImplementedError

    def start(self, run: Run) -> None:
        """Nothing yet."""

    def interval(self, run: Run) -> None:
        """Nothing yet."""

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """Write the file; what could not be written is a warning of the summary."""
        out = run.out or self._out
        if out is not None and (problem := self.write(out, run, summary)):
            summary["warnings"].append(problem)

    def close(self) -> None:
        """Nothing to close."""


class Appender:
    """A file that grows while a run goes on; lost counts the pieces that did not fit.

    A piece that could not be written is cut off again, so that no line is ever torn in the
    middle of the file; when the disk has room later, writing goes on.
    """

    def __init__(self, path: Path, on_error: Callable[[Path, OSError], object]) -> None:
        self.path = path
        self.lost = 0
        self._on_error = on_error
        self._fd: int | None = None
        self._said = False

    def append(self, piece: bytes) -> bool:
        """Write bytes at the end; False when they did not fit."""
        try:
            self._write(piece)
        except OSError as error:
            self.lost += 1
            if not self._said:
                self._said = True
                self._on_error(self.path, error)
            return False
        return True

    def _write(self, piece: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        end = os.fstat(self._fd).st_size
        left = memoryview(piece)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, end)
            raise

    def close(self) -> None:
        """Close the file; later appends open it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
