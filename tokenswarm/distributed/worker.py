"""One worker's part in a run: take a plan, prepare it, send its share, report, hand in records.

The same class serves a Locust worker process and the single process of `--workers 0`; only
`send` differs. Messages from the master: plan, go, stage, drain, ack. To it: prepared, refused,
failed, stage_done, records, finished; snapshots travel in Locust's own report.

The one subtle rule: whatever happens here is told. A worker never ends a run by silence.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from gevent import get_hub

from tokenswarm import backends, prompts, server_side, target, target_proxy, tokens, workload
from tokenswarm.clock import StepWatch
from tokenswarm.distributed import processes
from tokenswarm.distributed.spool import Spool
from tokenswarm.generator import Generator
from tokenswarm.offload import offload
from tokenswarm.records import BadInput, Outcome, Record
from tokenswarm.stream_secrets import redactor
from tokenswarm.transport import Transport
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_balance import Balanced
from tokenswarm.transport_limits import make_room
from tokenswarm.transport_open import tls_context

logger = logging.getLogger(__name__)
NS = 1_000_000_000
_LAG_PERIOD_S = 0.01
_ACK_WAIT_S = 30.0
_YOUNG_OBJECTS = 20_000  # between collections: 700, the default, makes 70 a second at 1,000 streams
_CPU_SAMPLES = 6  # one a second


class RequestFailed(Exception):  # noqa: N818 - what Locust's failure table shows
    """Shown in Locust's own failure table: the outcome only, so that texts stay few."""


