"""What workers say in a run, and what the run makes of it: one method for each kind of message.

Fills in the run's workers, faults and warnings. Messages of other runs, and those that come when
the counting up has begun, change nothing.

The one subtle rule: a worker's snapshot is cumulative. The latest counts, whatever the order in
which they come, and none that follows its last word, the only one with the series of tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from tokenswarm.distributed.crew import Crew
from tokenswarm.distributed.folder import write_workers
from tokenswarm.distributed.spool import RecordFile
from tokenswarm.distributed.stages import Stages
from tokenswarm.run import Run, Worker
from tokenswarm.snapshot import Snapshot

_LATE_S = 1.0


class Inbox:
    """The messages of one run.

    digest names the prompts that the master has opened itself; it is set as soon as it has.
    """

    def __init__(self, run: Run, crew: Crew, stages: Stages, records: RecordFile) -> None:
        self.digest: str | None = None
        self._run, self._crew, self._stages, self._records = run, crew, stages, records
        self._is_open = True
        self._sequences: dict[str, int] = {}
        self._handlers: dict[str, Callable[[Worker, dict[str, Any]], None]] = {
            "prepared": self._on_prepared,
            "refused": self._on_refused,
            "failed": self._on_failed,
            "late": self._on_late,
            "stage_done": self._on_stage_done,
            "records": self._on_records,
            "finished": self._on_finished,
        }

    def close(self) -> None:
        """What comes from now on comes too late."""
        self._is_open = False

    def receive(self, kind: str, worker_id: str, data: dict[str, Any]) -> None:
        """A message from a worker; of another run it is ignored."""
        worker = self._worker_of(worker_id, data)
        if worker is not None:
            self._handlers[kind](worker, data)

    def report(self, worker_id: str, data: dict[str, Any]) -> None:
        """A worker's cumulative snapshot."""
        worker = self._worker_of(worker_id, data)
        if worker is None or worker.final:
            return
        if data["sequence"] > self._sequences.get(worker_id, 0):
            self._sequences[worker_id] = data["sequence"]
            worker.snapshot = Snapshot.from_wire(data["snapshot"])

    def _worker_of(self, worker_id: str, data: dict[str, Any]) -> Worker | None:
        """Who speaks, if it takes part in this run, and it is still on."""
        if not self._is_open or data.get("run") != self._run.id:
            return None
        worker = self._run.workers.get(worker_id)
        if worker is not None:
            worker.reported_s = time.monotonic()
        return worker

    def _on_prepared(self, worker: Worker, data: dict[str, Any]) -> None:
        self._crew.joined(worker.id, data["pid"], data["host"], worker.index, data["where"])
        write_workers(self._run)
        worker.prepared = True
        if data["digest"] != self._master_digest():
            worker.faults.append(
                f"worker {worker.id} ({worker.host}) has another data set or tokenizer than the "
                "master: give all of them the same files"
            )

    def _master_digest(self) -> str | None:
        # The master opens the same files while workers do; whoever is first waits here, unless
        # the master has found that it cannot.
        while self.digest is None and self._is_open:
            gevent.sleep(0.01)
        return self.digest

    def _on_refused(self, worker: Worker, data: dict[str, Any]) -> None:
        worker.faults += [f"{p} (worker {worker.id} on {worker.host})" for p in data["problems"]]

    def _on_failed(self, worker: Worker, data: dict[str, Any]) -> None:
        text = f"worker {worker.id}: {data['text']}"
        worker.faults.append(text)
        if self._run.start_ns is not None:
            self._run.faults.append(("internal_error", text))
            worker.state = "lost"

    def _on_late(self, worker: Worker, data: dict[str, Any]) -> None:
        if data["seconds"] > _LATE_S:
            self._run.fault(
                "worker_late", f"worker {worker.id} started {data['seconds']:.3f} s late"
            )

    def _on_stage_done(self, worker: Worker, data: dict[str, Any]) -> None:
        self._stages.done(data["stage"], worker.id, data["at_ns"])

    def _on_records(self, worker: Worker, data: dict[str, Any]) -> None:
        worker.records_received += self._records.write(worker.id, data["number"], data["data"])
        self._crew.send("ack", {"run": data["run"], "number": data["number"]}, worker.id)

    def _on_finished(self, worker: Worker, data: dict[str, Any]) -> None:
        self.report(worker.id, data)
        worker.final = True
        run = self._run
        if data["problem"]:
            run.fault("internal_error", f"worker {worker.id}: {data['problem']}")
        if data["disk_error"]:
            run.warnings.append(f"worker {worker.id} kept records in memory: {data['disk_error']}")
        if data["unacknowledged"]:
            run.fault("reports_missing", f"worker {worker.id} could not hand in all of its records")
