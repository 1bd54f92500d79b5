"""The master's part: make the plan, start everyone at one instant, watch, end, judge.

One Master serves a Locust master and the single process of `--workers 0`, for one run after the
other. It owns the Run that exporters and the verdict read. Messages come in through `receive` and
`report`, go out through `send(kind, data, worker_id or None for all)`. Nothing here knows ZeroMQ
or Locust's runners: distributed/__init__.py connects the two. The steps of a run are elsewhere:
start.py and preflight.py, inbox.py, stages.py, watch.py, end.py.

The one subtle rule: a run ends in exactly one place, `_conclude`, whether it came to its end,
was stopped, lost its workers or failed inside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import gevent
from gevent.event import Event
from gevent.lock import RLock

from tokenswarm import prompts, server_side, workload
from tokenswarm.clock import NS
from tokenswarm.distributed import end, preflight, start
from tokenswarm.distributed.crew import Crew, Send
from tokenswarm.distributed.folder import make_folder, write_text, write_workers
from tokenswarm.distributed.inbox import Inbox
from tokenswarm.distributed.options import Options
from tokenswarm.distributed.spool import RecordFile
from tokenswarm.distributed.stages import Stages, plan_windows
from tokenswarm.distributed.watch import GRACE_S, Watch, all_done
from tokenswarm.offload import offload
from tokenswarm.records import BadInput
from tokenswarm.run import Exporter, Run, Worker
from tokenswarm.validity import Verdict, judge

logger = logging.getLogger(__name__)
_LEAD_S = 0.25  # between the word `go` and the plan's instant 0


class Outlets(Protocol):
    """How a run's numbers get out; handed down from the exporters."""

    def open(self, out: Path | None) -> list[Exporter]:
        """The exporters of a run. Raises BadInput, e.g. for a port that is taken."""

    def summarise(self, run: Run, verdict: Verdict) -> dict[str, Any]:
        """What summary.json holds."""

    def linger(self, seconds: float | None) -> None:
        """Keep serving metrics for a while after a headless run."""

    def close(self) -> None:
        """The process ends."""


