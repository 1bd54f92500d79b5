"""A Locust worker process: its messages, its reports and its end, tied to a WorkerAgent.

The one subtle rule: it outlives its master only to finish what is in flight and keep the records.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from locust import argument_parser
from locust.env import Environment

from tokenswarm.distributed import processes
from tokenswarm.distributed.locust_table import LocustTable
from tokenswarm.distributed.messages import PREFIX, TO_WORKER, end_at_once
from tokenswarm.distributed.worker import WorkerAgent

logger = logging.getLogger(__name__)
_MASTER_SILENCE_S = 15


class LocustWorker:
    """See the module docstring."""

    def __init__(self, environment: Environment, log_line: Callable[..., bytes]) -> None:
        self._runner = runner = environment.runner
        out = environment.parsed_options.out
        spool = Path(out) / "workers" if out else None
        self._table = table = LocustTable(environment)
        self.agent = WorkerAgent(
            runner.client_id, self._sender(runner), log_line, table.fire, spool
        )
        self.agent.before_last_word = self._report_now
        for kind in TO_WORKER:
            runner.register_message(PREFIX + kind, self._receiver(kind), concurrent=True)
        environment.events.report_to_master.add_listener(self._report)
        environment.events.test_start.add_listener(table.let_go)
        environment.events.quitting.add_listener(self._quitting)
        _ignore_first_interrupt()
        _keep_locusts_defaults()
        runner.send_message(PREFIX + "hello", processes.own())
        gevent.spawn(self._watch_master, environment)

    @staticmethod
    def _sender(runner: Any) -> Callable[[str, dict[str, Any]], None]:
        def send(kind: str, data: dict[str, Any]) -> None:
            try:
                runner.send_message(PREFIX + kind, data)
            except Exception as e:  # noqa: BLE001 - the link is down; records are sent again
                logger.warning("'%s' could not be sent to the master: %s", kind, e)

        return send

    def _receiver(self, kind: str) -> Callable[..., None]:
        def receive(environment: Environment, msg: Any, **_: Any) -> None:
            if kind == "plan":
                self._table.hold()
            self.agent.receive(kind, msg.data)

        return receive

    def _report_now(self) -> None:
        self._table.let_go()
        try:
            self._runner._send_stats()
        except Exception as e:  # noqa: BLE001 - the link is down; our own words say so too
            logger.warning("Locust's last report could not be sent: %s", e)

    def _report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        report = self.agent.report()
        if report is not None:
            data["tokenswarm"] = report

    def _quitting(self, environment: Environment, **_: Any) -> None:
        self.agent.leave()

    def _watch_master(self, environment: Environment) -> None:
        """End in order when the master is gone in the middle of a run; the exit code is 3."""
        runner: Any = environment.runner
        heard, silent = None, 0
        while True:
            gevent.sleep(1.0)
            if self.agent.finished:
                continue
            # seconds that this process was awake: one that stood still must not blame the master
            silent = silent + 1 if runner.last_heartbeat_timestamp == heard else 0
            heard = runner.last_heartbeat_timestamp
            if self.agent.master_ended() or silent > _MASTER_SILENCE_S:
                print(f"tokenswarm: {self.agent.orphaned()}", file=sys.stderr, flush=True)  # noqa: T201
                environment.process_exit_code = 3
                runner.quit()
                return


def _keep_locusts_defaults() -> None:
    """Have Locust look its own options up once.

    A worker builds the whole argument parser anew for a message about users, which comes with
    every stage and every second of a ramp: 20 to 35 ms in which no socket is read.
    """
    defaults = argument_parser.default_args_dict()
    argument_parser.default_args_dict = lambda: dict(defaults)


def _ignore_first_interrupt() -> None:
    """Ctrl-C reaches every process of a terminal; the master ends a run, not its workers."""

    def interrupted() -> None:
        signal.signal(signal.SIGINT, end_at_once)

    gevent.signal_handler(signal.SIGINT, interrupted)
