"""Counting prompts without holding up the tokens of others.

Short prompts are counted where they are asked for; long ones in a thread, in which the
tokenizers release the interpreter. Knows nothing about connections. Subtle: results come back in
a queue that the loop empties when it is woken, so the engine itself is only ever touched by one
thread.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from tokenswarm.simulator.answer import Ask, RequestError
from tokenswarm.simulator.job import Job
from tokenswarm.simulator.tokenizing import ByBytes, Counted, Tokenizing

THREAD_FROM_BYTES = 4096


class Counting:
    """Prompts in, (job, ask, count or error) out; wake is called from the thread."""

    def __init__(self, tokenizing: Tokenizing, wake: Callable[[], None]) -> None:
        self.done: deque[tuple[Job, Ask, Counted | RequestError]] = deque()
        self._tokenizing = tokenizing
        self._wake = wake
        self._always_here = isinstance(tokenizing, ByBytes)
        self._asked: queue.SimpleQueue[tuple[Job, Ask] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is at."""
        self._asked.put(None)
        self._thread.join()

    def count(self, job: Job, ask: Ask, body_bytes: int) -> Counted | None:
        """The count, or None when it will come through `done`."""
        if self._always_here or body_bytes < THREAD_FROM_BYTES:
            return self._tokenizing.count(ask)
        self._asked.put((job, ask))
        return None

    def _run(self) -> None:
        while (item := self._asked.get()) is not None:
            job, ask = item
            result: Counted | RequestError
            try:
                result = self._tokenizing.count(ask)
            except RequestError as error:
                result = error
            self.done.append((job, ask, result))
            self._wake()
