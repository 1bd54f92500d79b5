"""The Locust user of a tokenswarm run: what Locust's pages count and its master spreads out.

Requests are sent by the worker's Generator, in slots of its own, because Locust's dispatcher can
neither start users at a given instant nor spread them as a plan wants. A StreamUser is the face
of one slot: it waits until its run is over.
"""

from __future__ import annotations

import gevent
from locust import User, task


class StreamUser(User):
    """One user of the plan, as Locust counts them; make a subclass of it in a locustfile."""

    abstract = True

    @task
    def stream(self) -> None:
        """Wait; the slot that this user stands for is driven by the plan."""
        gevent.sleep(60)
