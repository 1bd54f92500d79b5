"""The master's part: make the plan, start everyone at one instant, watch, end, judge.

One Master serves a Locust master and the single process of `--workers 0`. It owns the Run that
exporters and the verdict read. Messages come in through `receive` and `report`, go out through
`send(kind, data, worker_id or None for all)`. Nothing here knows ZeroMQ or Locust's runners:
distributed/__init__.py connects the two.

The one subtle rule: a run ends in exactly one place, `_conclude`, whether it came to its end,
was stopped, lost its workers or failed inside.
"""

from __future__ import annotations

import itertools
import logging
import os
import platform
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import gevent
import orjson
from gevent.event import Event
from gevent.lock import RLock

from tokenswarm import __version__, arrivals, backends, probe, server_side, steady, workload
from tokenswarm.distributed import processes
from tokenswarm.distributed.accounts import account_for_the_lost, count_plan
from tokenswarm.distributed.options import Options
from tokenswarm.distributed.spool import RecordFile, mark_warmup
from tokenswarm.distributed.worker import (
    make_metrics_transport,
    make_transport,
    make_transports,
    open_prompts,
)
from tokenswarm.offload import offload
from tokenswarm.records import BadInput, Prompt
from tokenswarm.run import Exporter, Run, StageWindow, Worker
from tokenswarm.server_side_nvml import LocalGpus
from tokenswarm.snapshot import BUCKET_NS, Snapshot
from tokenswarm.transport import Transport
from tokenswarm.validity import Verdict, judge

logger = logging.getLogger(__name__)
NS = 1_000_000_000
INTERVAL_S = 1.0
_LEAD_S = 0.25  # between the word `go` and the plan's instant 0
_STAGE_LEAD_S = 0.02
_PREPARE_TIMEOUT_S = 900.0
SILENCE_S = 20.0  # a worker that is alive but said nothing for so long counts as lost
_GRACE_S = 60.0  # beyond load.drain, for the last reports
_LATE_S = 1.0
_YIELD_S = 0.01
_TURN_S = 0.001
_RATE_SAMPLES = 6
SPOOLS = "workers"  # folder of a run where its workers keep records, see exporters/rebuild.py