class WorkerAgent:
    """See the module docstring. log_line(record, worker, stages, model, itl) makes a record's line.

    fire(record, name) tells Locust of a request.
    """

    def __init__(
        self,
        worker_id: str,
        send: Callable[[str, dict[str, Any]], None],
        log_line: Callable[..., bytes],
        fire: Callable[[Record, str], None],
        spool_dir: Path | None = None,
    ) -> None:
        self.id = worker_id
        self.run_id: str | None = None
        self.generator: Generator | None = None
        self.finished = True
        # Locust's own last report goes first, so that its tables are right when the run ends.
        self.before_last_word: Callable[[], None] | None = None
        self._send = send
        self._log_line = log_line
        self._fire = fire
        self._spool_dir = spool_dir
        self._spool: Spool | None = None
        self._sequence = 0
        self.disk_error: str | None = None
        self._drain_s = 0.0
        self._master: dict[str, Any] = {}
        self._without_master = False
        self._greenlets: list[gevent.Greenlet] = []
        self._steps = StepWatch()
        self._lag_timer: Any = None
        self._cpu_marks: deque[tuple[float, float]] = deque(maxlen=_CPU_SAMPLES)
        self.handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "plan": self._on_plan,
            "go": self._on_go,
            "stage": self._on_stage,
            "drain": self._on_drain,
            "ack": self._on_ack,
        }

    def receive(self, kind: str, data: dict[str, Any]) -> None:
        """A message from the master; runs in a greenlet of its own."""
        if kind != "plan" and data.get("run") != self.run_id:
            return
        try:
            self.handlers[kind](data)
        except BadInput as e:
            self._send("refused", {"run": self.run_id, "problems": list(e.problems)})
        except Exception as e:
            logger.exception("Worker failed on '%s'", kind)
            self._send("failed", {"run": self.run_id, "text": f"{type(e).__name__}: {e}"})

    # -- messages ------------------------------------------------------------------------------

    def _on_plan(self, data: dict[str, Any]) -> None:
        self.abandon()
        self.run_id = data["run"]
        self.finished = False
        work = workload.parse(data["workload"], "workload.yaml")
        sys.setswitchinterval(0.0005)  # a thread that cuts prompts must not hold the loop up
        source, tokenizer = offload(open_prompts, work)
        make_room(sockets_of(work, data["k"], data["n"]), max(1, len(work.backend.urls)))
        secret = os.environ.get(work.backend.api_key_env or "", "")
        count = tokenizer.count_plain if tokenizer is not None else None
        self.generator = Generator(
            work, data["k"], data["n"],
            backends.make(work), source, make_transport(work, data["host"], data["k"]),
            work.objectives(), count,
            redactor([secret]),
            self._on_record, self._on_stage_done,
        )  # fmt: skip
        self._stage_names = [s.name for s in self.generator.stages]
        self._model, self._itl = work.backend.model, work.record.itl
        self._request_name = f"{work.name} {work.backend.kind}"
        self._drain_s = work.load.drain
        self._master, self._without_master = data["master"], False
        self.disk_error = None
        if work.record.requests:
            folder = self._spool_folder(data)
            self._spool = Spool(folder / f"{self.id}.jsonl", self._send_records)
        self.generator.prepare()
        gc.collect()
        gc.freeze()  # a full collection over the data set would stall the loop (200 ms measured)
        gc.set_threshold(_YOUNG_OBJECTS, 20, 100)
        self._send("prepared", {"run": self.run_id, "digest": source.digest, **processes.own()})

    def _on_go(self, data: dict[str, Any]) -> None:
        generator = self.generator
        assert generator is not None
        late_ns = time.time_ns() - data["start_ns"]
        self._cpu_marks.clear()
        self._cpu_marks.append((time.monotonic(), _cpu_s()))
        self._lag_timer = get_hub().loop.timer(_LAG_PERIOD_S, _LAG_PERIOD_S)
        self._lag_fired_ns = time.monotonic_ns()
        self._lag_timer.start(self._lag_fired)
        self._greenlets = [gevent.spawn(self._watch)]
        if late_ns > 0:
            self._send("late", {"run": self.run_id, "seconds": late_ns / NS})
        problem: str | None = None
        try:
            generator.run(data["start_ns"])
        except BadInput as e:
            problem = str(e)
        except Exception as e:
            # what was measured so far is still handed in, and the run is invalid
            logger.exception("The generator failed")
            problem = f"{type(e).__name__}: {e}"
        cancelled = generator.drain(self._drain_s)
        self._finish(problem, cancelled)

    def _on_stage(self, data: dict[str, Any]) -> None:
        assert self.generator is not None
        self.generator.enter(data["stage"], data["start_ns"])

    def _on_drain(self, data: dict[str, Any]) -> None:
        """Stop sending; requests in flight may finish within the given seconds."""
        if self.generator is None or self.finished:
            return
        self.generator.stop()
        if data.get("seconds") is not None:
            self.generator.hurry(data["seconds"])

    def _on_ack(self, data: dict[str, Any]) -> None:
        if self._spool is not None:
            self._spool.acknowledge(data["number"])

    # -- while it runs -------------------------------------------------------------------------

    def _on_record(self, record: Record) -> None:
        if self._spool is not None:
            self._spool.add(
                self._log_line(record, self.id, self._stage_names, self._model, self._itl)
            )
        self._fire(record, self._request_name)

    def _on_stage_done(self, stage: int, exhausted_ns: int | None) -> None:
        self._send("stage_done", {"run": self.run_id, "stage": stage, "at_ns": exhausted_ns})

    def _send_records(self, number: int, data: bytes) -> None:
        self._send("records", {"run": self.run_id, "number": number, "data": data})

    def _lag_fired(self) -> None:
        assert self.generator is not None
        now = time.monotonic_ns()
        late = now - self._lag_fired_ns - round(_LAG_PERIOD_S * NS)
        self._lag_fired_ns = now
        self.generator.snapshot.health.lag.record(max(0, late))

    def _watch(self) -> None:
        """Once a second: CPU, memory, clock steps, and the series kept small."""
        generator = self.generator
        assert generator is not None
        work = generator.workload
        edges = [generator.load.duration or 0.0, *_edges(generator.stages)]
        began = time.monotonic()
        while True:
            gevent.sleep(1.0)
            self._measure_cpu()
            step = self._steps.step_ns()
            if abs(step) > work.validity.clock_step_s * NS:
                generator.snapshot.health.steps.append(step)
            elapsed = time.monotonic() - began
            if int(elapsed) % 60 == 0:
                generator.snapshot.series.fold(elapsed - 60, edges)

    def _measure_cpu(self) -> None:
        assert self.generator is not None
        health = self.generator.snapshot.health
        marks = self._cpu_marks
        marks.append((time.monotonic(), _cpu_s()))
        (then, cpu_then), (now, cpu_now) = marks[0], marks[-1]
        if now - then > 0.5:
            health.cpu = (cpu_now - cpu_then) / (now - then)
            if len(marks) == marks.maxlen or not health.cpu_max:
                # a busy second is no saturation: the mean over a few is
                health.cpu_max = max(health.cpu_max, health.cpu)
        health.rss_bytes = _rss_bytes()

    def report(self) -> dict[str, Any] | None:
        """The cumulative snapshot for Locust's report to the master; None outside a run.

        The records of the requests that it counts leave just before it: should this worker die,
        the master has the one as it has the other.
        """
        if self.generator is None or self.run_id is None:
            return None
        if self._spool is not None:
            self._spool.flush()
        self._refresh()
        self._sequence += 1
        return {
            "run": self.run_id,
            "sequence": self._sequence,
            "snapshot": self.generator.snapshot.to_wire(),
        }

    def _refresh(self) -> None:
        generator = self.generator
        assert generator is not None
        snapshot = generator.snapshot
        snapshot.live_tokens = generator.live_tokens
        snapshot.health.in_flight = generator.in_flight
        snapshot.health.users = generator.users

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, problem: str | None, cancelled: int) -> None:
        """Last records, last snapshot, and the word that it is over."""
        generator = self.generator
        assert generator is not None
        self._measure_cpu()
        self._stop_watching()
        if self._spool is not None:
            deadline = time.monotonic() + (0.0 if self._without_master else _ACK_WAIT_S)
            self._spool.flush()
            while not self._spool.empty and time.monotonic() < deadline:
                gevent.sleep(0.01)
                self._spool.flush()
            self.disk_error = self._spool.disk_error
        if self.before_last_word is not None and not self._without_master:
            self.before_last_word()
        self._refresh()
        self._sequence += 1
        self.finished = True
        self._send(
            "finished",
            {
                "run": self.run_id,
                "sequence": self._sequence,
                "snapshot": generator.snapshot.to_wire(with_series=True),
                "problem": problem,
                "cancelled": cancelled,
                "unacknowledged": self._spool is not None and not self._spool.empty,
                "disk_error": self.disk_error,
            },
        )
        generator.close()
        if self._spool is not None:
            self._spool.close(keep=self._without_master)
            self._spool = None

    def _stop_watching(self) -> None:
        gevent.killall(self._greenlets)
        self._greenlets = []
        if self._lag_timer is not None:
            self._lag_timer.stop()
            self._lag_timer = None

    def leave(self) -> None:
        """The process ends in the middle of a run: cancel, keep and report what there is."""
        if self.generator is None or self.finished:
            return
        self.generator.stop()
        self.generator.hurry(0)
        deadline = time.monotonic() + 5
        while not self.finished and time.monotonic() < deadline:
            gevent.sleep(0.01)

    def master_ended(self) -> bool:
        """The master's process is known to be gone."""
        return processes.ended(self._master.get("pid"), self._master.get("where", ""))

    def orphaned(self) -> str:
        """The master is gone: let requests in flight finish, keep all records on disk.

        Returns what to tell the user, when that is done.
        """
        assert self.generator is not None
        self._without_master = True
        path = self._spool.path if self._spool is not None else None
        kept = f"the records are in {path}" if path else "no records (record.requests: false)"
        self.generator.stop()
        while not self.finished:
            gevent.sleep(0.05)
        if path is not None and self.disk_error is not None:
            kept = f"the records could not be kept: {self.disk_error}"
        return (
            f"worker {self.id}: the master is gone; {kept}; with the file in the folder `workers` "
            "of the run, `tokenswarm report DIR` builds what can be known"
        )

    def _spool_folder(self, plan: dict[str, Any]) -> Path:
        """Where records are kept: in the run's folder where that can be reached from here."""
        if self._spool_dir is not None:
            return self._spool_dir
        told = plan["spool"]
        if told is not None and plan["master"]["host"] == socket.gethostname():
            run = Path(told).parent
            if run.is_dir() and os.access(run, os.W_OK):
                return Path(told)
        return Path(tempfile.gettempdir()) / f"tokenswarm-{self.run_id}"

    def abandon(self) -> None:
        """Forget a run that never finished, before the next one."""
        if self.generator is not None:
            self._stop_watching()
            self.generator.close()
            self.generator = None
        if self._spool is not None:
            self._spool.close(keep=True)
            self._spool = None


