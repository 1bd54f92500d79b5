"""The plan of an open-loop run: when every request is due, before anything is sent.

A process yields gaps of mean 1 (`ARRIVALS`); a shape says how many arrivals are expected by a time
(shapes.py). Arrival k is due where the expected number reaches the sum of its gaps: time-rescaling,
which gives any process under any shape, exactly. The plan is one for the whole run; worker k of n
takes every n-th arrival (`stripe`), so the requests do not depend on the number of workers. This
module knows nothing about clocks, sockets or prompts.

Rules worth knowing:

* The first gap is the wait from the start of the plan: 0 for `constant` and `trace`, a whole random
  gap for `poisson` and `gamma`. `constant` at 10/s is due at 0, 0.1, 0.2, ... s: evenly, always.
* One sequence of gaps runs through all stages. What is left of a gap when a stage ends goes on
  under the next one's shape, so nothing bunches up or is missing at a change of stage.
* A stage of `requests: N` has exactly N arrivals and ends where the next one would be due. A stage
  of `duration` has as many as the process gives: a Poisson count varies, and is left as it is.
* A trace without a rate is replayed as it is, `speed` times as fast; with a rate or shape its gaps
  are scaled to mean 1 first.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tokenswarm.records import BadInput
from tokenswarm.shapes import Shape, Steady
from tokenswarm.traces import read_trace

_T = TypeVar("_T")

_SECOND_NS = 1_000_000_000


class Arrival(NamedTuple):
    """One request of the plan; due_ns counts from the start of the plan."""

    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    stage: int
    due_ns: int


class Stage(Protocol):
    """What the plan needs of a stage; it has an end by time, by requests, or with the trace."""

    @property
    def duration(self) -> float | None:
        """Seconds."""

    @property
    def requests(self) -> int | None:
        """Number of arrivals."""

    @property
    def profile(self) -> Shape | None:
        """Arrivals per second over time; None: a trace as it is."""


class Load(Protocol):
    """What the plan needs of a workload's `load:`."""

    @property
    def arrivals(self) -> str | None:
        """Name of the process."""

    @property
    def burstiness(self) -> float:
        """Shape of the gamma distribution."""

    @property
    def speed(self) -> float:
        """How many times faster than recorded a trace is replayed."""

    @property
    def trace(self) -> str | None:
        """File of the trace."""

    def resolved_stages(self) -> Sequence[Stage]:
        """All stages in order."""


def constant(rng: random.Random, load: Load) -> Iterator[float]:
    """0, then always 1."""
    yield 0.0
    yield from itertools.repeat(1.0)


def poisson(rng: random.Random, load: Load) -> Iterator[float]:
    """Exponential gaps: arrivals that know nothing of each other."""
    draw = rng.expovariate
    while True:
        yield draw(1.0)


def gamma(rng: random.Random, load: Load) -> Iterator[float]:
    """Gamma gaps of shape b = burstiness and mean 1; their variance is 1/b.

    b = 1 is Poisson, below 1 burstier, above 1 more even, as in vLLM's bench.
    """
    draw, b = rng.gammavariate, load.burstiness
    while True:
        yield draw(b, 1.0 / b)


def trace(rng: random.Random, load: Load) -> Iterator[float]:
    """The gaps of a recorded trace: in seconds / speed as they are, else scaled to mean 1."""
    times = [row[0] for row in read_trace(load.trace or "")]
    if any(stage.profile is None for stage in load.resolved_stages()):
        scale = 1.0 / load.speed
    else:
        scale = (len(times) - 1) / times[-1] if times[-1] > 0 else 1.0
    # Differences of scaled times, not scaled differences: the sum comes back to the time.
    scaled = [time * scale for time in times]
    return itertools.chain([0.0], (b - a for a, b in itertools.pairwise(scaled)))


ARRIVALS: dict[str, Callable[[random.Random, Load], Iterator[float]]] = {
    "constant": constant,
    "poisson": poisson,
    "gamma": gamma,
    "trace": trace,
}


def schedule(load: Load, seed: int) -> Iterator[Arrival]:
    """The whole plan, in order of time; the same for the same load and seed.

    Raises BadInput at once when the plan cannot be made: no readable trace, or one that is shorter
    than the requests asked for.
    """
    plan = _plan(load, seed)
    if load.arrivals != "trace":
        return plan
    arrivals = list(plan)  # a trace is in memory anyway, and may be too short
    counts = [0] * len(load.resolved_stages())
    for arrival in arrivals:
        counts[arrival.stage] += 1
    for stage, count in zip(load.resolved_stages(), counts, strict=True):
        if stage.requests is not None and count < stage.requests:
            raise BadInput(
                f"{load.trace}: the trace ends after {len(arrivals)} arrivals, before the "
                f"{stage.requests} requests of a stage: use a longer trace or fewer requests"
            )
    return iter(arrivals)


def stage_ends(load: Load, seed: int) -> tuple[int, ...]:
    """When each stage of the plan ends, in ns from its start; goes through the whole plan."""
    plan = _plan(load, seed)
    while True:
        try:
            next(plan)
        except StopIteration as end:
            ends: tuple[int, ...] = end.value
            return ends


def stripe(plan: Iterable[_T], k: int, n: int) -> Iterator[_T]:
    """Entries k, k + n, k + 2n, ...: the share of worker k of n."""
    if not 0 <= k < n:
        raise ValueError(f"worker {k} of {n} does not exist")
    return itertools.islice(plan, k, None, n)


def _plan(load: Load, seed: int) -> Generator[Arrival, None, tuple[int, ...]]:
    """Yield the arrivals, return the ends of the stages.

    Inside a stage, time is seconds since its start and `position` is the expected number of
    arrivals since its start at which the next one is due.
    """
    name = load.arrivals or "poisson"
    gaps = ARRIVALS[name](random.Random(f"arrivals {seed}"), load)
    position = next(gaps, math.inf)
    start_s, index = 0.0, 0
    ends = []
    for number, stage in enumerate(load.resolved_stages()):
        shape = stage.profile or Steady(level=1.0)
        limit = math.inf if stage.duration is None else shape.cumulative(stage.duration)
        # The rounding error of a sum must not push an arrival over the edge of a stage.
        edge = limit - 1e-9 * max(1.0, limit) if limit < math.inf else limit
        count, due = 0, 0.0
        start_ns, reach = round(start_s * _SECOND_NS), shape.reach
        while position < edge and count != stage.requests:
            due = reach(position, due)
            yield Arrival(index, number, start_ns + round(due * _SECOND_NS))
            index += 1
            count += 1
            position += next(gaps, math.inf)
        if stage.duration is not None:
            start_s, position = start_s + stage.duration, max(0.0, position - limit)
        else:
            end = reach(position, due) if position < math.inf else math.inf
            start_s += end if end < math.inf else due
            position = 0.0 if position < math.inf else position
        ends.append(round(start_s * _SECOND_NS))
    return tuple(ends)
