"""When tokens came, for throughput in a window whose end is known only afterwards.

Counted on a worker, merged on the master, like the snapshot that it is a part of.

The one subtle rule: memory grows with the time that a run takes, and slowly, never with its
requests: what is old is kept by the second or by the minute, unless a window may be cut there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tokenswarm.records import Outcome, Record

BUCKET_NS = 10_000_000  # short enough to cut a window exactly
NS_BUCKETS = 1_000_000_000 // BUCKET_NS  # buckets in a second
_HOUR_S = 3600


@dataclass(slots=True)
class Series:
    """When tokens came, in buckets of 10 ms since the plan's start, so that a window is exact.

    The end of the measured window of a run that ends by a number of requests is known only when
    the first user finds nothing more to send, maybe on another worker, so counts per stage are
    not enough. Windows are cut at bucket edges; stages whose length is a multiple of 10 ms are
    cut exactly. What is old is folded (`fold`), except where an edge may be asked for.
    Characters are kept by the second: they are shared out evenly over an answer's events anyway,
    so a part of a second has its part of the events'.
    """

    tokens: Counter[int] = field(default_factory=Counter)
    chars: Counter[int] = field(default_factory=Counter)
    prompt_tokens: Counter[int] = field(default_factory=Counter)
    requests: Counter[int] = field(default_factory=Counter)

    _NAMES = ("tokens", "chars", "prompt_tokens", "requests")

    def add(self, record: Record, start_ns: int) -> None:
        """Count a request's tokens when they came, its prompt at its first token, its end.

        Tokens of events that carry several are shared out evenly over the request's events.
        """
        stamps = record.event_ns
        if not stamps:
            return
        buckets = [(t - start_ns) // BUCKET_NS for t in stamps]
        tokens = record.output_tokens if record.output_tokens is not None else len(stamps)
        share_out(self.tokens, buckets, tokens)
        self._add_chars(buckets, record.output_chars)
        self.prompt_tokens[buckets[0]] += record.prompt_tokens
        if record.outcome is Outcome.OK:
            self.requests[buckets[-1]] += 1

    def _add_chars(self, buckets: list[int], total: int) -> None:
        """Share an answer's characters out over the seconds of its events."""
        at, given, n = 0, 0, len(buckets)
        while at < n:
            second = buckets[at] // NS_BUCKETS
            at = max(at + 1, bisect_left(buckets, (second + 1) * NS_BUCKETS, at))
            upto = total * at // n
            self.chars[second] += upto - given
            given = upto

    def between(self, name: str, start_s: float, end_s: float) -> int:
        """Sum of a counter over [start, end), seconds since the plan's start."""
        low, high = round(start_s * NS_BUCKETS), round(end_s * NS_BUCKETS)
        if name == "chars":
            return self._chars_between(low, high)
        return sum(n for bucket, n in getattr(self, name).items() if low <= bucket < high)

    def _chars_between(self, low: int, high: int) -> int:
        inside, whole = Counter[int](), Counter[int]()
        for bucket, count in self.tokens.items():
            second = bucket // NS_BUCKETS
            whole[second] += count
            if low <= bucket < high:
                inside[second] += count
        total = 0.0
        for second, count in self.chars.items():
            if whole[second]:
                total += count * inside[second] / whole[second]
            elif low <= second * NS_BUCKETS < high:  # the server said: fewer tokens than events
                total += count
        return round(total)

    def fold(self, before_s: float, edges_s: Iterable[float]) -> None:
        """Put what is older than before_s into whole seconds, where it holds no edge.

        What is older by an hour still, and did not come in the first hour, where a steady state
        may begin, goes into whole minutes: a soak of a week keeps some ten thousand numbers.
        """
        seconds = {int(edge) for edge in edges_s}
        minutes = {second // 60 for second in seconds}

        def place(second: int) -> int:
            is_old = _HOUR_S <= second < before_s - _HOUR_S and second // 60 not in minutes
            return second // 60 * 60 if is_old else second

        for name in ("tokens", "prompt_tokens", "requests"):
            folded: Counter[int] = Counter()
            for bucket, count in getattr(self, name).items():
                second = bucket // NS_BUCKETS
                is_old = second < before_s - 1 and second not in seconds
                folded[place(second) * NS_BUCKETS if is_old else bucket] += count
            setattr(self, name, folded)
        chars: Counter[int] = Counter()
        for second, count in self.chars.items():
            chars[place(second)] += count
        self.chars = chars

    def merge(self, other: Series) -> None:
        """Add another worker's counts."""
        for name in self._NAMES:
            getattr(self, name).update(getattr(other, name))

    def to_wire(self) -> dict[str, Any]:
        """Pairs of bucket and count for each counter."""
        return {name: [*zip(*getattr(self, name).items(), strict=True)] for name in self._NAMES}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Series:
        """The inverse of to_wire."""
        return cls(**{n: Counter(dict(zip(*wire[n], strict=True))) for n in cls._NAMES if wire[n]})


def share_out(into: Counter[int], buckets: list[int], total: int) -> None:
    """Share a total over buckets as evenly as whole numbers can, adding up to it exactly."""
    n = len(buckets)
    each, left = divmod(total, n)
    if each == 1:
        into.update(buckets)
    elif each:
        for bucket in buckets:
            into[bucket] += each
    if left:
        into.update([buckets[k * n // left] for k in range(left)])
