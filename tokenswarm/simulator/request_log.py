"""What the engine really did, one JSON line a request, on disk so that memory does not grow.

Knows nothing about how requests are served. Subtle: lines are buffered; they are on disk after
`flush`, which the server calls when it has nothing to send and at least once a second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from tokenswarm.records import BadInput

CHUNK_BYTES = 64 * 1024


class RequestLog:
    """Append-only JSONL in the given file, or in a temporary one that vanishes at the end."""

    def __init__(self, path: str | None = None) -> None:
        self.lines = 0
        self._pending = False
        self._file: IO[bytes]
        if path is None:
            self._file = tempfile.TemporaryFile(buffering=1 << 16)  # noqa: SIM115 - closed by close
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = Path(path).open("w+b", buffering=1 << 16)  # noqa: SIM115 - closed by close
        except OSError as error:
            raise BadInput(f"--log {path}: cannot be written: {error.strerror}") from None

    def write(self, line: dict[str, Any]) -> None:
        """Add one line."""
        self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        self.lines += 1
        self._pending = True

    def flush(self) -> None:
        """Bring all lines to disk."""
        if self._pending:
            self._file.flush()
            self._pending = False

    def read(self) -> tuple[int, Iterator[bytes]]:
        """Size in bytes and content of the log so far, piece by piece."""
        self.flush()
        size = self._file.seek(0, 2)
        return size, self._pieces(size)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def _pieces(self, size: int) -> Iterator[bytes]:
        position = 0
        while position < size:
            self._file.flush()
            self._file.seek(position)
            piece = self._file.read(min(CHUNK_BYTES, size - position))
            self._file.seek(0, 2)
            position += len(piece)
            yield piece