class Master:
    """See the module docstring.

    alive(worker_id) tells whether a worker still answers. say(text) tells the user something
    on stderr. on_users(n) lets Locust show how many users there are.
    """

    def __init__(
        self,
        options: Options,
        outlets: Outlets,
        send: Send,
        alive: Callable[[str], bool],
        say: Callable[[str], None],
        on_users: Callable[[int], None],
    ) -> None:
        self.options = options
        self.outlets = outlets
        self.run: Run | None = None
        self.summary: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self._crew = Crew(alive, send)
        self._say, self._on_users = say, on_users
        self._sitting = 0
        self._concluded = Event()
        self._concluded.set()
        self._ending = RLock()
        # Of the run that is on, or was the last one:
        self._inbox: Inbox | None = None
        self._records = RecordFile(None)
        self._exporters: list[Exporter] = []
        self._server: server_side.Watch | None = None
        self._watcher: gevent.Greenlet | None = None
        self._stopped_ns: int | None = None

    @property
    def workers(self) -> dict[str, Worker]:
        """All that ever connected, by id."""
        return self._crew.workers

    @property
    def active(self) -> bool:
        """A run is going on."""
        return not self._concluded.is_set()

    def joined(
        self, worker_id: str, pid: int | None, host: str, index: int, where: str = ""
    ) -> None:
        """A worker connected, or connected again after a restart (then under a new id).

        where: see processes.here.
        """
        new = self._crew.joined(worker_id, pid, host, index, where)
        run = self.run
        if not self.active or run is None:
            return
        if new is not None:
            if run.start_ns is None:
                return
            run.workers[worker_id] = new
            run.fault(
                "worker_late",
                f"worker {worker_id} ({host}) joined during the run; it has no share of this one",
            )
        write_workers(run)

    def receive(self, kind: str, worker_id: str, data: dict[str, Any]) -> None:
        """A message from a worker; of another run it is ignored."""
        if self._inbox is not None:
            self._inbox.receive(kind, worker_id, data)

    def report(self, worker_id: str, data: dict[str, Any]) -> None:
        """A worker's cumulative snapshot: the latest one counts, older ones change nothing."""
        if self._inbox is not None:
            self._inbox.report(worker_id, data)

    # -- the start -----------------------------------------------------------------------------

    def begin(self, host: str | None, overrides: Sequence[str], ready: Sequence[str]) -> None:
        """Prepare a run on the ready workers, probe the server, and start it.

        Returns once the plan's instant 0 is set. Raises BadInput before any load was sent.
        """
        self._concluded.clear()
        self._stopped_ns = None
        self._server = None
        self.summary = None
        try:
            self._begin(host, overrides, ready)
        except BaseException:
            self._crew.send("drain", {"run": self.run.id if self.run else None, "seconds": 0}, None)
            if self._server is not None:
                self._server.close()
            if self.run is not None:
                self.run.state = "idle"
                for exporter in self._exporters:
                    exporter.close()
            if self._inbox is not None:
                self._inbox.close()
            self._concluded.set()
            raise

    def _begin(self, host: str | None, overrides: Sequence[str], ready: Sequence[str]) -> None:
        work = workload.load(self.options.workload, (*self.options.sets, *overrides))
        if not host:
            raise BadInput("--host: missing; the base URL of the server under test")
        ready = [id_ for id_ in ready if not self._crew.ended(id_)]
        if not ready:
            raise BadInput("no worker is connected: start some with `locust --worker`")
        run = start.make_run(work, host, self.options)
        self._make_folder(run)
        run.workers = self._crew.assign(ready)
        start.require_room(run)
        self.run = run
        stages = Stages(run, self._crew)
        self._open_files(run)
        self._exporters = self.outlets.open(run.out)
        self._inbox = inbox = Inbox(run, self._crew, stages, self._records)
        start.send_plans(run, self._crew)  # workers prepare while the master asks the server
        source = offload(prompts.open_source, run.workload)
        inbox.digest = source.digest
        run.warnings += source.warnings
        preflight.ask(run, source.probe_prompt(), self.options.wait_ready_s, self._say)
        start.await_prepared(run, self._crew, self._say)
        self._watch_server(run)
        for exporter in self._exporters:
            exporter.start(run)
        plan_windows(run)  # counting a large plan takes seconds, which are not the run's
        run.start_ns = time.time_ns() + round(_LEAD_S * NS)
        self._crew.send("go", {"run": run.id, "start_ns": run.start_ns}, None)
        for worker in run.workers.values():
            worker.state = "running"
            worker.reported_s = time.monotonic()
        watch = Watch(run, self._crew, stages, self._exporters, self._say, self._on_users)
        self._watcher = gevent.spawn(self._see_through, watch)

    def _make_folder(self, run: Run) -> None:
        """--out for the first run; for further ones of a web UI's sitting --out-2, --out-3, ..."""
        out, self._sitting = self.options.out, self._sitting + 1
        if out is not None and self._sitting > 1:
            out = f"{out}-{self._sitting}"
        run.out, problem = make_folder(out, run.workload.name, run.started)
        if problem:
            run.warnings.append(problem)
            self._say(f"warning: {problem}")

    def _open_files(self, run: Run) -> None:
        if run.out is not None:
            write_text(run.out / "workload.yaml", workload.dump(run.workload))
        path = run.out / "requests.jsonl" if run.out is not None else None
        self._records = RecordFile(path if run.workload.record.requests else None)
        write_workers(run)

    def _watch_server(self, run: Run) -> None:
        """Look at the engine's own metrics and the GPUs: after the probe, before the load."""
        self._server = preflight.server_watch(run, self.options.gpu)
        if self._server is None:
            return
        run.server = self._server.found
        self._server.start()
        for warning in self._server.warnings:  # hours before the summary repeats it
            self._say(f"warning: {warning}")

    # -- the end -------------------------------------------------------------------------------

    def _see_through(self, watch: Watch) -> None:
        watch.until_over()
        self._conclude()

    def stop(self, why: str) -> None:
        """End the run in order, before its plan does; returns when it is judged."""
        run = self.run
        if run is None or not self.active:
            return
        if run.start_ns is None:
            return
        if self._stopped_ns is None and not all_done(run):
            offset = time.time() - run.start_ns / NS
            ended = run.stages[-1].end_s
            if ended is None or offset < ended:
                self._stopped_ns = round(offset * NS)
                run.fault("cut_short", f"{why} after {max(0.0, offset):.1f} s of the plan")
                for window in run.stages:
                    if window.start_s is not None and window.start_s <= offset:
                        window.end_s = min(window.end_s or offset, offset)
            self._crew.send("drain", {"run": run.id, "seconds": None}, None)
        self._concluded.wait(timeout=run.workload.load.drain + GRACE_S)
        if self.active:
            self._conclude()

    def wait(self) -> None:
        """Block until no run is going on."""
        self._concluded.wait()

    def _conclude(self) -> None:
        with self._ending:
            if not self.active:
                return
            run, inbox = self.run, self._inbox
            assert run is not None
            assert inbox is not None
            run.ended = time.time()
            inbox.close()
            try:
                end.count_up(run, self._stopped_ns, self._records, self._server)
                verdict = judge(run)
                self.summary = self.outlets.summarise(run, verdict)
                self.exit_code = verdict.exit_code
                for exporter in self._exporters:
                    self._finish_exporter(exporter, run, self.summary)
            except Exception:
                logger.exception("The run could not be summarised")
                self.exit_code = 4
            finally:
                self._concluded.set()

    def _finish_exporter(self, exporter: Exporter, run: Run, summary: dict[str, Any]) -> None:
        try:
            exporter.finish(run, summary)
        except Exception as e:
            logger.exception("An exporter failed")
            self._say(f"{type(exporter).__name__} failed: {e}")
