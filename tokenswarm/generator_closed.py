"""Closed loop: a number of users, each of whom sends again the moment his request has ended.

Slot j of `users` is one user. The conductor goes through the stages and starts slots as each
begins; a slot then works through this worker's share of the stage, request by request, or session
by session.

The one subtle rule: a request belongs to the stage of its due time, so a slot asks anew before
each one which stage that is, and whether a ramp still wants it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import gevent
from gevent.event import AsyncResult
from gevent.lock import Semaphore

from tokenswarm.clock import NS, Alarm
from tokenswarm.feed import Feed, Item
from tokenswarm.generator_course import Course
from tokenswarm.generator_prepare import Preparation
from tokenswarm.generator_request import Sender
from tokenswarm.generator_share import Share, closed_indices, slots_of, stage_bases
from tokenswarm.snapshot import Snapshot
from tokenswarm.talks import Talk, stage_sessions
from tokenswarm.transport_held import Held

_BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_POLL_S = 0.02
_SHORT_TOKENS = 1024
_MANY_ROUNDS, _FEW_ROUNDS = 4, 2
_MORE_AHEAD = 48  # for users so few that their rounds take no time


class ClosedLoop:
    """The users of one worker.

    on_stage_done(stage, exhausted_ns) is called when this worker's share of a stage that ends by
    requests is used up; None where it had none.
    """

    def __init__(
        self,
        share: Share,
        course: Course,
        preparation: Preparation,
        sender: Sender,
        snapshot: Snapshot,
        alarm: Alarm,
        on_stage_done: Callable[[int, int | None], None],
    ) -> None:
        self.users = 0  # those with a request now
        self._share, self._course, self._preparation = share, course, preparation
        self._sender, self._snapshot, self._alarm = sender, snapshot, alarm
        self._on_stage_done = on_stage_done
        self._stages = share.stages
        self._stage = -1
        self._entered: dict[int, AsyncResult] = {i: AsyncResult() for i in range(len(self._stages))}
        self._exhausted: set[int] = set()
        self._feeds: dict[int, Feed] = {}
        self._bases = stage_bases(self._stages)
        # All users of a wave may need their next request at once, while the core has no time to
        # prepare: short prompts, which take little memory, are kept ready for several waves.
        longest = share.workload.prompts.max_input_tokens
        short = longest is not None and longest <= _SHORT_TOKENS
        self._rounds_ahead = _MANY_ROUNDS if short else _FEW_ROUNDS
        self._in_sessions = hasattr(preparation.source, "session")
        self._talks: dict[int, Talk] = {}
        self._held: dict[int, Held] = {}  # connections of the slots' sessions
        # Open loop drops what is over the limit; a closed loop's users wait for each other.
        limit = share.max_in_flight
        self._gate = nullcontext() if limit is None else Semaphore(max(1, limit))
        course.at_stop.append(self._let_go)

    @property
    def at_once(self) -> int:
        """Users who start at the plan's instant 0."""
        users = int(self._stages[0].users_at(0.0))
        return len(slots_of(users, self._share.k, self._share.n))

    def prepare(self) -> None:
        """Make the first requests ready. Raises BadInput when they cannot be made."""
        self._feed(0).wait_ready(len(self._share.slots(0)) or 1)

    def run(self) -> None:
        """Go through the stages, starting slots as each begins."""
        course, stages = self._course, self._stages
        self._entered[0].set(course.start_ns)
        slots: dict[int, gevent.Greenlet] = {}
        for index, stage in enumerate(stages):
            begin = self._entered[index].get()
            if begin is None or course.stopping:
                break
            self._alarm.wait_until(begin)
            self._stage = index
            for j in self._share.slots(index):
                if j not in slots or slots[j].ready():
                    slots[j] = course.spawn(self._slot, j, begin)
            if index + 1 < len(stages):
                self._feed(index + 1)
            if stage.duration is not None:
                end = begin + round(stage.duration * NS)
                if index + 1 < len(stages):
                    self.enter(index + 1, end)
                course.stopped.wait(timeout=max(0.0, (end - time.time_ns()) / NS))
            elif not self._share.slots(index):
                self._exhaust(index, None)
        else:
            if stages[-1].duration is None:
                last = gevent.spawn(gevent.joinall, list(slots.values()))
                gevent.wait([last, course.stopped], count=1)
        self._stage = len(stages)
        course.stopping = True
        course.stopped.set()  # users who think need not think to the end

    def enter(self, stage: int, start_ns: int) -> None:
        """A stage after one that ended by requests begins at start_ns."""
        if not self._entered[stage].ready():
            self._entered[stage].set(start_ns)

    def close(self) -> None:
        """Close the connections that sessions hold for themselves."""
        for held in self._held.values():
            held.close()

    def _let_go(self) -> None:
        for entered in self._entered.values():
            if not entered.ready():
                entered.set(None)

    # -- one user ------------------------------------------------------------------------------

    def _slot(self, j: int, due_ns: int) -> None:
        """One user: the next request the moment the one before ended."""
        failures = 0
        course, health, load = self._course, self._snapshot.health, self._share.load
        while not course.stopping:
            stage = self._stage_at(due_ns)
            if stage is None or not self._belongs(j, stage):
                return
            if not self._active(j, stage, due_ns):
                gevent.sleep(_POLL_S)
                due_ns = time.time_ns()
                continue
            asked_ns = time.monotonic_ns()
            item = self._next(j, stage)
            taken_ns = time.monotonic_ns()
            health.starved_ns += taken_ns - asked_ns
            if item is None:
                self._exhaust(stage, time.time_ns())
                return
            if course.stopping:
                return
            self.users += 1
            try:
                with self._gate:
                    if course.stopping:
                        return
                    answer = self._sender.issue(stage, item, due_ns, self._held_by(j))
            finally:
                self.users -= 1
                health.slots_ns += time.monotonic_ns() - taken_ns
            if answer is None:
                return
            if j in self._talks:
                self._talks[j].heard(answer.answer)
                if j in self._held and not self._talks[j].goes_on:
                    self._held[j].close()
            pause = float(load.think_s(self._share.workload.seed, item[0].index))
            failures = 0 if answer.event_ns else failures + 1
            if failures:
                # a server that is gone must not be hammered, nor a disk filled with failures
                pause = max(pause, _BACK_OFF_S[min(failures, len(_BACK_OFF_S)) - 1])
            # not now: what the loop took to see that it ended is lateness of ours
            due_ns = answer.end_ns or time.time_ns()
            if pause:
                course.stopped.wait(timeout=pause)
                due_ns += round(pause * NS)

    def _held_by(self, j: int) -> Held | None:
        if not self._share.load.sticky_connection:
            return None
        return self._held.setdefault(j, Held())

    def _next(self, j: int, stage: int) -> Item | None:
        """The next request of slot j: of the session it is in, else of the stage's feed."""
        try:
            if j in self._talks and (item := self._talks[j].next()) is not None:
                return item
        except Exception as e:  # noqa: BLE001 - ends the run; Generator.run raises it
            self._course.fail(e)
            return None
        taken = self._course.take(self._feed(stage))
        if not isinstance(taken, Talk):
            return taken
        self._talks[j] = taken
        return taken.next()

    def _feed(self, stage: int) -> Feed:
        feed = self._feeds.get(stage)
        if feed is None:
            share, requests = self._share, self._stages[stage].requests
            users, mine = share.users(stage), len(share.slots(stage))
            if self._in_sessions:
                source = self._preparation.source
                sessions = stage_sessions(source, stage, requests, users, share.k, share.n)
                feed = self._preparation.talks(sessions, _FEW_ROUNDS * mine + 16)
            else:
                indices = closed_indices(self._bases[stage], requests, users, share.k, share.n)
                feed = self._preparation.requests(indices, self._rounds_ahead * mine + _MORE_AHEAD)
            self._feeds[stage] = feed
        return feed

    def _stage_at(self, instant_ns: int) -> int | None:
        """The stage that a request due now belongs to; None when the last one is over."""
        stage = max(self._stage, 0)
        while stage < len(self._stages):
            entered, duration = self._entered[stage], self._stages[stage].duration
            if duration is None or not entered.ready():
                return stage
            if entered.value is None:
                return None
            if instant_ns < entered.value + round(duration * NS):
                return stage
            stage += 1
        return None

    def _belongs(self, j: int, stage: int) -> bool:
        if j >= self._share.users(stage):
            return False
        # a user in the middle of a session goes on when there is no new one
        return stage not in self._exhausted or (j in self._talks and self._talks[j].goes_on)

    def _active(self, j: int, stage: int, instant_ns: int) -> bool:
        """Whether a ramp has reached slot j yet, or has left it behind."""
        entered = self._entered[stage]
        begin = entered.value if entered.ready() else None
        t = 0.0 if begin is None else max(0.0, (instant_ns - begin) / NS)
        return j < int(self._stages[stage].users_at(t))

    def _exhaust(self, stage: int, instant_ns: int | None) -> None:
        if stage not in self._exhausted:
            self._exhausted.add(stage)
            if instant_ns is not None and stage == len(self._stages) - 1:
                self._snapshot.exhausted_s = (instant_ns - self._course.start_ns) / NS
            self._on_stage_done(stage, instant_ns)