def open_prompts(work: Any) -> tuple[Any, Any]:
    """The prompt source of a workload and its tokenizer (None without one); slow, no gevent."""
    tokenizer = tokens.load(work.tokenizer) if work.tokenizer is not None else None
    return prompts.open_source(work, tokenizer=tokenizer), tokenizer


def make_transports(work: Any, host: str) -> list[Transport]:
    """A transport for each base URL of a workload, which is host's unless backend.urls has some.

    Raises BadInput for a bad URL, CA file, proxy or missing key.
    """
    limits = work.timeouts
    timeouts = Timeouts(limits.connect, limits.first_token, limits.stall, limits.total)
    headers, keep_alive = _headers(work), work.backend.connection != "new"
    targets = [
        target_proxy.through(target.parse_url(url), os.environ)
        for url in (work.backend.urls or (host,))
    ]
    return [Transport(to, timeouts, headers, _tls(work, to), keep_alive) for to in targets]


def make_transport(work: Any, host: str, k: int = 0) -> Transport | Balanced:
    """What worker k sends a workload's requests with. Raises BadInput as make_transports."""
    transports = make_transports(work, host)
    if len(transports) == 1:
        return transports[0]
    return Balanced(transports, work.backend.balance, k, by_number=work.load.mode == "open")


def _tls(work: Any, to: target.Target) -> Any:
    return tls_context(work.backend.ca_file, work.backend.insecure) if to.tls else None


