"""Runs made by hand: the numbers in them are known without running anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenswarm.records import Outcome, Record
from tokenswarm.run import Run, StageWindow, Worker
from tokenswarm.slo import Objective, parse_slos
from tokenswarm.snapshot import Snapshot

MS = 1_000_000
S = 1_000_000_000
T0 = 1_750_000_000 * S


def workload(mode: str = "closed", **over: Any) -> Any:
    """What exporters read of a workload."""
    made = SimpleNamespace(
        name="hand-made",
        seed=7,
        nonce="salt",
        backend=SimpleNamespace(kind="openai-completions", model="m"),
        tokenizer=SimpleNamespace(source="tiktoken", path="cl100k_base"),
        load=SimpleNamespace(mode=mode, users=4, max_in_flight=None, drain=60.0),
        hardware=None,
        record=SimpleNamespace(requests=True, itl=False),
        validity=SimpleNamespace(
            rate_tolerance=0.01, cpu=0.9, loop_lag_p99_s=0.02, coalesced_share=0.05,
            starved_share=0.05, clock_step_s=0.005,
        ),
    )  # fmt: skip
    for key, value in over.items():
        setattr(made, key, value)
    return made


def record(
    index: int = 0,
    outcome: Outcome = Outcome.OK,
    *,
    stage: int = 1,
    due_s: float = 10.0,
    delay_ms: float = 0.0,
    ttft_ms: float = 100.0,
    itl_ms: float = 20.0,
    tokens: int = 11,
    **over: Any,
) -> Record:
    """A request: due, sent, first token, then one token every itl_ms."""
    due = T0 + round(due_s * S)
    sent = due + round(delay_ms * MS)
    first = sent + round(ttft_ms * MS)
    events = [first + round(k * itl_ms * MS) for k in range(tokens)]
    ok = outcome is Outcome.OK
    facts: dict[str, Any] = {
        "sent_ns": sent,
        "end_ns": (events[-1] if ok else first) + MS,
        "event_ns": events if ok else [],
        "reads": tokens if ok else 0,
        "output_tokens": tokens if ok else None,
        "output_tokens_source": "usage" if ok else None,
        "output_chars": 4 * tokens if ok else 0,
        "prompt_tokens": 100,
        "prompt_tokens_source": "usage" if ok else "tokenizer",
        "prompt_tokens_expected": 100,
        "output_tokens_expected": tokens,
        "longest_gap_ns": round(itl_ms * MS) if ok else None,
        "http_status": 200,
        "finish_reason": "length" if ok else None,
        "warmup": stage == 0,
    }
    return Record(index=index, stage=stage, due_ns=due, due_offset_ns=round(due_s * S),
                  outcome=outcome, **{**facts, **over})  # fmt: skip


def count(snapshot: Snapshot, *records: Record) -> Snapshot:
    """Count requests as a worker does."""
    for r in records:
        snapshot.stage(r.stage).started += 1
        snapshot.add(r, T0)
    return snapshot


def worker(k: int | None = 0, *records: Record, state: str = "ready") -> Worker:
    """A worker that has reported these requests and come to its end."""
    snapshot = count(Snapshot(), *records)
    return Worker(
        id=f"w{k}", index=k or 0, pid=4000 + (k or 0), host="here", state=state, k=k,
        snapshot=snapshot, final=True, records_received=snapshot.records, prepared=True,
    )  # fmt: skip


def objectives(slo: dict[str, str] | None = None, mode: str = "closed") -> list[Objective]:
    return parse_slos(slo or {}, mode)  # type: ignore[arg-type]


def run(*workers: Worker, out: Path | None = None, mode: str = "closed", **over: Any) -> Run:
    """Ten seconds of warm-up, twenty measured, ended in order."""
    facts: dict[str, Any] = {
        "id": "r1",
        "workload": workload(mode),
        "host": "http://127.0.0.1:8000",
        "out": out,
        "state": "done",
        "started": T0 / S,
        "start_ns": T0,
        "ended": T0 / S + 31,
        "stages": [
            StageWindow("warmup", True, 0.0, 10.0, users=2),
            StageWindow("main", False, 10.0, 30.0, users=4),
        ],
        "workers": {w.id: w for w in workers},
        "objectives": objectives(mode=mode),
        "versions": {"tokenswarm": "0.1.0"},
    }
    return Run(**{**facts, **over})
