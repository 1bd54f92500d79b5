"""The names of our messages between Locust's master and its workers, and what both ends share."""

from __future__ import annotations

import os
from typing import Any

PREFIX = "tokenswarm_"
TO_WORKER = ("plan", "go", "stage", "drain", "ack")
TO_MASTER = ("hello", "prepared", "refused", "failed", "late", "stage_done", "records",
             "finished")  # fmt: skip


def end_at_once(*_: Any) -> None:
    """What a second Ctrl-C does, as a signal's handler."""
    os._exit(130)
