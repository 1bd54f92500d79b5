"""`tokenswarm run`: start Locust, a master and N local workers, and pass its exit code on.

A thin layer: whatever it does can be done with plain `locust` and the same locustfile. It
imports nothing of Locust, so that it costs no start-up time and no memory of note.

The one subtle rule: no process outlives this one. Workers are in a session of their own, so
that Ctrl-C reaches only the master, which ends the run in order; and the kernel ends both when
this process dies (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

from tokenswarm import target, workload

_PR_SET_PDEATHSIG = 1
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SENT_BY_A_PROCESS = 0  # si_code SI_USER
_END_S = 5.0
_ALONE_S = 30.0


def data_folder(name: str) -> Path:
    """A folder that travels with the package: from the wheel, or beside it in a checkout."""
    packaged = Path(str(resources.files("tokenswarm"))) / "_data" / name
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent / name


def locustfile(name: str = "stream.py") -> Path:
    """One of our locustfiles."""
    return data_folder("locustfiles") / name


def launch(args: argparse.Namespace) -> int:
    """Run the workload of the command line; returns the exit code. Raises BadInput."""
    work = workload.load(args.workload, args.sets)  # all mistakes, before anything is started
    target.parse_url(args.host)
    port = _free_port() if args.workers else 0
    # Taken one by one in _wait, which can see who sent them; children get them as usual.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    with tempfile.TemporaryDirectory(prefix="tokenswarm-") as scratch:
        return _run(args, port, scratch, work.load.drain)


def _run(args: argparse.Namespace, port: int, scratch: str, drain_s: float) -> int:
    environment = {**os.environ, "TOKENSWARM_RUN": "1"}
    head = subprocess.Popen(
        _head_command(args, port, scratch), env=environment, preexec_fn=_in_the_child
    )
    workers = [
        subprocess.Popen(
            _worker_command(args, port),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_in_the_child,
        )
        for _ in range(args.workers)
    ]
    code = 4
    try:
        code = _wait(head, workers)
    finally:
        # Without a master, workers let what is in flight finish and keep their records.
        patience_s = _END_S + (drain_s if code < 0 else 0.0)
        _end(workers, 0.0 if code == 130 else patience_s)
    return code if code >= 0 else 128 - code


def _wait(head: subprocess.Popen[Any], workers: list[subprocess.Popen[Any]]) -> int:
    """The master's exit code; signals are passed on to it meanwhile.

    A master left alone by all of its workers is told to end.
    """
    alone_since: float | None = None
    while head.poll() is None:
        received = signal.sigtimedwait(_PASSED_ON | {signal.SIGCHLD}, 0.2)
        if received is not None and received.si_signo in _PASSED_ON:
            # Ctrl-C on a terminal reaches the master by itself: it is in the same group.
            if received.si_signo != signal.SIGINT or received.si_code == _SENT_BY_A_PROCESS:
                wanted = signal.SIGTERM if received.si_signo == signal.SIGHUP else received.si_signo
                head.send_signal(wanted)
            continue
        if not workers or any(w.poll() is None for w in workers):
            continue
        alone_since = alone_since or time.monotonic()
        if time.monotonic() - alone_since > _ALONE_S:
            print("tokenswarm: all workers have ended; ending the master", file=sys.stderr)  # noqa: T201
            head.terminate()
            head.wait()
            return max(head.returncode, 3)
    return head.returncode


def _head_command(args: argparse.Namespace, port: int, scratch: str) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(locustfile()), "--host", args.host,
               "--workload", args.workload]  # fmt: skip
    for text in args.sets:
        command += ["--set", text]
    for text in args.exports:
        command += ["--export", text]
    for flag, value in (("--out", args.out), ("--wait-ready", args.wait_ready),
                        ("--linger", args.linger), ("--gpu", args.gpu)):  # fmt: skip
        if value is not None:
            command += [flag, str(value)]
    if args.web is not None:
        command += ["--web-host", "127.0.0.1", "--web-port", str(args.web)]
    else:
        # Locust's own tables would bury our summary; with a file to write to it prints none.
        command += ["--headless", "--only-summary", "--json-file", str(Path(scratch) / "locust")]
    command += ["--loglevel", "INFO" if args.verbose else "WARNING"]
    if args.workers:
        command += ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port),
                    "--expect-workers", str(args.workers)]  # fmt: skip
    return command


def _worker_command(args: argparse.Namespace, port: int) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(locustfile()), "--worker",
               "--master-host", "127.0.0.1", "--master-port", str(port),
               "--loglevel", "INFO" if args.verbose else "WARNING"]  # fmt: skip
    if args.out is not None:
        command += ["--out", args.out]
    return command


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _in_the_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON | {signal.SIGCHLD})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(processes: list[subprocess.Popen[Any]], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
