"""Slow work in gevent's threadpool, so that the loop stays free.

gevent prints the traceback of whatever is raised in its pool, at once, even when somebody
catches it; here an exception is brought back and raised where the work was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gevent import get_hub

T = TypeVar("T")


def offload(function: Callable[..., T], *args: object) -> T:
    """function(*args) in a thread; the greenlet waits. Raises what it raised."""
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
