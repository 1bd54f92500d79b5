"""The workers that are connected, whether a run is on or not, and how to speak to them.

Knows their names, processes and machines; nothing of what they do.

The one subtle rule: a worker that was restarted comes under a new id and is a new one. Its old
self stays known, as one that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenswarm.distributed import processes
from tokenswarm.run import Worker

Send = Callable[[str, dict[str, Any], str | None], None]


class Crew:
    """Workers by id.

    alive(worker_id) tells whether one still answers. send(kind, data, worker_id) is a message to
    one, or to all of them for None.
    """

    def __init__(self, alive: Callable[[str], bool], send: Send) -> None:
        self.workers: dict[str, Worker] = {}
        self.send = send
        self._alive = alive
        self._where: dict[str, str] = {}

    def joined(
        self, worker_id: str, pid: int | None, host: str, index: int, where: str
    ) -> Worker | None:
        """What is known of a worker now; it is returned when it is a new one.

        where: see processes.here.
        """
        if where:
            self._where[worker_id] = where
        known = self.workers.get(worker_id)
        if known is not None:  # Locust knew it before its own word about itself arrived
            known.pid, known.host = pid or known.pid, host or known.host
            return None
        self.workers[worker_id] = new = Worker(worker_id, index, pid, host)
        return new

    def assign(self, worker_ids: Sequence[str]) -> dict[str, Worker]:
        """These workers with nothing done yet, the k-th with stripe k of a plan."""
        for k, worker_id in enumerate(worker_ids):
            known = self.workers[worker_id]
            self.workers[worker_id] = Worker(worker_id, known.index, known.pid, known.host, k=k)
        return {worker_id: self.workers[worker_id] for worker_id in worker_ids}

    def ended(self, worker_id: str) -> bool:
        """A worker's process is known to be gone, long before its silence tells."""
        return processes.ended(self.workers[worker_id].pid, self._where.get(worker_id, ""))

    def gone(self, worker_id: str) -> bool:
        """A worker's process is gone, or it does not answer."""
        return self.ended(worker_id) or not self._alive(worker_id)
