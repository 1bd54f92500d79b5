"""CPU and memory of a command and of everything it starts, sampled from /proc while it runs.

Knows nothing about what runs. The subtle rule: a process that has ended keeps the CPU it had at
its last sample, so the sum never goes back.
"""

from __future__ import annotations

import bisect
import itertools
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_EVERY_S = 0.1
_MEMORY_EVERY = 5  # samples: a look at memory costs far more than one at CPU


@dataclass
class Usage:
    """What a command used; times are Unix seconds, memory is proportional (shared pages once)."""

    started: float
    ended: float = 0.0
    code: int = 0
    times: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)

    @property
    def peak_mb(self) -> float:
        """The highest sum of memory seen."""
        return max((size for _, size in self.memory), default=0) / 1e6

    def cpu_until(self, t: float) -> float:
        """CPU seconds used before an instant, by linear interpolation of the samples."""
        i = bisect.bisect_left(self.times, t)
        if i == 0:
            return 0.0
        if i == len(self.times):
            return self.cpu_s[-1]
        before, after = self.times[i - 1], self.times[i]
        share = (t - before) / (after - before)
        return self.cpu_s[i - 1] + share * (self.cpu_s[i] - self.cpu_s[i - 1])

    def cpu_between(self, begin: float, end: float) -> float:
        """CPU seconds used from one instant to another."""
        return self.cpu_until(end) - self.cpu_until(begin)


def measured(
    command: Sequence[str],
    *,
    core: int,
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Usage:
    """Run a command pinned to one core and sample its tree; its output goes to `log`."""
    with log.open("wb") as out:
        process = psutil.Popen(
            ["taskset", "-c", str(core), *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        usage = Usage(started=time.time())
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process, usage, ended), daemon=True)
        sampler.start()
        try:
            usage.code = process.wait(timeout=timeout_s)
        except psutil.TimeoutExpired:
            usage.code = -1
            _kill_tree(process)
        usage.ended = time.time()
        ended.set()
        sampler.join()
    return usage


def _kill_tree(root: psutil.Popen) -> None:
    for process in [*root.children(recursive=True), root]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    root.wait()


def _sample(root: psutil.Popen, usage: Usage, ended: threading.Event) -> None:
    cpu_of: dict[tuple[int, float], float] = {}
    for turn in itertools.count():
        tree = [root]
        with suppress(psutil.NoSuchProcess):
            tree = [root, *root.children(recursive=True)]
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                cpu_of[process.pid, process.create_time()] = times.user + times.system
        usage.times.append(time.time())
        usage.cpu_s.append(sum(cpu_of.values()))
        if turn % _MEMORY_EVERY == 0:
            usage.memory.append((time.time(), sum(_proportional_size(p.pid) for p in tree)))
        if ended.wait(_EVERY_S):
            return


def _proportional_size(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
