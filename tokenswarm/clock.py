"""Waking at an instant, and watching the clocks and the loop.

gevent's timers round to a millisecond of epoll and were measured 0.5 to 1 ms late; a timerfd is
a file descriptor that becomes readable at the instant itself. Everything here runs in gevent's
hub; nothing knows what the instants are for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

from gevent import get_hub
from gevent.event import Event

_CLOCK_REALTIME = 0
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_READ_EVENT = 1
_STARVED_SHARE = 0.05
_LOOK_NS = 1_000_000
_BEFORE_ALL = 2  # libev's highest priority, which first tokens have too
NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Sleeps a greenlet until an instant of CLOCK_REALTIME, or until it is woken; one at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_REALTIME, _TFD_NONBLOCK | _TFD_CLOEXEC)
        self._watcher: Any = None
        self._woken = Event()  # for kernels without timerfd
        if self._fd >= 0:
            self._watcher = get_hub().loop.io(self._fd, _READ_EVENT)

    def wait_until(self, instant_ns: int) -> None:
        """Block this greenlet until instant_ns; returns at once when it has passed."""
        left = instant_ns - time.time_ns()
        if left <= 0:
            return
        if self._watcher is None:  # no timerfd on this kernel: gevent's own timers
            self._woken.clear()
            self._woken.wait(timeout=left / NS)
            return
        self._set(instant_ns)
        get_hub().wait(self._watcher)

    def wake(self) -> None:
        """Let the greenlet that sleeps go on now; nothing happens where none does."""
        self._woken.set()
        if self._watcher is not None:
            self._set(1)

    def _set(self, instant_ns: int) -> None:
        at = _Itimerspec(_Timespec(0, 0), _Timespec(instant_ns // NS, instant_ns % NS))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(at), None)

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


class LoopClock:
    """How late the loop is, to tell our own lag from a server that batches.

    A turn begins when sockets are found ready and ends when all of them were read; then greenlets
    go on. after_turn is called in between, in the hub.

    Late by its own turns, or because the machine gave this process no CPU: then a turn is short
    and events piled up all the same. The kernel counts how long a process waited for a CPU.
    """

    def __init__(self) -> None:
        self._schedstat = -1
        with contextlib.suppress(OSError):  # not every kernel keeps it
            self._schedstat = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._waited_at_ns, self._waited_total_ns = time.monotonic_ns(), self._waited_ns()
        self._starved_ns = 0
        self.turn_start_ns = self.turn_end_ns = time.monotonic_ns()
        self.last_turn_ns = 0  # with the greenlets before it
        self.after_turn: Callable[[], None] | None = None
        self._cpu_ns = time.thread_time_ns()
        loop = get_hub().loop
        self._check = loop.check(priority=_BEFORE_ALL)
        self._check.start(self._turn_starts)
        self._prepare = loop.prepare()
        self._prepare.start(self._turn_ends)

    # Called in every turn, which at a low load is with every token: no call too many.
    def _turn_starts(self) -> None:
        self.turn_start_ns = time.monotonic_ns()

    def _turn_ends(self) -> None:
        self.turn_end_ns = now = time.monotonic_ns()
        cpu_ns = time.thread_time_ns()
        self.last_turn_ns = max(now - self.turn_start_ns, cpu_ns - self._cpu_ns)
        self._cpu_ns = cpu_ns
        if self.after_turn is not None:
            self.after_turn()

    def lag_ns(self) -> int:
        """Longest that an event may have waited unread; called for suspicious reads only.

        That is the turn before with the greenlets before it, or this one so far, or how long the
        process waited for a CPU since it was looked at last, when that was no negligible share of
        the time. Greenlets are counted by the CPU that they took: the time until sockets are
        ready is spent waiting for them, too, where the loop is not late.
        """
        now = time.monotonic_ns()
        if now - self._waited_at_ns > _LOOK_NS:  # a late loop calls this many times in a turn
            before, self._waited_total_ns = self._waited_total_ns, self._waited_ns()
            self._starved_ns = self._waited_total_ns - before
            if self._starved_ns < _STARVED_SHARE * (now - self._waited_at_ns):
                self._starved_ns = 0
            self._waited_at_ns = now
        this_turn_ns = max(now - self.turn_start_ns, time.thread_time_ns() - self._cpu_ns)
        return max(self.last_turn_ns, this_turn_ns, self._starved_ns)

    def _waited_ns(self) -> int:
        """Time that this process waited for a CPU so far; 0 where the kernel does not say."""
        try:
            return int(os.pread(self._schedstat, 128, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        """Stop watching the loop."""
        self.after_turn = None
        self._check.stop()
        self._prepare.stop()
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1
