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
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

from tokenswarm import backends, prompts, tokens, workload
from tokenswarm.clock import NS
from tokenswarm.distributed import processes
from tokenswarm.distributed.servers import make_transport, sockets_of
from tokenswarm.distributed.spool import Spool
from tokenswarm.distributed.vitals import Vitals
from tokenswarm.generator import Generator
from tokenswarm.offload import offload
from tokenswarm.records import BadInput, Record
from tokenswarm.stream_secrets import redactor
from tokenswarm.transport_limits import make_room

logger = logging.getLogger(__name__)
_ACK_WAIT_S = 30.0
_YOUNG_OBJECTS = 20_000  # between collections: 700, the default, makes 70 a second at 1,000 streams


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
        self._vitals: Vitals | None = None
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
        source, tokenizer = offload(_open_prompts, work)
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
        self._vitals = Vitals(generator)
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
        if self._vitals is not None:
            self._vitals.close()
            self._vitals = None

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


def _open_prompts(work: Any) -> tuple[Any, Any]:
    """The prompt source of a workload and its tokenizer (None without one); slow, no gevent."""
    tokenizer = tokens.load(work.tokenizer) if work.tokenizer is not None else None
    return prompts.open_source(work, tokenizer=tokenizer), tokenizer