SEND = Callable[[str, dict[str, Any], str | None], None]


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
        send: SEND,
        alive: Callable[[str], bool],
        say: Callable[[str], None],
        on_users: Callable[[int], None],
    ) -> None:
        self.options = options
        self.outlets = outlets
        self.run: Run | None = None
        self.summary: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self.workers: dict[str, Worker] = {}
        self._send, self._alive, self._say, self._on_users = send, alive, say, on_users
        self._exporters: list[Exporter] = []
        self._records = RecordFile(None)
        self._sequences: dict[str, int] = {}
        self._where: dict[str, str] = {}
        self._stage_reports: dict[int, dict[str, int | None]] = {}
        self._concluded = Event()
        self._concluded.set()
        self._ending = RLock()
        self._watcher: gevent.Greenlet | None = None
        self._server: server_side.Watch | None = None
        self._stopped_early: str | None = None
        self._stopped_ns: int | None = None
        self._counting_up = False
        self._digest: str | None = None
        self._sitting = 0
        self._sent: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES)
        self._handlers: dict[str, Callable[[Worker, dict[str, Any]], None]] = {
            "prepared": self._on_prepared,
            "refused": self._on_refused,
            "failed": self._on_failed,
            "late": self._on_late,
            "stage_done": self._on_stage_done,
            "records": self._on_records,
            "finished": self._on_finished,
        }

    # -- who is there --------------------------------------------------------------------------

    def joined(
        self, worker_id: str, pid: int | None, host: str, index: int, where: str = ""
    ) -> None:
        """A worker connected, or connected again after a restart (then under a new id).

        where: see processes.here.
        """
        if where:
            self._where[worker_id] = where
        known = self.workers.get(worker_id)
        if known is not None:  # Locust knew it before its own word about itself arrived
            known.pid, known.host = pid or known.pid, host or known.host
            if self.active:
                self._write_workers()
            return
        self.workers[worker_id] = late = Worker(worker_id, index, pid, host)
        if self.active and self.run is not None and self.run.start_ns is not None:
            self.run.workers[worker_id] = late
            self._fault(
                "worker_late",
                f"worker {worker_id} ({host}) joined during the run; it has no share of this one",
            )
            self._write_workers()

    def _ended(self, worker_id: str) -> bool:
        """A worker's process is known to be gone, long before its silence tells."""
        return processes.ended(self.workers[worker_id].pid, self._where.get(worker_id, ""))

    @property
    def active(self) -> bool:
        """A run is going on."""
        return not self._concluded.is_set()

    # -- the start -----------------------------------------------------------------------------

    def begin(self, host: str | None, overrides: Sequence[str], ready: Sequence[str]) -> None:
        """Prepare a run on the ready workers, probe the server, and start it.

        Returns once the plan's instant 0 is set. Raises BadInput before any load was sent.
        """
        self._concluded.clear()
        self._stopped_early = self._stopped_ns = None
        self._counting_up = False
        self._server = None
        self.summary = None
        try:
            self._begin(host, overrides, ready)
        except BaseException:
            self._send("drain", {"run": self.run.id if self.run else None, "seconds": 0}, None)
            if self._server is not None:
                self._server.close()
            if self.run is not None:
                self.run.state = "idle"
                self._close_exporters()
            self._concluded.set()
            raise

    def _begin(self, host: str | None, overrides: Sequence[str], ready: Sequence[str]) -> None:
        work = workload.load(self.options.workload, (*self.options.sets, *overrides))
        if not host:
            raise BadInput("--host: missing; the base URL of the server under test")
        ready = [id_ for id_ in ready if not self._ended(id_)]
        if not ready:
            raise BadInput("no worker is connected: start some with `locust --worker`")
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
        make_transport(work, host).close()  # a bad URL or a missing key is said first
        if self.options.gpu and work.server.gpu_url:
            raise BadInput(
                "--gpu: the workload's server.gpu_url already reads GPUs; leave one of the two "
                "out, or they would count twice"
            )
        run.warnings += backends.make(work).notes
        run.out, problem = make_folder(self._folder_of_this_run(), work.name, run.started)
        if problem:
            run.warnings.append(problem)
            self._say(f"warning: {problem}")
        self._digest = None
        run.workers = {id_: self._fresh(id_, k) for k, id_ in enumerate(ready)}
        self.run = run
        self._stage_reports = {i: {} for i in range(len(run.stages))}
        self._sequences.clear()
        if run.out is not None:
            write_text(run.out / "workload.yaml", workload.dump(work))
        self._records = RecordFile(
            run.out / "requests.jsonl" if run.out is not None and work.record.requests else None
        )
        self._write_workers()
        self._exporters = self.outlets.open(run.out)
        self._send_plans(run)  # workers prepare while the master asks the server
        self._preflight(run)
        self._await_prepared(run)
        self._watch_server(run)
        for exporter in self._exporters:
            exporter.start(run)
        run.start_ns = time.time_ns() + round(_LEAD_S * NS)
        self._plan_windows(run)
        self._send("go", {"run": run.id, "start_ns": run.start_ns}, None)
        for worker in run.workers.values():
            worker.state = "running"
            worker.reported_s = time.monotonic()
        self._sent.clear()
        self._sent.append((time.monotonic(), 0))
        self._watcher = gevent.spawn(self._watch)

    def _folder_of_this_run(self) -> str | None:
        """--out for the first run; for further ones of a web UI's sitting --out-2, --out-3, ..."""
        out, self._sitting = self.options.out, self._sitting + 1
        return out if out is None or self._sitting == 1 else f"{out}-{self._sitting}"

    def _fresh(self, worker_id: str, k: int) -> Worker:
        known = self.workers[worker_id]
        fresh = Worker(worker_id, known.index, known.pid, known.host, k=k)
        self.workers[worker_id] = fresh
        return fresh

    def _send_plans(self, run: Run) -> None:
        text = workload.dump(run.workload)
        n = len(run.workers)
        spool = str((run.out / SPOOLS).absolute()) if run.out is not None else None
        for worker in run.workers.values():
            plan = {"run": run.id, "workload": text, "host": run.host, "k": worker.k, "n": n,
                    "master": processes.own(), "spool": spool}  # fmt: skip
            self._send("plan", plan, worker.id)

    def _preflight(self, run: Run) -> None:
        """Wait for the server where asked to, then probe it."""
        work = run.workload
        source, _ = offload(open_prompts, work)
        self._digest = source.digest
        run.warnings += source.warnings
        prompt = source.probe_prompt()
        for transport in make_transports(work, run.host):
            try:
                self._ask_before(run, transport, prompt)
            finally:
                transport.close()

    def _ask_before(self, run: Run, transport: Transport, prompt: Prompt) -> None:
        """Wait for one server where asked to, then probe it; the first one's finding is kept."""
        work = run.workload
        backend = backends.make(work)
        if transport.target.proxy is not None:
            proxy = transport.target.proxy
            run.warnings.append(
                f"requests to {transport.target.url} go through the proxy {proxy.host}:"
                f"{proxy.port} (environment), whose time is in every latency"
            )
        if self.options.wait_ready_s:
            probe.wait_ready(transport, backend, prompt, self.options.wait_ready_s, self._say)
        if not work.prompts.probe:
            probe.reach(transport)
            return
        found, warnings = probe.probe(transport, backend, prompt, work.prompts.probe)
        run.probe = run.probe or found
        run.warnings += [w for w in warnings if w not in run.warnings]

    def _watch_server(self, run: Run) -> None:
        """Look at the engine's own metrics and the GPUs: after the probe, before the load."""
        work = run.workload
        sources: list[server_side.Source] = []
        if not work.server.off:
            sources += server_side.pages(
                run.host, work.backend.urls, backends.make(work).metrics_path,
                work.server.metrics_url, work.server.gpu_url,
                lambda to, same: make_metrics_transport(work, to, same),
            )  # fmt: skip
        if self.options.gpu:
            sources.append(LocalGpus())
        if not sources:
            return
        self._server = server_side.Watch(sources, work.server.interval)
        run.server = self._server.found
        self._server.start()
        for warning in self._server.warnings:  # hours before the summary repeats it
            self._say(f"warning: {warning}")

    def _finish_server(self, run: Run) -> None:
        """The last look at the engine, and the two sides beside each other."""
        if self._server is None:
            return
        stats = run.totals()
        ttft = stats.histograms.get("ttft_s")
        mean_s = ttft.sum / ttft.n / NS if ttft is not None and ttft.n else None
        try:
            self._server.finish(stats.prompt_tokens, stats.output_tokens, mean_s)
        except Exception as e:
            logger.exception("The engine's metrics could not be summed up")
            run.warnings.append(f"server-side metrics: {type(e).__name__}: {e}")
        run.warnings += self._server.warnings

    def _await_prepared(self, run: Run) -> None:
        deadline = time.monotonic() + _PREPARE_TIMEOUT_S
        told = time.monotonic()
        while not all(w.prepared for w in run.workers.values()):
            for worker in run.workers.values():
                if worker.faults:
                    raise BadInput(*worker.faults)
                if self._ended(worker.id) or not self._alive(worker.id):
                    raise BadInput(
                        f"worker {worker.id} went away while preparing; nothing was sent"
                    )
            if time.monotonic() > deadline:
                waiting = [w.id for w in run.workers.values() if not w.prepared]
                raise BadInput(f"workers not ready within {_PREPARE_TIMEOUT_S:g} s: {waiting}")
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self._say("workers are preparing prompts ...")
            gevent.sleep(0.01)

    def _plan_windows(self, run: Run) -> None:
        """When each stage begins and ends, as far as it is known beforehand."""
        load, stages = run.workload.load, run.workload.load.resolved_stages()
        ends: list[float | None]
        if load.mode == "open":
            run.planned_requests = offload(count_plan, run.workload)
        if load.mode == "open" and any(s.duration is None for s in stages):
            ends = [e / NS for e in arrivals.stage_ends(load, run.workload.seed)]
        else:
            ends, at = [], 0.0
            for stage in stages:
                if stage.duration is None:
                    ends += [None] * (len(stages) - len(ends))
                    break
                at += stage.duration
                ends.append(at)
        start: float | None = 0.0
        for window, end in zip(run.stages, ends, strict=True):
            window.start_s, window.end_s = start, end
            start = end

    # -- messages ------------------------------------------------------------------------------

    def receive(self, kind: str, worker_id: str, data: dict[str, Any]) -> None:
        """A message from a worker; of another run it is ignored."""
        worker = self._worker_of(worker_id, data)
        if worker is not None:
            self._handlers[kind](worker, data)

    def report(self, worker_id: str, data: dict[str, Any]) -> None:
        """A worker's cumulative snapshot: the latest one counts, older ones change nothing.

        Nor do reports that follow a worker's last word: only that one has the series of tokens.
        """
        worker = self._worker_of(worker_id, data)
        if worker is None or worker.final:
            return
        if data["sequence"] > self._sequences.get(worker_id, 0):
            self._sequences[worker_id] = data["sequence"]
            worker.snapshot = Snapshot.from_wire(data["snapshot"])

    def _worker_of(self, worker_id: str, data: dict[str, Any]) -> Worker | None:
        """Who speaks, if it takes part in the run that is on; the rest comes too late."""
        run = self.run
        if run is None or data.get("run") != run.id or not self.active or self._counting_up:
            return None
        worker = run.workers.get(worker_id)
        if worker is not None:
            worker.reported_s = time.monotonic()
        return worker

    def _on_prepared(self, worker: Worker, data: dict[str, Any]) -> None:
        self.joined(worker.id, data["pid"], data["host"], worker.index, data["where"])
        worker.prepared = True
        if data["digest"] != self._master_digest():
            worker.faults.append(
                f"worker {worker.id} ({worker.host}) has another data set or tokenizer than the "
                "master: give all of them the same files"
            )

    def _master_digest(self) -> str:
        # The master opens the same files while workers do; whoever is first waits here.
        while self._digest is None:
            gevent.sleep(0.01)
        return self._digest

    def _on_refused(self, worker: Worker, data: dict[str, Any]) -> None:
        worker.faults += [f"{p} (worker {worker.id} on {worker.host})" for p in data["problems"]]

    def _on_failed(self, worker: Worker, data: dict[str, Any]) -> None:
        run = self.run
        assert run is not None
        text = f"worker {worker.id}: {data['text']}"
        worker.faults.append(text)
        if run.start_ns is not None:
            run.faults.append(("internal_error", text))
            worker.state = "lost"

    def _on_late(self, worker: Worker, data: dict[str, Any]) -> None:
        if data["seconds"] > _LATE_S:
            self._fault("worker_late", f"worker {worker.id} started {data['seconds']:.3f} s late")

    def _on_stage_done(self, worker: Worker, data: dict[str, Any]) -> None:
        self._stage_reports[data["stage"]][worker.id] = data["at_ns"]
        self._advance(data["stage"])

    def _advance(self, stage: int) -> None:
        """End a stage of a number of requests when every worker's share is sent; start the next."""
        run = self.run
        assert run is not None
        assert run.start_ns is not None
        reports = self._stage_reports[stage]
        if any(w.id not in reports for w in run.workers.values() if w.state != "lost"):
            return
        window = run.stages[stage]
        if window.end_s is not None:
            return
        instants = [at for at in reports.values() if at is not None]
        end_ns = min(instants) if instants else time.time_ns()
        window.end_s = (end_ns - run.start_ns) // BUCKET_NS * BUCKET_NS / NS
        if stage + 1 < len(run.stages):
            start_ns = time.time_ns() + round(_STAGE_LEAD_S * NS)
            start_s = (start_ns - run.start_ns) // BUCKET_NS * BUCKET_NS / NS
            run.stages[stage + 1].start_s = start_s
            start_ns = run.start_ns + round(start_s * NS)
            self._chain_windows(run, stage + 1)
            self._send("stage", {"run": run.id, "stage": stage + 1, "start_ns": start_ns}, None)

    @staticmethod
    def _chain_windows(run: Run, first: int) -> None:
        stages = run.workload.load.resolved_stages()
        at = run.stages[first].start_s
        for i in range(first, len(stages)):
            run.stages[i].start_s = at
            duration = stages[i].duration
            if duration is None or at is None:
                break
            at += duration
            run.stages[i].end_s = at

    def _on_records(self, worker: Worker, data: dict[str, Any]) -> None:
        worker.records_received += self._records.write(worker.id, data["number"], data["data"])
        self._send("ack", {"run": data["run"], "number": data["number"]}, worker.id)

    def _on_finished(self, worker: Worker, data: dict[str, Any]) -> None:
        self.report(worker.id, data)
        worker.final = True
        run = self.run
        assert run is not None
        if data["problem"]:
            self._fault("internal_error", f"worker {worker.id}: {data['problem']}")
        if data["disk_error"]:
            run.warnings.append(f"worker {worker.id} kept records in memory: {data['disk_error']}")
        if data["unacknowledged"]:
            self._fault(
                "reports_missing", f"worker {worker.id} could not hand in all of its records"
            )

    def _fault(self, code: str, detail: str) -> None:
        assert self.run is not None
        if (code, detail) not in self.run.faults:
            self.run.faults.append((code, detail))

    # -- while it runs -------------------------------------------------------------------------

    def _watch(self) -> None:
        """Once a second: who is alive, which stage it is, and the exporters' turn."""
        run = self.run
        assert run is not None
        assert run.start_ns is not None
        until = time.monotonic() + INTERVAL_S
        try:
            while True:
                gevent.sleep(_YIELD_S)  # also when late: what workers said must be heard first
                while (left := until - time.monotonic()) > 0 and not self._all_done(run):
                    gevent.sleep(min(left, 0.05))
                late = time.monotonic() - until
                until += INTERVAL_S * (1 + max(0, int(late / INTERVAL_S)))
                if late > INTERVAL_S:
                    self._was_away(run, late)
                # One after the other, with a look at the sockets between them: in a run without
                # workers this loop is also the one that measures.
                for step in (self._check_workers, self._note_state, self._rates,
                             *(exporter.interval for exporter in self._exporters)):  # fmt: skip
                    step(run)
                    gevent.sleep(_TURN_S)
                if self._all_done(run) or self._overdue(run):
                    break
        except Exception as e:
            logger.exception("The master failed while watching the run")
            self._fault("internal_error", f"master: {type(e).__name__}: {e}")
            self._send("drain", {"run": run.id, "seconds": 0}, None)
        self._conclude()

    @staticmethod
    def _was_away(run: Run, seconds: float) -> None:
        """Nobody could be heard for so long: that was no worker's silence."""
        for worker in run.workers.values():
            worker.reported_s += seconds

    @staticmethod
    def _all_done(run: Run) -> bool:
        return all(w.final or w.state == "lost" for w in run.workers.values() if w.k is not None)

    def _overdue(self, run: Run) -> bool:
        """True when the last stage, the drain and the grace are over and a worker is still out."""
        assert run.start_ns is not None
        end = run.stages[-1].end_s
        if end is None:
            return False
        limit = end + run.workload.load.drain + _GRACE_S
        return bool(time.time() - run.start_ns / NS > limit)

    def _check_workers(self, run: Run) -> None:
        for worker in run.workers.values():
            if worker.k is None or worker.final or worker.faults:
                continue
            silent = time.monotonic() - worker.reported_s
            gone = self._ended(worker.id) or not self._alive(worker.id)
            if gone or silent > SILENCE_S:
                if worker.state == "lost":
                    continue
                worker.state = "lost"
                self._say(f"worker {worker.id} ({worker.host}) is lost")
                for stage, reports in self._stage_reports.items():
                    if reports:
                        self._advance(stage)
            else:
                if worker.state == "lost":
                    self._say(f"worker {worker.id} ({worker.host}) is back")
                worker.state = "missing" if silent > 4 * INTERVAL_S else "running"

    def _note_state(self, run: Run) -> None:
        assert run.start_ns is not None
        now = time.time() - run.start_ns / NS
        index = stage_at(run, now)
        if index is None:
            run.state = "draining"
        else:
            run.state = "warmup" if run.stages[index].warmup else "running"
        self._on_users(run.merged.health.users)

    def _rates(self, run: Run) -> None:
        """Planned arrivals a second now, achieved ones over the last few intervals.

        Reports and intervals are out of phase, so one interval alone would jump.
        """
        assert run.start_ns is not None
        self._sent.append((time.monotonic(), run.totals().started))
        (then, before), (now, started) = self._sent[0], self._sent[-1]
        if now > then:
            run.achieved_rate = (started - before) / (now - then)
        offset = time.time() - run.start_ns / NS
        index = stage_at(run, offset)
        run.planned_rate = 0.0
        if run.workload.load.mode == "open" and index is not None:
            profile = run.workload.load.resolved_stages()[index].profile
            if profile is not None:
                run.planned_rate = float(profile.rate(offset - (run.stages[index].start_s or 0.0)))

    # -- the end -------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """End the run in order, before its plan does; returns when it is judged."""
        run = self.run
        if run is None or not self.active:
            return
        if run.start_ns is None:
            return
        if self._stopped_early is None and not self._all_done(run):
            offset = time.time() - run.start_ns / NS
            ended = run.stages[-1].end_s
            if ended is None or offset < ended:
                self._stopped_early = why
                self._stopped_ns = round(offset * NS)
                self._fault("cut_short", f"{why} after {max(0.0, offset):.1f} s of the plan")
                for window in run.stages:
                    if window.start_s is not None and window.start_s <= offset:
                        window.end_s = min(window.end_s or offset, offset)
            self._send("drain", {"run": run.id, "seconds": None}, None)
        self._concluded.wait(timeout=run.workload.load.drain + _GRACE_S)
        if self.active:
            self._conclude()

    def wait(self) -> None:
        """Block until no run is going on."""
        self._concluded.wait()

    def _conclude(self) -> None:
        with self._ending:
            if not self.active:
                return
            run = self.run
            assert run is not None
            run.ended = time.time()
            self._counting_up = True  # a report that comes now would undo what is filled in
            account_for_the_lost(run, self._stopped_ns)
            cancelled = run.merged.total(run.measured).outcomes["cancelled"]
            if cancelled and self._stopped_early is None:
                self._fault(
                    "cut_short",
                    f"{cancelled} requests of measured stages were still running when load.drain "
                    f"({run.workload.load.drain:g} s) was over",
                )
            if self._records.error is not None:
                run.warnings.append(
                    f"{self._records.unwritten} request records were not written: "
                    f"{self._records.error}"
                )
            self._records.close()
            self._find_steady_state(run)
            self._finish_server(run)
            run.state = "done"
            try:
                verdict = judge(run)
                self.summary = self.outlets.summarise(run, verdict)
                self.exit_code = verdict.exit_code
                for exporter in self._exporters:
                    self._finish_exporter(exporter, run)
            except Exception:
                logger.exception("The run could not be summarised")
                self.exit_code = 4
            finally:
                self._concluded.set()

    @staticmethod
    def _find_steady_state(run: Run) -> None:
        """Leave out what came before the steady state, where the workload wants that."""
        stage = run.workload.load.steady_stage
        if stage is None:
            return
        found = steady.detect(run, stage)
        run.steady_state = found.to_json() if found is not None else None
        if found is None:
            run.warnings.append(f"no steady state looked for: not all of stage {stage} took place")
        elif found.discarded is None:
            run.warnings.append(
                f"stage {stage} came to no steady state: nothing of it was discarded"
            )
        elif found.discarded and run.out is not None:
            names = found.names[: found.discarded]
            offload(mark_warmup, run.out / "requests.jsonl", names)

    def _finish_exporter(self, exporter: Exporter, run: Run) -> None:
        assert self.summary is not None
        try:
            exporter.finish(run, self.summary)
        except Exception as e:
            logger.exception("An exporter failed")
            self._say(f"{type(exporter).__name__} failed: {e}")

    def _close_exporters(self) -> None:
        for exporter in self._exporters:
            exporter.close()

    def _write_workers(self) -> None:
        run = self.run
        if run is None or run.out is None:
            return
        rows = [
            {"id": w.id, "pid": w.pid, "index": w.index, "host": w.host, "k": w.k}
            for w in run.workers.values()
        ]
        write_text(
            run.out / "workers.json", orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode()
        )


