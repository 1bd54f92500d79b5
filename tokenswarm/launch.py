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
import time
from importlib import resources
from pathlib import Path
from typing import Any

from tokenswarm import target, workload

_PR_SET_PDEATHSIG = 1
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
    workload.load(args.workload, args.sets)  # all mistakes at once, before anything is started
    target.parse_url(args.host)
    port = _free_port() if args.workers else 0
    environment = {**os.environ, "TOKENSWARM_RUN": "1"}
    head = subprocess.Popen(_head_command(args, port), env=environment, preexec_fn=_die_with_us)
    workers = [
        subprocess.Popen(
            _worker_command(args, port),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_us,
        )
        for _ in range(args.workers)
    ]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: head.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to the master as well
    try:
        code = _wait(head, workers)
    finally:
        _end(workers)
    return code if code >= 0 else 128 - code


def _wait(head: subprocess.Popen[Any], workers: list[subprocess.Popen[Any]]) -> int:
    """The master's exit code. A master left alone by all of its workers is told to end."""
    alone_since: float | None = None
    while True:
        try:
            return head.wait(0.2)
        except subprocess.TimeoutExpired:
            if not workers or any(w.poll() is None for w in workers):
                continue
        alone_since = alone_since or time.monotonic()
        if time.monotonic() - alone_since > _ALONE_S:
            print("tokenswarm: all workers have ended; ending the master", file=sys.stderr)  # noqa: T201
            head.terminate()
            head.wait()
            return max(head.returncode, 3)


def _head_command(args: argparse.Namespace, port: int) -> list[str]:
    command = [sys.executable, "-m", "locust", "-f", str(locustfile()), "--host", args.host,
               "--workload", args.workload]  # fmt: skip
    for text in args.sets:
        command += ["--set", text]
    for text in args.exports:
        command += ["--export", text]
    for flag, value in (("--out", args.out), ("--wait-ready", args.wait_ready),
                        ("--linger", args.linger)):  # fmt: skip
        if value is not None:
            command += [flag, str(value)]
    if args.web is not None:
        command += ["--web-host", "127.0.0.1", "--web-port", str(args.web)]
    else:
        command += ["--headless", "--only-summary", "--json-file", os.devnull]
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


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(processes: list[subprocess.Popen[Any]]) -> None:
    deadline = time.monotonic() + _END_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