def sockets_of(work: Any, k: int, n: int) -> int | None:
    """Most requests that worker k of n has in flight; None where only the server decides."""
    load = work.load
    most = load.max_in_flight
    if load.mode == "closed":
        users = max(int(stage.most_users) for stage in load.resolved_stages())
        held = most is None or load.sticky_connection  # while its user thinks or waits, too
        most = users if held else min(users, most)
    return None if most is None else len(range(k, most, n))


def _headers(work: Any) -> tuple[tuple[str, str], ...]:
    headers = tuple(work.backend.headers.items())
    if work.backend.api_key_env:
        key = os.environ.get(work.backend.api_key_env, "")
        if not key:
            raise BadInput(
                f"backend.api_key_env: the environment variable {work.backend.api_key_env} "
                "is not set (on this machine); export it or leave the key out"
            )
        headers = (*headers, ("Authorization", f"Bearer {key}"))
    return headers


def make_metrics_transport(work: Any, to: target.Target, same: bool) -> Transport:
    """A transport for an engine's metrics; the server's key goes along only to the same server."""
    headers = _headers(work) if same else ()
    to = target_proxy.through(to, os.environ)
    return Transport(to, server_side.TIMEOUTS, headers, _tls(work, to))


def fire_request(environment: Any) -> Callable[[Record, str], None]:
    """A function that tells Locust of a request, once each, so that its own pages live.

    The response time is e2e; a failed request has none.
    """

    def fire(record: Record, name: str) -> None:
        if record.outcome is Outcome.CANCELLED:
            return
        ok = record.outcome is Outcome.OK
        latency = None
        if ok and record.last_ns is not None and record.sent_ns is not None:
            latency = (record.last_ns - record.sent_ns) / 1e6
        status = f" {record.http_status}" if record.http_status not in (None, 200) else ""
        environment.events.request.fire(
            request_type="POST",
            name=name,
            response_time=latency,
            response_length=record.output_chars,
            exception=None if ok else RequestFailed(f"{record.outcome.value}{status}"),
            context={"record": record},
        )

    return fire


def _edges(stages: Any) -> list[float]:
    edges, at = [], 0.0
    for stage in stages:
        if stage.duration is None:
            break
        at += stage.duration
        edges.append(at)
    return edges


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