def stage_at(run: Run, offset_s: float) -> int | None:
    """The stage at an instant of the plan; None when the last one is over."""
    for index, window in enumerate(run.stages):
        if window.end_s is None or offset_s < window.end_s:
            return index
    return None


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


def make_folder(out: str | None, name: str, started: float) -> tuple[Path | None, str | None]:
    """The run's folder, made; or None and why it cannot be written, when the run goes on without.

    Raises BadInput when it holds a run already.
    """
    if out is None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
        base = Path("runs") / f"{stamp}-{name}"
        tries = itertools.chain(
            [base], (base.with_name(f"{base.name}-{i}") for i in range(2, 1000))
        )
        folder = next(path for path in tries if not path.exists())
    else:
        folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [f.name for f in folder.iterdir()
                 if f.name in ("summary.json", "requests.jsonl", "workload.yaml")]  # fmt: skip
        probe_file = folder / f".writable-{os.getpid()}"
        probe_file.touch()
        probe_file.unlink()
    except OSError as e:
        return None, (
            f"--out {folder}: cannot write there ({e.strerror or e}): no file of this run is kept, "
            "only the printed summary"
        )
    if taken:
        raise BadInput(
            f"--out {folder}: holds a run already ({', '.join(sorted(taken))}); "
            "choose another folder or remove that one"
        )
    return folder, None


def write_text(path: Path, text: str) -> None:
    """Write a file whole; a failure is told in the log and ends nothing."""
    try:
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as e:
        logger.warning("%s could not be written: %s", path, e.strerror or e)
