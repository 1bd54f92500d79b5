"""Run the engine as a process of its own: for tests, studies and benchmarks.

Knows nothing about what it is asked to do. Subtle: the engine says where it listens on its
first line, so a free port can be used without a race.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

_READY = re.compile(r"tokenswarm engine listening on (\S+) ")


class EngineProcess:
    """`with EngineProcess("--engine", "fast") as engine: ... engine.url ...`.

    arguments are those of `tokenswarm simulate`; without --port a free one is used. prefix goes
    before the command, for example ("taskset", "-c", "1").
    """

    def __init__(self, *arguments: str, prefix: Sequence[str] = ()) -> None:
        port = () if "--port" in arguments else ("--port", "0")
        command = [*prefix, sys.executable, "-m", "tokenswarm.simulator", *port, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        line = self._process.stdout.readline() if self._process.stdout else ""
        ready = _READY.match(line)
        if ready is None:
            code = self._process.wait()
            raise RuntimeError(f"the engine did not start (exit code {code}): {line}")
        self.url = ready[1]

    def log(self) -> list[dict[str, Any]]:
        """What it has done so far, one object a request that has ended."""
        return [json.loads(line) for line in self._get("/log").splitlines()]

    def stats(self) -> dict[str, Any]:
        """Its totals."""
        stats: dict[str, Any] = json.loads(self._get("/stats"))
        return stats

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        self._process.terminate()
        code = self._process.wait(30)
        if self._process.stdout:
            self._process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _get(self, path: str) -> bytes:
        with urlopen(Request(self.url + path), timeout=30) as answer:
            body: bytes = answer.read()
        return body
