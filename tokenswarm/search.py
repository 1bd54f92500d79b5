"""Where to probe next: the highest level of load that passes, found in few probes.

Pure: levels and verdicts in, the next level out. First the level grows (or shrinks) until one
passes and one fails; then the bracket is narrowed. A probe that failed because the server was
overloaded says what the server can do (its hint), which is nearly always closer than the
middle of the bracket: the search looks just below and just above it, then in growing steps
away from it, and in the geometric middle when hints are used up.

The one subtle rule: a verdict that its own confidence interval does not support is no verdict.
Such a level is probed again, and two equal verdicts decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GROWTH = 4.0
SHRINK = 8.0
_STEPS = (0.5, 2.0, 8.0)  # distances from a hint, in precisions
_LEAST_SHARE = 1e-3  # of the level that was started with: below it no load passes


@dataclass(frozen=True, slots=True)
class Probe:
    """One run at a level. sure: the verdict is outside of its confidence interval.

    hint is the level that an overloaded server was seen to sustain; None when it was not
    overloaded or nothing can be said. full: long enough for a final verdict.
    """

    level: float
    passed: bool
    sure: bool = True
    full: bool = True
    hint: float | None = None
    throughput: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Bracket:
    """passes: the highest level that passed; fails: the lowest above it that failed."""

    passes: float | None
    fails: float | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is searched: start level, limits, relative precision, whole numbers or not."""

    start: float
    low: float | None = None
    high: float | None = None
    precision: float = 0.03
    whole: bool = False
    growth: float = GROWTH

    @property
    def least(self) -> float:
        """The lowest level worth a probe."""
        if self.low is not None:
            return self.low
        return 1.0 if self.whole else self.start * _LEAST_SHARE

    def rounded(self, level: float) -> float:
        """A level that can be run: whole where it must be, with few digits where not."""
        return float(max(1, round(level))) if self.whole else float(f"{level:.4g}")

    def close(self, passes: float, fails: float) -> bool:
        """The bracket is as narrow as asked."""
        slack = 1.0 if self.whole else 0.0
        return fails - passes <= max(slack, self.precision * passes * (1 + 1e-9))


def verdict(probes: Iterable[Probe]) -> bool | None:
    """What the probes of one level say together; None: probe again."""
    votes = list(probes)
    sure = [p.passed for p in votes if p.sure and p.full] or [p.passed for p in votes if p.sure]
    if sure:
        return sure[-1]
    for outcome in (True, False):
        if sum(p.passed is outcome for p in votes) >= 2:
            return outcome
    return None


def bracket(probes: Sequence[Probe]) -> Bracket:
    """What is known so far. A pass above a failure is noise: the failure counts."""
    decided = {p.level: verdict(q for q in probes if q.level == p.level) for p in probes}
    fails = min((level for level, ok in decided.items() if ok is False), default=None)
    passes = max(
        (level for level, ok in decided.items() if ok and (fails is None or level < fails)),
        default=None,
    )
    return Bracket(passes, fails)


def next_level(probes: Sequence[Probe], bounds: Bounds) -> float | None:
    """The level to probe next; None when the answer is known."""
    if not probes:
        return bounds.rounded(bounds.start)
    last = probes[-1].level
    if verdict(p for p in probes if p.level == last) is None:
        return last
    known = bracket(probes)
    if known.fails is None:
        assert known.passes is not None
        return _above(known.passes, probes, bounds)
    if known.passes is None:
        return _below(known.fails, probes, bounds)
    if bounds.close(known.passes, known.fails):
        return None
    return _between(known.passes, known.fails, probes, bounds)


def confirmed(probes: Sequence[Probe]) -> bool:
    """The two ends of the bracket come from probes of full length."""
    known = bracket(probes)
    return all(
        any(p.full for p in probes if p.level == level)
        for level in (known.passes, known.fails)
        if level is not None
    )


def knee(probes: Iterable[Probe]) -> Probe | None:
    """The probe where throughput over latency (Kleinrock's power) is highest, of three or more."""
    known = [p for p in probes if p.throughput and p.latency_s]
    if len({p.level for p in known}) < 3:
        return None
    return max(known, key=lambda p: (p.throughput or 0.0) / (p.latency_s or math.inf))


def _above(passes: float, probes: Sequence[Probe], bounds: Bounds) -> float | None:
    """Further up: in larger steps, the more of them passed."""
    if bounds.high is not None and passes >= bounds.high:
        return None
    steps = len({p.level for p in probes})
    factor = min(GROWTH, bounds.growth**steps)
    level = bounds.rounded(max(passes * factor, passes + (1 if bounds.whole else 0)))
    return level if bounds.high is None else min(level, bounds.high)


def _below(fails: float, probes: Sequence[Probe], bounds: Bounds) -> float | None:
    """Further down: to the hint, or by a large step."""
    if fails <= bounds.least:
        return None
    hint = _hint(probes)
    if hint is not None and bounds.least < hint < fails:
        for level in _around(hint, bounds):
            if bounds.least <= level < fails:
                return level
    return max(bounds.least, bounds.rounded(fails / SHRINK))


def _between(passes: float, fails: float, probes: Sequence[Probe], bounds: Bounds) -> float | None:
    hint = _hint(probes)
    if hint is not None:
        for level in _around(hint, bounds):
            if passes < level < fails:
                return level
    level = bounds.rounded(math.sqrt(passes * fails))
    if bounds.whole:
        level = min(max(level, passes + 1), fails - 1)
    return level if passes < level < fails else None


def _around(hint: float, bounds: Bounds) -> list[float]:
    """Just below a hint, just above it, further below, further above."""
    levels: list[float] = []
    for step in _STEPS:
        distance = step * bounds.precision
        if bounds.whole:
            levels += [math.floor(hint * (1 - distance)), math.ceil(hint * (1 + distance))]
        else:
            levels += [hint * (1 - distance), hint * (1 + distance)]
    return [bounds.rounded(level) for level in levels if level > 0]


def _hint(probes: Sequence[Probe]) -> float | None:
    """The hint of the lowest failure: the less overloaded, the better it tells."""
    hints = [(p.level, p.hint) for p in probes if not p.passed and p.hint]
    return min(hints)[1] if hints else None
