"""The engine's scheduler: a batch of limited size, a KV cache of limited size, a queue.

Pure bookkeeping in integers; knows nothing about sockets, text or the clock. Subtle: a request
holds prompt + output tokens from start to end, so nothing is ever preempted, and the queue is
strictly first come, first served: a small request does not pass a large one that waits.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Anything that holds KV cache while it runs."""

    @property
    def kv_tokens(self) -> int:
        """Prompt + output tokens."""
        ...


J = TypeVar("J", bound=Sized)


class Batch(Generic[J]):
    """Who runs, who waits."""

    def __init__(self, max_batch: int, kv_tokens: int | None) -> None:
        self.running = 0
        self.kv_used = 0
        self.waiting: deque[J] = deque()
        self._max_batch = max_batch
        self._kv_tokens = kv_tokens

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use; of the batch where the cache has no limit."""
        if self._kv_tokens is None:
            return self.running / self._max_batch
        return self.kv_used / self._kv_tokens

    def can_ever_run(self, kv_tokens: int) -> bool:
        """False for a request that is larger than the whole cache."""
        return self._kv_tokens is None or kv_tokens <= self._kv_tokens

    def has_room(self, kv_tokens: int) -> bool:
        """Whether a request of this size would start at once."""
        fits = self._kv_tokens is None or self.kv_used + kv_tokens <= self._kv_tokens
        return fits and not self.waiting and self.running < self._max_batch

    def submit(self, job: J) -> list[J]:
        """Queue a job; returns the jobs that start now (this one or none)."""
        self.waiting.append(job)
        return self._admit()

    def release(self, job: J) -> list[J]:
        """Give back the place of a job that ran; returns the jobs that start in its stead."""
        self.running -= 1
        self.kv_used -= job.kv_tokens
        return self._admit()

    def withdraw(self, job: J) -> list[J]:
        """Take a job out of the queue; returns the jobs that start because it went."""
        self.waiting.remove(job)
        return self._admit()

    def _admit(self) -> list[J]:
        started = []
        while self.waiting and self.running < self._max_batch:
            job = self.waiting[0]
            if self._kv_tokens is not None and self.kv_used + job.kv_tokens > self._kv_tokens:
                break
            self.waiting.popleft()
            self.running += 1
            self.kv_used += job.kv_tokens
            started.append(job)
        return started
