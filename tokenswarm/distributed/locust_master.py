"""A Locust master, or the single process of a run without workers, tied to a Master.

The one subtle rule: the handler of `test_start` may block, and does: nothing is spawned before
the server was probed and every worker is prepared.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import LocalRunner, MasterRunner

from tokenswarm import workload
from tokenswarm.distributed import form
from tokenswarm.distributed import options as options_module
from tokenswarm.distributed.locust_table import LocustTable
from tokenswarm.distributed.master import Master, Outlets
from tokenswarm.distributed.messages import PREFIX, TO_MASTER, end_at_once
from tokenswarm.distributed.options import Options
from tokenswarm.distributed.worker import WorkerAgent
from tokenswarm.records import BadInput

logger = logging.getLogger(__name__)
_SAME_INTERRUPT_S = 0.3
_WORKERS_PATIENCE_S = 10.0
# All of Locust's users at once: they only stand for our slots.
_SPAWN_RATE = 1_000_000

MakeOutlets = Callable[[Options], Outlets]
Pages = Callable[[Any, Master, Callable[[], tuple[str, ...]]], None]


def complain(error: BadInput) -> None:
    """Print what the user gave and cannot be used."""
    for problem in error.problems:
        print(f"tokenswarm: {problem}", file=sys.stderr)  # noqa: T201 - stderr is the place
    sys.stderr.flush()


class LocustMaster:
    """See the module docstring."""

    def __init__(
        self,
        environment: Environment,
        outlets: MakeOutlets,
        log_line: Callable[..., bytes],
        pages: Pages | None,
    ) -> None:
        self.environment = environment
        self.runner: Any = environment.runner
        self.master: Any = None  # a Master, once the workload is known to be good
        self.refused: tuple[str, ...] = ()  # why the last start was none
        self._early: list[tuple[str, Any]] = []
        if isinstance(self.runner, MasterRunner):
            for kind in TO_MASTER:  # workers may speak while the workload is still being read
                self.runner.register_message(PREFIX + kind, self._receiver(kind))
        self.options = options_module.read(
            environment.parsed_options, env_plain="TOKENSWARM_RUN" not in os.environ
        )
        work = workload.load(self.options.workload, self.options.sets)
        self.headless = bool(environment.parsed_options.headless)
        if self.headless and not environment.host:
            raise BadInput("--host: missing; the base URL of the server under test")
        self.outlets = outlets(self.options)
        self.local: WorkerAgent | None = None
        send = self._send_to_worker
        if isinstance(self.runner, LocalRunner):
            self.local = WorkerAgent(
                self.runner.client_id, self._receive_local, log_line, LocustTable(environment).fire
            )
            send = self._send_local
        self.master = Master(
            self.options, self.outlets, send, self._alive, self._say, self._show_users
        )
        for kind, msg in self._early:
            self._receiver(kind)(environment, msg)
        self._waiter: gevent.Greenlet | None = None
        self._closed = False
        self._was_interrupted = False
        self._shown_users = 0
        self._set_load_defaults(work)
        self._listen()
        if self.local is not None:
            self.master.joined(self.runner.client_id, os.getpid(), socket.gethostname(), 0)
        if environment.web_ui is not None:
            form.refuse_bad(
                environment, self.options.sets, lambda: bool(self.master.active), self._say_refused
            )
            if pages is not None:
                pages(environment, self.master, lambda: self.refused)
        if self.headless and isinstance(self.runner, MasterRunner):
            self._await_workers()

    # -- Locust's events -----------------------------------------------------------------------

    def _listen(self) -> None:
        events = self.environment.events
        events.test_start.add_listener(self._test_start)
        events.test_stopping.add_listener(self._test_stopping)
        events.quitting.add_listener(self._quitting)
        events.worker_report.add_listener(self._worker_report)
        gevent.signal_handler(signal.SIGINT, self._interrupted)

    def _set_load_defaults(self, work: Any) -> None:
        """The numbers that Locust shows and starts with; the plan decides what is really sent."""
        parsed = self.environment.parsed_options
        users = [s.users for s in work.load.resolved_stages() if s.users]
        parsed.num_users = users[0] if users else 1
        parsed.spawn_rate = _SPAWN_RATE
        logging.getLogger("locust.runners").addFilter(_not_about_the_spawn_rate)

    def _await_workers(self) -> None:
        """Locust looks once a second; a run that waits for its workers should start at once."""
        wanted = self.environment.parsed_options.expect_workers
        deadline = time.monotonic() + _WORKERS_PATIENCE_S
        while len(self.runner.clients.ready) < wanted and time.monotonic() < deadline:
            gevent.sleep(0.01)

    def _test_start(self, environment: Environment, **_: Any) -> None:
        if self.master.active:
            return
        if environment.web_ui is not None:
            environment.web_ui._cancel_run_time_timer()  # the plan has the form's duration
            # Its page asks how things are and, were they still "ready" while the server is asked
            # and prompts are cut, would take the start for over and offer the form again.
            self.runner.update_state("spawning")
        self.refused = ()
        try:
            self.master.begin(environment.host, self._overrides(), self._ready())
        except BadInput as e:
            self.refused = e.problems
            complain(e)
            self._refuse(2)
        except gevent.GreenletExit:
            raise
        except Exception as e:
            self.refused = (f"internal error: {type(e).__name__}: {e}",)
            logger.exception("The run could not be started")
            self._refuse(4)
        else:
            self._waiter = gevent.spawn(self._end_with_the_plan)

    def _say_refused(self, problems: tuple[str, ...]) -> None:
        self.refused = problems

    def _refuse(self, code: int) -> None:
        self.environment.process_exit_code = code
        if self.headless or not isinstance(gevent.getcurrent(), gevent.Greenlet):
            gevent.spawn(self._leave if self.headless else self._stop_locust)
            return
        # Nothing has been spawned yet. A stop now would reach the workers before Locust's word to
        # spawn does, and their users would stay: its start is ended instead.
        self.runner.update_state("stopped")
        raise gevent.GreenletExit

    def _overrides(self) -> list[str]:
        """What the web UI's form changes; it may name another workload too."""
        if self.headless or self.environment.web_ui is None:
            return []
        parsed = self.environment.parsed_options
        run_time, parsed.run_time = parsed.run_time, None  # Locust would keep it for the next start
        self.master.options = dataclasses.replace(self.options, workload=parsed.workload)
        load = workload.load(parsed.workload, self.options.sets).load
        return form.settings(load, self.runner.target_user_count, parsed.rate_per_s, run_time)

    def _ready(self) -> list[str]:
        if self.local is not None:
            return [self.runner.client_id]
        self._await_workers()
        nodes = self.runner.clients.ready
        for node in nodes:
            if node.id not in self.master.workers:
                self.master.joined(node.id, None, "", self.runner.get_worker_index(node.id))
        return sorted((n.id for n in nodes), key=self.runner.get_worker_index)

    def _end_with_the_plan(self) -> None:
        """When the run is over by itself, Locust's run is over too."""
        self.master.wait()
        if self.master.exit_code is not None:
            self.environment.process_exit_code = self.master.exit_code
        if self.headless:
            self.outlets.linger(self.options.linger_s)
            self._leave()
        elif self.runner.state not in ("stopped", "stopping", "ready"):
            self._stop_locust()

    def _stop_locust(self) -> None:
        """What the web UI's Stop does: a spawning that goes on would undo the stop."""
        web = self.environment.web_ui
        if web is not None and web._swarm_greenlet is not None:
            web._swarm_greenlet.kill(block=True)
            web._swarm_greenlet = None
        self.runner.stop()

    def _leave(self) -> None:
        self.runner.quit()

    def _test_stopping(self, environment: Environment, **_: Any) -> None:
        self.master.stop("stopped by the user")

    def _quitting(self, environment: Environment, **_: Any) -> None:
        self.master.stop("the master was told to end")
        if self.master.exit_code is not None and environment.process_exit_code is None:
            environment.process_exit_code = self.master.exit_code
        if not self._closed:
            self._closed = True
            self.outlets.close()

    def _interrupted(self) -> None:
        """Ctrl-C: once ends the run in order, twice at once.

        A signal to the whole process group, as `timeout -s INT` sends it, comes a second time
        from `tokenswarm run`, which passes on what a process sent it: that is the same one.
        """
        if self._was_interrupted:
            return
        self._was_interrupted = True
        gevent.spawn_later(_SAME_INTERRUPT_S, signal.signal, signal.SIGINT, end_at_once)
        if self.master.active and self.master.run is not None and self.master.run.start_ns:
            self._say("ending the run in order; Ctrl-C again ends at once")
            gevent.spawn(self.master.stop, "interrupted")
            if not self.headless:
                gevent.spawn(self._leave_ui)
        else:
            if self.environment.process_exit_code is None:
                self.environment.process_exit_code = 130 if self.headless else 0
            gevent.spawn(self._leave if self.headless else self._leave_ui)

    def _leave_ui(self) -> None:
        self.master.wait()
        self.runner.quit()
        if self.environment.web_ui is not None:
            self.environment.web_ui.stop()

    # -- messages ------------------------------------------------------------------------------

    def _receiver(self, kind: str) -> Callable[..., None]:
        def receive(environment: Environment, msg: Any, **_: Any) -> None:
            if self.master is None:
                self._early.append((kind, msg))
            elif kind == "hello":
                index = self.runner.get_worker_index(msg.node_id)
                self.master.joined(
                    msg.node_id, msg.data["pid"], msg.data["host"], index, msg.data["where"]
                )
            else:
                self.master.receive(kind, msg.node_id, msg.data)

        return receive

    def _worker_report(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        if report := data.get("tokenswarm"):
            self.master.report(client_id, report)

    def _send_to_worker(self, kind: str, data: dict[str, Any], worker: str | None) -> None:
        targets = [worker] if worker is not None else list(self.runner.clients)
        for target in targets:
            try:
                self.runner.send_message(PREFIX + kind, data, client_id=target)
            except Exception as e:  # noqa: BLE001 - a link that is down shows as silence
                logger.warning("'%s' could not be sent to worker %s: %s", kind, target, e)

    def _send_local(self, kind: str, data: dict[str, Any], worker: str | None) -> None:
        assert self.local is not None
        if kind == "ack":
            self.local.receive(kind, data)
        else:
            gevent.spawn(self.local.receive, kind, data)

    def _receive_local(self, kind: str, data: dict[str, Any]) -> None:
        self.master.receive(kind, self.runner.client_id, data)

    def _alive(self, worker_id: str) -> bool:
        if self.local is not None:
            report = self.local.report()
            if report is not None:
                self.master.report(worker_id, report)
            return True
        node = self.runner.clients.get(worker_id)
        return node is not None and node.state != "missing"

    # -- what people see -----------------------------------------------------------------------

    @staticmethod
    def _say(text: str) -> None:
        print(f"tokenswarm: {text}", file=sys.stderr, flush=True)  # noqa: T201

    def _show_users(self, users: int) -> None:
        """Let Locust's own user count follow the plan's stages."""
        run = self.master.run
        if run is None or run.start_ns is None or self.runner.state != "running":
            return
        wanted = _planned_users(run)
        if wanted is not None and wanted != self.runner.target_user_count and wanted > 0:
            gevent.spawn(self.runner.start, wanted, _SPAWN_RATE)


def _planned_users(run: Any) -> int | None:
    """Users of the stage that is on; None in open loop."""
    load = run.workload.load
    if load.mode != "closed":
        return None
    offset = time.time() - run.start_ns / 1e9
    for stage, window in zip(load.resolved_stages(), run.stages, strict=True):
        if window.end_s is None or offset < window.end_s:
            return int(stage.users_at(max(0.0, offset - (window.start_s or 0.0))))
    return None


def _not_about_the_spawn_rate(record: logging.LogRecord) -> bool:
    """Locust warns of spawn rates that would hurt if its users did anything."""
    return "spawn rate is very high" not in str(record.msg)
