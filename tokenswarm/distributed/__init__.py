"""The glue to Locust: options, the plan's messages, reports, the end of a run.

Locust's master and workers carry everything: our messages are custom messages of its runners,
snapshots ride in its own reports. What a run is, is decided in master.py and worker.py;
locust_master.py and locust_worker.py only connect them to whatever runner there is, so that
`tokenswarm run`, plain `locust`, `--master/--worker`, `--processes` and a single process do the
same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import locust.runners
from locust.env import Environment
from locust.runners import WorkerRunner

from tokenswarm.distributed import options as options_module
from tokenswarm.distributed.locust_master import LocustMaster, MakeOutlets, Pages, complain
from tokenswarm.distributed.locust_worker import LocustWorker
from tokenswarm.distributed.watch import SILENCE_S
from tokenswarm.records import BadInput

_REPORT_S = 1.0


def install(
    events: Any,
    outlets: MakeOutlets,
    log_line: Callable[..., bytes],
    pages: Pages | None = None,
) -> None:
    """Make a locustfile a tokenswarm one; see locustfiles/stream.py.

    outlets, log_line and pages come from the exporters: files and metrics of a run, the line of
    a request record, and what is added to Locust's web UI.
    """
    locust.runners.WORKER_REPORT_INTERVAL = _REPORT_S
    # Locust ends a run when its last worker was silent for 4 s; one that stood still comes back.
    locust.runners.HEARTBEAT_LIVENESS = round(SILENCE_S)
    events.init_command_line_parser.add_listener(options_module.add_arguments)

    def on_init(environment: Environment, **_: Any) -> None:
        if isinstance(environment.runner, WorkerRunner):
            LocustWorker(environment, log_line)
        else:
            try:
                LocustMaster(environment, outlets, log_line, pages)
            except BadInput as e:
                complain(e)
                sys.exit(2)

    events.init.add_listener(on_init)
