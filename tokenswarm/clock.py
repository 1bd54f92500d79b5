"""Waking at an instant, and watching the clocks and the loop.

gevent's timers round to a millisecond of epoll and were measured 0.5 to 1 ms late; a timerfd is
a file descriptor that becomes readable at the instant itself. Everything here runs in gevent's
hub; nothing knows what the instants are for.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import gevent
from gevent import get_hub

_CLOCK_REALTIME = 0
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_READ_EVENT = 1
NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Sleeps a greenlet until an instant of CLOCK_REALTIME; one greenlet at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_REALTIME, _TFD_NONBLOCK | _TFD_CLOEXEC)
        self._watcher: Any = None
        if self._fd >= 0:
            self._watcher = get_hub().loop.io(self._fd, _READ_EVENT)

    def wait_until(self, instant_ns: int) -> None:
        """Block this greenlet until instant_ns; returns at once when it has passed."""
        left = instant_ns - time.time_ns()
        if left <= 0:
            return
        if self._watcher is None:  # no timerfd on this kernel: gevent's own timers
            gevent.sleep(left / NS)
            return
        at = _Itimerspec(_Timespec(0, 0), _Timespec(instant_ns // NS, instant_ns % NS))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(at), None)
        get_hub().wait(self._watcher)

    def close(self) -> None:
        """Give the file descriptor back."""
        if self._watcher is not None:
            self._watcher.close()
            os.close(self._fd)
            self._watcher = None


class StepWatch:
    """Sees the wall clock jump against the monotonic one."""

    def __init__(self) -> None:
        self._offset_ns = self._measure()

    @staticmethod
    def _measure() -> int:
        # The tightest of a few pairs: being preempted between the two reads is no step.
        best: tuple[int, int] | None = None
        for _ in range(5):
            before = time.monotonic_ns()
            wall = time.time_ns()
            width = time.monotonic_ns() - before
            if best is None or width < best[0]:
                best = (width, wall - before - width // 2)
        assert best is not None
        return best[1]

    def step_ns(self) -> int:
        """How far the wall clock moved against the monotonic one since the last call, ns."""
        offset = self._measure()
        step = offset - self._offset_ns
        self._offset_ns = offset
        return step
