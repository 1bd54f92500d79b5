"""Locust's own table, charts and CSV, which show a run's requests, each once.

The one subtle rule: Locust empties a worker's table when its word to spawn comes, which may be
after the first requests have ended. What ended before is told afterwards.
"""

from __future__ import annotations

from typing import Any

from tokenswarm.records import Outcome, Record

_MOST_HELD = 10_000  # Locust's word comes in milliseconds; should it never come, memory stays


class RequestFailed(Exception):  # noqa: N818 - what Locust's failure table shows
    """Shown in Locust's own failure table: the outcome only, so that texts stay few."""


class LocustTable:
    """Tells Locust of requests. The response time is e2e; a failed request has none."""

    def __init__(self, environment: Any) -> None:
        self._events = environment.events
        self._held: list[tuple[Record, str]] | None = None

    def hold(self) -> None:
        """A run is prepared: keep its requests until Locust has begun it, too."""
        self._held = []

    def let_go(self, **_: Any) -> None:
        """Locust has begun the run, and emptied its table before."""
        held, self._held = self._held, None
        for record, name in held or ():
            self.fire(record, name)

    def fire(self, record: Record, name: str) -> None:
        """One request has ended. A cancelled one is none to Locust."""
        if record.outcome is Outcome.CANCELLED:
            return
        if self._held is not None:
            self._held.append((record, name))
            if len(self._held) >= _MOST_HELD:
                self.let_go()
            return
        ok = record.outcome is Outcome.OK
        latency = None
        if ok and record.last_ns is not None and record.sent_ns is not None:
            latency = (record.last_ns - record.sent_ns) / 1e6
        status = f" {record.http_status}" if record.http_status not in (None, 200) else ""
        self._events.request.fire(
            request_type="POST",
            name=name,
            response_time=latency,
            response_length=record.output_chars,
            exception=None if ok else RequestFailed(f"{record.outcome.value}{status}"),
            context={"record": record},
        )
