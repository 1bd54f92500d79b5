"""Start the ground truth server on a core of its own, and read what it really did.

Knows the server's command line and log format (see ground_truth_server.c); knows nothing about
the tools that are measured. The subtle rule: its log appears when it ends, so the truth is known
only after the `with` block.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_SETUP = Path(__file__).parent.parent / "setup" / "ground_truth.sh"


def cache() -> Path:
    """The folder of everything fetched or built (see benchmarks/setup/common.sh)."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TOKENSWARM_CACHE") or home / "tokenswarm")


def free_port() -> int:
    """A port on the loopback address that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def quantile(values: Sequence[float], q: float) -> float:
    """The value of rank ceil(q n); nan when there are none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


@dataclass(frozen=True)
class Served:
    """One stream as the server sent it; Unix seconds."""

    received: float
    first: float
    last: float
    tokens: int

    @property
    def ttft_ms(self) -> float:
        """From the whole request read to just before the first token was handed to the kernel."""
        return (self.first - self.received) * 1e3

    @property
    def tpot_ms(self) -> float:
        """(last - first) / (tokens - 1)."""
        return (self.last - self.first) / (self.tokens - 1) * 1e3


@dataclass
class Truth:
    """What the server did, filled in when it has ended."""

    port: int
    served: list[Served] = field(default_factory=list)
    gaps_us: list[tuple[int, int]] = field(default_factory=list)
    cpu_s: float = math.nan
    max_streams: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def of_length(self, tokens: int) -> list[Served]:
        """The complete answers of a run: probes and tries of another length are left out."""
        return [s for s in self.served if s.tokens == tokens]

    def itl_ms(self, q: float) -> float:
        """Quantile of the gaps between two writes of a stream, over all streams."""
        total = sum(count for _, count in self.gaps_us)
        seen = 0
        for us, count in self.gaps_us:
            seen += count
            if seen >= q * total:
                return us / 1e3
        return math.nan


@contextmanager
def ground_truth(*, core: int, **options: float) -> Iterator[Truth]:
    """Run the server pinned to a core; `options` are those of its command line."""
    subprocess.run(["bash", str(_SETUP)], check=True)
    truth = Truth(free_port())
    with tempfile.TemporaryDirectory() as folder:
        log, gaps = Path(folder) / "log", Path(folder) / "gaps"
        command = ["taskset", "-c", str(core), str(cache() / "bin" / "ground_truth_server")]
        command += [str(truth.port), f"log={log}", f"gaps={gaps}"]
        command += [f"{name}={value:g}" for name, value in options.items()]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            _wait_for(truth.port)
            yield truth
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        _read(truth, log, gaps, said)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _read(truth: Truth, log: Path, gaps: Path, said: str) -> None:
    for line in log.read_text().splitlines():
        _, _, received, first, last, tokens, _, _ = line.split()
        truth.served.append(Served(float(received), float(first), float(last), int(tokens)))
    for line in gaps.read_text().splitlines():
        us, count = line.split()
        truth.gaps_us.append((int(us), int(count)))
    totals = re.search(r"max_streams (\d+) cpu ([\d.]+)", said)
    if totals:
        truth.max_streams, truth.cpu_s = int(totals[1]), float(totals[2])


@dataclass(frozen=True)
class Limit:
    """What the cheapest reader needed for the same streams."""

    us_per_event: float
    events_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float


def read_limit(truth: Truth, *, core: int, streams: int, requests: int, tokens: int) -> Limit:
    """Read the streams with read_limit.c, pinned to a core."""
    numbers = [str(n) for n in (truth.port, streams, requests, tokens)]
    program = str(cache() / "bin" / "read_limit")
    line = subprocess.run(
        ["taskset", "-c", str(core), program, *numbers],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = re.search(r"us/event ([\d.]+) ev/s ([\d.]+) ttft p50 ([\d.]+) p99 ([\d.]+)", line)
    if found is None:
        raise RuntimeError(f"read_limit said: {line!r}")
    return Limit(*map(float, found.groups()))
