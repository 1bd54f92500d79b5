"""Slow work in gevent's threadpool, so that the loop stays free.

gevent prints the traceback of whatever is raised in its pool, at once, even when somebody
catches it; here an exception is brought back and raised where the work was asked for.

The one subtle rule: one thread works at a time. Python's import locks are gevent's once it has
patched the threads, and two threads that import the same module at the same time can wait for
each other for ever (seen in one start of a run in twenty on a busy machine). Since the work is
Python's, which runs in one thread at a time anyway, nothing is lost by taking turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gevent import get_hub
from gevent.lock import Semaphore

T = TypeVar("T")
_turn = Semaphore()


def offload(function: Callable[..., T], *args: object) -> T:
    """function(*args) in a thread; the greenlet waits. Raises what it raised."""
    with _turn:
        result, error = get_hub().threadpool.apply(_attempt, (function, args))
    if error is not None:
        raise error
    value: T = result
    return value


def _attempt(
    function: Callable[..., T], args: tuple[object, ...]
) -> tuple[T | None, Exception | None]:
    try:
        return function(*args), None
    except Exception as e:  # noqa: BLE001 - raised by offload
        return None, e
