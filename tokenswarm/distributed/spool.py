"""Request records on their way from a worker to the master, without loss.

Records are lines of bytes. A worker appends them to a file of its own and sends them in
numbered batches; what is not acknowledged is sent again from the file, and the file is removed
only when everything was acknowledged. The master writes each number of a worker once.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
_RESEND_S = 5.0
_BATCH_BYTES = 256 * 1024


class Spool:
    """The worker's side. send(number, data) hands a batch to the link."""

    def __init__(self, path: Path, send: Callable[[int, bytes], None]) -> None:
        self.path = path
        self._send = send
        self._lines: list[bytes] = []
        self._size = 0
        self._next = 0
        self._waiting: dict[int, tuple[int, int, float]] = {}  # number: offset, length, sent at
        self._file: Any = None
        self._offset = 0
        self._memory: dict[int, bytes] = {}  # where the disk fails
        self.disk_error: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w+b", buffering=0)
        except OSError as e:
            self._disk_failed(e)

    def add(self, line: bytes) -> None:
        """Keep a record's line; it leaves with the next batch."""
        self._lines.append(line)
        self._size += len(line)
        if self._size >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered to disk and send it; send again what was not acknowledged."""
        now = time.monotonic()
        if self._lines:
            data = b"".join(self._lines)
            self._lines.clear()
            self._size = 0
            number, self._next = self._next, self._next + 1
            self._keep(number, data, now)
            self._send(number, data)
        for number, (offset, length, sent) in list(self._waiting.items()):
            if now - sent > _RESEND_S:
                self._waiting[number] = (offset, length, now)
                self._send(number, self._load(number, offset, length))

    def _keep(self, number: int, data: bytes, now: float) -> None:
        self._waiting[number] = (self._offset, len(data), now)
        if self._file is not None:
            try:
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) :]
                self._offset += len(data)
            except OSError as e:
                self._disk_failed(e)
        if self._file is None:
            self._memory[number] = data

    def _load(self, number: int, offset: int, length: int) -> bytes:
        if number in self._memory:
            return self._memory[number]
        self._file.seek(offset)
        data: bytes = self._file.read(length)
        self._file.seek(0, 2)
        return data

    def _disk_failed(self, e: OSError) -> None:
        # Kept in memory from here on; unacknowledged batches already on disk stay readable.
        self.disk_error = f"{self.path}: {e.strerror or e}"
        logger.warning("Records are kept in memory only: %s", self.disk_error)
        if self._file is not None:
            for number, (offset, length, _) in self._waiting.items():
                with contextlib.suppress(OSError):
                    self._memory[number] = self._load(number, offset, length)
            self._file.close()
            self._file = None

    def acknowledge(self, number: int) -> None:
        """The master has written a batch."""
        self._waiting.pop(number, None)
        self._memory.pop(number, None)

    @property
    def empty(self) -> bool:
        """True when everything was acknowledged."""
        return not self._waiting and not self._lines

    def close(self, keep: bool) -> None:
        """End; the file stays when asked to, or when something was never acknowledged."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not keep and self.empty:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()


class RecordFile:
    """The master's side: requests.jsonl, each batch of each worker once."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.error: str | None = None
        self.lines = 0
        self.unwritten = 0
        self._seen: dict[str, set[int]] = {}
        self._file: Any = None
        if path is not None:
            try:
                self._file = path.open("ab", buffering=0)
            except OSError as e:
                self.error = f"{path}: {e.strerror or e}"

    def write(self, worker: str, number: int, data: bytes) -> int:
        """Append a batch unless it is there already; returns its number of lines."""
        seen = self._seen.setdefault(worker, set())
        if number in seen:
            return 0
        seen.add(number)
        lines = data.count(b"\n")
        self.lines += lines
        if self._file is None:
            self.unwritten += lines if self.path is not None else 0
            return lines
        end = self._file.tell()
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as e:
            self.error = f"{self.path}: {e.strerror or e}"
            self.unwritten += lines
            with contextlib.suppress(OSError):
                self._file.truncate(end)  # no torn line in the middle when there is room again
                self._file.seek(end)
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def mark_warmup(path: Path, stages: Sequence[str]) -> None:
    """Make warm-up of all requests of these stages in a file of records.

    What the file says of a request must be what the summary counted. A quote inside of a text is
    escaped, so these words are found as keys only.
    """
    names = [f'"stage":"{name}",'.encode() for name in stages]
    part = path.with_name(f".{path.name}.part")
    try:
        with path.open("rb") as lines, part.open("wb") as out:
            for line in lines:
                if any(name in line for name in names):
                    line = line.replace(b'"warmup":false', b'"warmup":true')
                out.write(line)
        part.replace(path)
    except OSError as e:
        logger.warning("%s could not be written anew: %s", path, e.strerror or e)
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
