"""Sessions as a user of a closed loop leads them: each turn after the answer to the one before.

A Talk is what a slot works through before it takes the next one. With recorded replies its
requests are made ahead like any others; with the model's own replies each is made when the
answer before is there. It knows nothing of time or sockets.

The one subtle rule: session s of a stage belongs to slot s mod users, hence to one worker, so
that the sessions do not depend on the number of workers.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tokenswarm.feed import Item
from tokenswarm.offload import offload
from tokenswarm.records import Prompt, Request

STAGE_SESSIONS = 1_000_000  # session numbers that a stage may use


class Talk:
    """One session: `next` gives its requests in order, None when it is over."""

    def __init__(
        self,
        turns: int,
        ready: Sequence[Item],
        session: Any = None,
        build: Callable[[Prompt], Request] | None = None,
    ) -> None:
        self._left = turns
        self._ready = deque(ready)
        self._session = session
        self._build = build
        self._replies: list[str] = []

    @property
    def goes_on(self) -> bool:
        """True when there are turns left."""
        return self._left > 0

    def heard(self, reply: str) -> None:
        """The model's answer to the turn before; an empty one leaves the recorded one in place."""
        if reply:
            self._replies.append(reply)

    def next(self) -> Item | None:
        """The next turn's request; waits while it is made in the threadpool."""
        if not self._left:
            return None
        self._left -= 1
        if self._ready:
            return self._ready.popleft()
        return offload(self._make)

    def _make(self) -> Item:
        assert self._build is not None
        prompt = self._session.prompt(self._replies)
        return without_content(prompt), self._build(prompt)


def maker(source: Any, build: Callable[[Prompt], Request]) -> Callable[[Any], list[Talk]]:
    """A function for a Feed: [(session number, turns)] -> talks. Nothing slow for the loop.

    With recorded replies it may run in another process: its talks can be pickled.
    """

    def make(sessions: Sequence[tuple[int, int]]) -> list[Talk]:
        return [_talk(source, build, number, turns) for number, turns in sessions]

    return make


def _talk(source: Any, build: Callable[[Prompt], Request], number: int, turns: int) -> Talk:
    if source.live:
        session = source.session(number)
        prompt = session.prompt()
        return Talk(turns, [(without_content(prompt), build(prompt))], session, build)
    first = source.first_index(number)
    prompts = source.prompts(range(first, first + turns))
    return Talk(turns, [(without_content(prompt), build(prompt)) for prompt in prompts])


def without_content(prompt: Prompt) -> Prompt:
    """The prompt without what was asked: its request says it, and twice is too much to keep."""
    return replace(prompt, text=None, messages=None, token_ids=None)


def stage_sessions(
    source: Any, stage: int, requests: int | None, users: int, k: int, n: int
) -> Iterator[tuple[int, int]]:
    """(session number, turns) of a closed-loop stage for worker k of n.

    With a number of requests the sessions are those that hold the stage's first so many turns;
    the last one may be cut short.
    """
    if k >= users:  # more workers than users: no session is ever this one's
        return
    base = stage * STAGE_SESSIONS
    begin = source.first_index(base)
    for local in itertools.count():
        number = base + local
        offset = source.first_index(number) - begin
        if requests is not None and offset >= requests:
            return
        turns = source.turns_of(number)
        if requests is not None:
            turns = min(turns, requests - offset)
        if local % users % n == k:
            yield number, turns
