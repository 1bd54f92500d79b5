"""How a worker itself is doing while it measures: CPU, memory, a late loop, a clock that steps."""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from pathlib import Path
from typing import Any

import gevent
from gevent import get_hub

from tokenswarm.clock import NS, StepWatch
from tokenswarm.generator import Generator

_LAG_PERIOD_S = 0.01
_CPU_SAMPLES = 6  # one a second


class Vitals:
    """Writes a generator's health into its snapshot from now until close."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._health = generator.snapshot.health
        self._steps = StepWatch()
        self._cpu_marks = deque([(time.monotonic(), _cpu_s())], maxlen=_CPU_SAMPLES)
        self._lag_timer = get_hub().loop.timer(_LAG_PERIOD_S, _LAG_PERIOD_S)
        self._lag_fired_ns = time.monotonic_ns()
        self._lag_timer.start(self._lag_fired)
        self._watcher = gevent.spawn(self._watch)

    def close(self) -> None:
        """Measure once more, then no more."""
        self._measure_cpu()
        self._watcher.kill()
        self._lag_timer.stop()

    def _lag_fired(self) -> None:
        now = time.monotonic_ns()
        late = now - self._lag_fired_ns - round(_LAG_PERIOD_S * NS)
        self._lag_fired_ns = now
        self._health.lag.record(max(0, late))

    def _watch(self) -> None:
        """Once a second; and the series is kept small."""
        generator = self._generator
        limit_ns = generator.workload.validity.clock_step_s * NS
        edges = [generator.load.duration or 0.0, *_edges(generator.stages)]
        began = time.monotonic()
        while True:
            gevent.sleep(1.0)
            self._measure_cpu()
            step = self._steps.step_ns()
            if abs(step) > limit_ns:
                self._health.steps.append(step)
            elapsed = time.monotonic() - began
            if int(elapsed) % 60 == 0:
                generator.snapshot.series.fold(elapsed - 60, edges)

    def _measure_cpu(self) -> None:
        health, marks = self._health, self._cpu_marks
        marks.append((time.monotonic(), _cpu_s()))
        (then, cpu_then), (now, cpu_now) = marks[0], marks[-1]
        if now - then > 0.5:
            health.cpu = (cpu_now - cpu_then) / (now - then)
            if len(marks) == marks.maxlen or not health.cpu_max:
                # a busy second is no saturation: the mean over a few is
                health.cpu_max = max(health.cpu_max, health.cpu)
        health.rss_bytes = _rss_bytes()


def _edges(stages: Any) -> list[float]:
    edges, at = [], 0.0
    for stage in stages:
        if stage.duration is None:
            break
        at += stage.duration
        edges.append(at)
    return edges


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
