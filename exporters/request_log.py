"""requests.jsonl: one JSON line a request, written by `line` and read back by `read`.

It knows a Record and the metrics, and nothing of who writes the bytes where: `line` runs on
workers, between requests, and takes about 10 us. Keys are those of README's table; what is not
known is null. `extra` keys at the end are there only when they say something.

The one subtle rule: a failed request keeps its time stamps and has no latency, exactly as in
the histograms. Unix times are cut to microseconds, durations keep every nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tokenswarm import measure
from tokenswarm.measure import NS
from tokenswarm.records import Outcome, Record

# Facts of a Record that most requests have at their default: name in the file, in the Record.
EXTRAS = (
    "retries", "reconnected", "cached_tokens", "coalesced_reads", "unstamped_reads", "url",
    "first_event_tokens",
)  # fmt: skip
_DEFAULTS = {"retries": 0, "reconnected": False, "cached_tokens": None, "coalesced_reads": 0,
             "unstamped_reads": 0, "url": None, "first_event_tokens": 1}  # fmt: skip


def _unix(ns: int | None) -> float | None:
    """Unix seconds with microseconds: a float has no room for nanoseconds."""
    return None if ns is None else ns // 1000 / 1e6


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS


def line(record: Record, worker: str, stages: Sequence[str], model: str, itl: bool) -> bytes:
    """The JSON line of a request, newline included. stages are the names of the plan's stages."""
    r = record
    ok = r.outcome is Outcome.OK
    row: dict[str, Any] = {
        "index": r.index,
        "worker": worker,
        "stage": stages[r.stage] if 0 <= r.stage < len(stages) else str(r.stage),
        "outcome": r.outcome.value,
        "error": r.error,
        "http_status": r.http_status,
        "due": _unix(r.due_ns),
        "sent": _unix(r.sent_ns),
        "first_token": _unix(r.first_ns),
        "last_token": _unix(r.last_ns),
        "end": _unix(r.end_ns),
        "due_offset_s": r.due_offset_ns / NS,
        "ttft_s": _seconds(measure.ttft(r)) if ok else None,
        "ttft_due_s": _seconds(measure.ttft_due(r)) if ok else None,
        "tpot_s": _seconds(measure.tpot(r)) if ok else None,
        "e2e_s": _seconds(measure.e2e(r)) if ok else None,
        "e2e_due_s": _seconds(measure.e2e_due(r)) if ok else None,
        "send_delay_s": _seconds(measure.send_delay(r)),
        "connect_s": _seconds(r.connect_ns) if ok else None,
        "longest_gap_s": _seconds(r.longest_gap_ns) if ok else None,
        "prompt_tokens": r.prompt_tokens,
        "output_tokens": r.output_tokens,
        "prompt_tokens_source": r.prompt_tokens_source,
        "output_tokens_source": r.output_tokens_source,
        "output_chars": r.output_chars,
        "prompt_tokens_expected": r.prompt_tokens_expected,
        "output_tokens_expected": r.output_tokens_expected,
        "events": len(r.event_ns),
        "reads": r.reads,
        "finish_reason": r.finish_reason,
        "session": r.session,
        "turn": r.turn,
        "model": model,
        "warmup": r.warmup,
    }
    if itl:
        row["itl_s"] = [gap / NS for gap in measure.itl(r)]
    for name in EXTRAS:
        value = getattr(r, name)
        if value != _DEFAULTS[name]:
            row[name] = value
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(slots=True)
class Torn:
    """What could not be read: lines that are no JSON objects of ours (a torn last one counts)."""

    lines: int = 0


def rows(path: Path, torn: Torn | None = None) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one at a time; lines that cannot be read are counted in torn."""
    with path.open("rb") as file:
        for raw in file:
            try:
                row = orjson.loads(raw)
                usable = isinstance(row, dict) and "index" in row and "outcome" in row
            except orjson.JSONDecodeError:
                usable = False
            if usable:
                yield row
            elif torn is not None:
                torn.lines += 1


def read(
    path: Path, torn: Torn | None = None, stages: Sequence[str] = ()
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Records of a file, each with its row; a torn last line is skipped and counted in torn.

    stages are the names of the plan's stages; others get the next indices as they are met.

    Inverse of `line` as far as the file goes: durations are exact, Unix times are cut to
    microseconds. Without itl_s the events between the first and the last are spread evenly, so
    the tokens come at about the right time, but the gaps between them are made up.
    """
    known = {name: index for index, name in enumerate(stages)}
    for row in rows(path, torn):
        try:
            record = record_of(row, known.setdefault(row["stage"], len(known)))
        except (KeyError, TypeError, ValueError):
            if torn is not None:
                torn.lines += 1
            continue
        yield record, row


def _ns(unix_s: float | None) -> int | None:
    """Nanoseconds of Unix seconds that have whole microseconds."""
    return None if unix_s is None else round(unix_s * 1e6) * 1000


def _duration_ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS)


def _events(row: dict[str, Any], sent: int | None) -> list[int]:
    """Arrival of every token event: from durations where there are any, else from the stamps."""
    first, last = _ns(row["first_token"]), _ns(row["last_token"])
    if first is None or last is None:
        return []
    if sent is not None and row["ttft_s"] is not None:
        first = sent + round(row["ttft_s"] * NS)
    if sent is not None and row["e2e_s"] is not None:
        last = sent + round(row["e2e_s"] * NS)
    stamps = [first]
    for gap in row.get("itl_s") or ():
        stamps.append(stamps[-1] + round(gap * NS))
    n = max(1, row["events"])
    if len(stamps) != n:
        last = max(first, last)
        stamps = [first + (last - first) * k // (n - 1) for k in range(n)] if n > 1 else [first]
    return stamps


def record_of(row: dict[str, Any], stage: int) -> Record:
    """The Record of a row of the file. stage is the index of its stage."""
    sent = _ns(row["sent"])
    events = _events(row, sent)
    due = _ns(row["due"]) or 0
    if events and row["ttft_due_s"] is not None:
        due = events[0] - round(row["ttft_due_s"] * NS)
    extras = {name: row[name] for name in EXTRAS if name in row}
    return Record(
        index=row["index"],
        stage=stage,
        due_ns=due,
        due_offset_ns=round(row["due_offset_s"] * NS),
        outcome=Outcome(row["outcome"]),
        warmup=row["warmup"],
        error=row["error"],
        http_status=row["http_status"],
        sent_ns=sent,
        connect_ns=_duration_ns(row["connect_s"]),
        end_ns=_ns(row["end"]),
        event_ns=events,
        reads=row["reads"],
        longest_gap_ns=_duration_ns(row["longest_gap_s"]),
        prompt_tokens=row["prompt_tokens"],
        prompt_tokens_source=row["prompt_tokens_source"],
        prompt_tokens_expected=row["prompt_tokens_expected"],
        output_tokens=row["output_tokens"],
        output_tokens_source=row["output_tokens_source"],
        output_tokens_expected=row["output_tokens_expected"],
        output_chars=row["output_chars"],
        finish_reason=row["finish_reason"],
        session=row["session"],
        turn=row["turn"],
        **extras,
    )
