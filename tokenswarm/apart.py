"""Slow work in a process of its own, for while a run is on.

A thread would do, were it not for the interpreter's lock: the loop gives the lock up with every
read of a socket, a thread that computes takes it, and keeps it for a whole switch interval. At
1,024 streams that made first tokens 60 ms late. A forked child shares no lock with the loop and,
because the kernel copies pages only when they are written, little memory. While there is time it
runs only when nothing else wants the core.

It knows nothing of prompts: `function` turns a list into a list, and both ends are pickled.

The one subtle rule: the child must never touch what belongs to its parent. It closes the sockets
and pipes that it inherited, ignores the signals that end a run in order, runs nothing of gevent,
and leaves by os._exit when its parent is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import pickle
import signal
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gevent
import gevent.monkey
from gevent.lock import Semaphore
from gevent.os import nb_read, nb_write

from tokenswarm.offload import offload

logger = logging.getLogger(__name__)
_HEADER = struct.Struct("!?I")  # request: in a hurry; answer: it is an error; then the length
_PIPE_BYTES = 1 << 20
_NICE = 10  # a tenth of a core that the loop wants too: a late request is said, a late read is not
# gevent's own would make a hub for the child, and leave closing to it.
_fork: Callable[[], int] = gevent.monkey.get_original("os", "fork")
_close: Callable[[int], None] = gevent.monkey.get_original("os", "close")


class Apart:
    """function(items) -> list, computed in a child that is forked by start, or the first call.

    Better by start, before a run: afterwards both processes copy the pages that they write.
    Where no child can be had, or when it dies, a thread does the work: slower, never wrong.
    """

    def __init__(self, function: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._function = function
        self._turn = Semaphore()  # the child answers one request at a time
        self.pid: int | None = None
        self._to = self._from = -1
        self._is_usable = True
        self._is_asked = False

    def start(self) -> None:
        """Fork the child now."""
        if self._is_usable and self.pid is None:
            try:
                self._start()
            except OSError as e:
                self._give_up(e)

    def _give_up(self, e: OSError) -> None:
        logger.warning("Prompts are prepared in a thread from now on: %s", e)
        self.close()

    def __call__(self, items: Sequence[Any], hurry: bool = True) -> list[Any]:
        """The function's result; the greenlet waits. Raises what the function raised.

        hurry: somebody waits for it. Otherwise the child runs when nothing else does.
        """
        with self._turn:
            if self._is_usable:
                try:
                    if self.pid is None:
                        self._start()
                    return self._ask(items, hurry)
                except OSError as e:
                    if not self._is_usable:  # closed while it was asked: nobody wants the answer
                        raise gevent.GreenletExit from None
                    self._give_up(e)
        return offload(self._function, items)

    def _ask(self, items: Sequence[Any], hurry: bool) -> list[Any]:
        self._is_asked = True
        try:
            asked = pickle.dumps(items, protocol=5)
            _write(self._to, _HEADER.pack(hurry, len(asked)) + asked)
            failed, size = _HEADER.unpack(_read(self._from, _HEADER.size))
            answer = _read(self._from, size)
        except gevent.GreenletExit:  # its answer is still to come: nobody else may take it
            self.close()
            raise
        finally:
            self._is_asked = False
            if not self._is_usable:
                self._close_pipes()
        made = pickle.loads(answer)
        if failed:
            raise made
        result: list[Any] = made
        return result

    def _start(self) -> None:
        """Fork. Raises OSError."""
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        with warnings.catch_warnings():
            # Python warns of threads' locks; the child starts no thread and takes no such lock
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.pid = _fork()
            except OSError:
                os.close(self._to)
                os.close(self._from)
                raise
            finally:
                if self.pid != 0:
                    os.close(theirs_in)
                    os.close(theirs_out)
        if self.pid == 0:
            _serve(theirs_in, theirs_out, self._function)
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):  # a small pipe only takes more turns
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """End the child; safe to call twice."""
        self._is_usable = False
        if self.pid is None:
            return
        pid, self.pid = self.pid, None
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if not self._is_asked:  # whoever asks sees the pipe end, and could not if it were closed
            self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = -1


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[nb_write(fd, view) :]


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = nb_read(fd, min(size, _PIPE_BYTES))
        if not part:
            raise BrokenPipeError(f"the process that prepared them is gone ({size} bytes missing)")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# -- the child -----------------------------------------------------------------------------------


def _serve(source: int, sink: int, function: Callable[[Sequence[Any]], list[Any]]) -> None:
    """Answer until the parent closes its end; never returns."""
    try:
        _let_go({source, sink})
        idle = False
        with open(source, "rb") as reader, open(sink, "wb") as writer:
            while header := reader.read(_HEADER.size):
                hurry, size = _HEADER.unpack(header)
                if idle == hurry:
                    idle = _be_idle(not hurry)
                items = pickle.loads(reader.read(size))
                try:
                    failed, answer = False, pickle.dumps(function(items), protocol=5)
                except Exception as e:  # noqa: BLE001 - raised where the work was asked for
                    failed, answer = True, _dumped(e)
                writer.write(_HEADER.pack(failed, len(answer)) + answer)
                writer.flush()
    except BaseException:  # noqa: BLE001 - the parent sees the pipe end, and says so
        pass
    finally:
        os._exit(0)


def _dumped(e: Exception) -> bytes:
    try:
        dumped = pickle.dumps(e)
        pickle.loads(dumped)
    except Exception:  # noqa: BLE001
        return pickle.dumps(RuntimeError(f"{type(e).__name__}: {e}"))
    return dumped


def _let_go(kept: set[int]) -> None:
    """Close inherited sockets, pipes and event queues, and take no part in signals."""
    os.nice(_NICE)
    gc.freeze()  # no collection writes to the pages that are shared with the parent
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for link in list(Path("/proc/self/fd").iterdir()):
        fd = int(link.name)
        with contextlib.suppress(OSError):
            is_file = str(link.readlink()).startswith("/")
            if fd > 2 and fd not in kept and not is_file:
                _close(fd)


def _be_idle(idle: bool) -> bool:
    """Run only when nothing else wants the core, or like everybody else; what it is now."""
    policy = os.SCHED_IDLE if idle else os.SCHED_OTHER
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return not idle
    return idle
