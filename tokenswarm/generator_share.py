"""One worker's share of a workload: which slots of `users` and which requests are its own.

Pure arithmetic on numbers of the plan; knows nothing of time or of prompts.

The one subtle rule: everything about request i follows from (seed, i). In closed loop, index i
of a stage belongs to slot i mod users, hence to a worker; each stage has its own range of
indices, so that no two workers can ever send the same request.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

STAGE_INDICES = 10_000_000  # indices that a closed-loop stage without a known number may use


def stage_bases(stages: Sequence[Any]) -> list[int]:
    """First index of each closed-loop stage: after the requests, or the reserve, of the others."""
    sizes = (s.requests if s.requests is not None else STAGE_INDICES for s in stages)
    return [0, *itertools.accumulate(sizes)][: len(stages)]


def slots_of(users: int, k: int, n: int) -> range:
    """The slots of worker k of n."""
    return range(k, users, n)


def closed_indices(base: int, requests: int | None, users: int, k: int, n: int) -> Iterator[int]:
    """Indices of a closed-loop stage for worker k of n, shared out as the slots are."""
    size = STAGE_INDICES if requests is None else requests
    mine = slots_of(users, k, n)
    for block in range(0, size if mine else 0, users):
        for slot in mine:
            if block + slot < size:
                yield base + block + slot


class Share:
    """Worker k of n's part of a workload."""

    def __init__(self, workload: Any, k: int, n: int) -> None:
        self.workload, self.k, self.n = workload, k, n
        self.load = workload.load
        self.stages = self.load.resolved_stages()
        limit = self.load.max_in_flight
        self.max_in_flight = None if limit is None else len(range(k, limit, n))

    def users(self, stage: int) -> int:
        """Most users of a closed-loop stage, over all workers."""
        return int(self.stages[stage].most_users)

    def slots(self, stage: int) -> range:
        """This worker's slots of a closed-loop stage."""
        return slots_of(self.users(stage), self.k, self.n)
