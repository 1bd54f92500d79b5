"""Open loop: each request of a stripe starts at its due instant, whatever the others do.

A dispatcher wakes at each instant of the plan and starts a greenlet for it. It knows nothing of
answers.

The one subtle rule: what is over max_in_flight is dropped and counted, never sent late.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tokenswarm import arrivals
from tokenswarm.clock import NS, Alarm
from tokenswarm.feed import Feed, Item
from tokenswarm.generator_course import Course
from tokenswarm.generator_prepare import Preparation
from tokenswarm.generator_request import Sender
from tokenswarm.generator_share import Share
from tokenswarm.snapshot import Snapshot

_AHEAD_S = 2.0
_GUESSED_RATE = 100.0  # of a stage whose arrivals come from a file


class OpenLoop:
    """The dispatcher of one worker's stripe of arrivals."""

    def __init__(
        self,
        share: Share,
        course: Course,
        preparation: Preparation,
        sender: Sender,
        snapshot: Snapshot,
        alarm: Alarm,
    ) -> None:
        self._share, self._course, self._preparation = share, course, preparation
        self._sender, self._snapshot, self._alarm = sender, snapshot, alarm
        self._arrivals: Iterator[arrivals.Arrival] = iter(())
        durations = [stage.duration for stage in share.stages]
        self._ends_s = None if None in durations else sum(durations)
        course.at_stop.append(alarm.wake)
        self._feed: Feed | None = None

    @property
    def users(self) -> int:
        """There are none: requests in flight stand for them."""
        return self._sender.in_flight

    @property
    def at_once(self) -> int:
        """Requests that the plan surely has at its instant 0."""
        return 0

    def prepare(self) -> None:
        """Make the first requests ready. Raises BadInput when the plan cannot be made."""
        share = self._share
        plan = arrivals.schedule(share.load, share.workload.seed)
        self._arrivals, ahead = itertools.tee(arrivals.stripe(plan, share.k, share.n))
        rate = max(s.profile.highest(s.duration or 0.0) if s.profile else _GUESSED_RATE
                   for s in share.stages)  # fmt: skip
        wanted = int(rate * _AHEAD_S / share.n) + 16
        self._feed = self._preparation.requests((a.index for a in ahead), wanted)
        self._feed.wait_ready(wanted)

    def run(self) -> None:
        """Start every request of the stripe; returns when the last one was started.

        Where all stages have a duration, no sooner than the plan's end: draining begins there.
        """
        assert self._feed is not None
        course, limit = self._course, self._share.max_in_flight
        for arrival in self._arrivals:
            item = course.take(self._feed)
            if item is None or course.stopping:
                break
            due_ns = course.start_ns + arrival.due_ns
            self._alarm.wait_until(due_ns)
            if course.stopping:
                break
            # started but not yet sent ones count: a late dispatcher starts many in one turn
            if limit is not None and len(course.requests) >= limit:
                self._snapshot.stage(arrival.stage).dropped += 1
                continue
            course.spawn(self._issue, arrival.stage, item, due_ns)
        if self._ends_s is not None and not course.stopping:
            self._alarm.wait_until(course.start_ns + round(self._ends_s * NS))

    def _issue(self, stage: int, item: Item, due_ns: int) -> None:
        if self._sender.issue(stage, item, due_ns) is None:
            self._snapshot.stage(stage).dropped += 1

    def enter(self, stage: int, start_ns: int) -> None:
        """Nothing waits for the word: the plan has every instant."""

    def close(self) -> None:
        """Nothing is held."""
