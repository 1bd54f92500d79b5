"""The start of a run, up to the word that everybody waits for: the run, its plans, who is ready.

Knows workers only as names to send plans to; the server is asked in preflight.py.

The one subtle rule: whatever makes a run pointless is BadInput here, before any load was sent.
"""

from __future__ import annotations

import platform
import secrets
import socket
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import gevent

from tokenswarm import __version__, backends, economics, workload
from tokenswarm.distributed import processes
from tokenswarm.distributed.crew import Crew
from tokenswarm.distributed.folder import SPOOLS
from tokenswarm.distributed.options import Options
from tokenswarm.distributed.servers import make_transport
from tokenswarm.records import BadInput
from tokenswarm.run import Run, StageWindow

_PREPARE_TIMEOUT_S = 900.0
_TELL_S = 10.0


def make_run(work: Any, host: str, options: Options) -> Run:
    """A run of a workload that can be one. Raises BadInput for what a look at it tells."""
    work = with_nonce(work)
    run = Run(
        id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        workload=work,
        host=host,
        started=time.time(),
        state="waiting",
        objectives=work.objectives(),
        versions=versions(),
        stages=[
            StageWindow(s.name, s.warmup, users=s.users, rate_per_s=s.rate_per_s)
            for s in work.load.resolved_stages()
        ],
    )
    if work.hardware is not None:
        economics.described(work.hardware.model_dump())  # a model's config.json is read there
    make_transport(work, host).close()  # a bad URL or a missing key is said first
    if options.gpu and work.server.gpu_url:
        raise BadInput(
            "--gpu: the workload's server.gpu_url already reads GPUs; leave one of the two "
            "out, or they would count twice"
        )
    run.warnings += [*work.notes, *backends.make(work).notes]
    return run


def require_room(run: Run) -> None:
    """Raises BadInput where a worker would have to keep to less than one request in flight."""
    load, workers = run.workload.load, len(run.workers)
    if load.max_in_flight is None:
        return
    if load.mode == "closed":  # a worker without users needs no room
        workers = min(workers, max(int(s.most_users) for s in load.resolved_stages()))
    if load.max_in_flight < workers:
        raise BadInput(
            f"load.max_in_flight: {load.max_in_flight} cannot be shared out among {workers} "
            f"workers: start at most {load.max_in_flight}, or raise it"
        )


def send_plans(run: Run, crew: Crew) -> None:
    """Tell each worker its stripe of the plan."""
    text = workload.dump(run.workload)
    n = len(run.workers)
    spool = str((run.out / SPOOLS).absolute()) if run.out is not None else None
    for worker in run.workers.values():
        plan = {"run": run.id, "workload": text, "host": run.host, "k": worker.k, "n": n,
                "master": processes.own(), "spool": spool}  # fmt: skip
        crew.send("plan", plan, worker.id)


def await_prepared(run: Run, crew: Crew, say: Callable[[str], None]) -> None:
    """Wait until every worker has its first requests ready. Raises BadInput when one cannot."""
    deadline = time.monotonic() + _PREPARE_TIMEOUT_S
    told = time.monotonic()
    while not all(w.prepared for w in run.workers.values()):
        for worker in run.workers.values():
            if worker.faults:
                raise BadInput(*worker.faults)
            if crew.gone(worker.id):
                raise BadInput(f"worker {worker.id} went away while preparing; nothing was sent")
        if time.monotonic() > deadline:
            waiting = [w.id for w in run.workers.values() if not w.prepared]
            raise BadInput(f"workers not ready within {_PREPARE_TIMEOUT_S:g} s: {waiting}")
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            say("workers are preparing prompts ...")
        gevent.sleep(0.01)


def with_nonce(work: Any) -> Any:
    """The workload with a fresh nonce, unless it has one: what keeps prompts out of caches."""
    if work.nonce is not None:
        return work
    return work.model_copy(update={"nonce": secrets.token_hex(4)})


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    found = {"tokenswarm": __version__, "python": platform.python_version()}
    for name in ("locust", "gevent", "tokenizers", "tiktoken", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found["system"] = f"{platform.system()} {platform.release()}"
    found["host"] = socket.gethostname()
    return found
