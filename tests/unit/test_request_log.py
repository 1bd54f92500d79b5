from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hand_made import MS, T0, S, record

from exporters.request_log import Torn, line, read
from tokenswarm.measure import METRICS, values
from tokenswarm.records import Outcome, Record

STAGES = ["warmup", "main"]
KEYS = [
    "index", "worker", "stage", "outcome", "error", "http_status", "due", "sent", "first_token",
    "last_token", "end", "due_offset_s", "ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s",
    "send_delay_s", "connect_s", "longest_gap_s", "prompt_tokens", "output_tokens",
    "prompt_tokens_source", "output_tokens_source", "output_chars", "prompt_tokens_expected",
    "output_tokens_expected", "events", "reads", "finish_reason", "session", "turn", "model",
    "warmup",
]  # fmt: skip


def row(r: Record, itl: bool = False) -> dict[str, Any]:
    raw = line(r, "w0", STAGES, "m", itl)
    assert raw.endswith(b"}\n")
    assert raw.count(b"\n") == 1
    made: dict[str, Any] = json.loads(raw)
    return made


def test_a_line_has_every_key_once_and_in_order() -> None:
    assert list(row(record())) == KEYS
    assert list(row(record(), itl=True)) == [*KEYS, "itl_s"]


def test_values_of_an_answered_request() -> None:
    got = row(record(7, delay_ms=3, due_s=10.5, connect_ns=2 * MS, session=4, turn=1))
    assert got["due"] == 1750000010.5
    assert got["sent"] == 1750000010.503
    assert got["first_token"] == 1750000010.603
    assert got["last_token"] == 1750000010.803
    assert got["end"] == 1750000010.804
    assert (got["due_offset_s"], got["send_delay_s"], got["connect_s"]) == (10.5, 0.003, 0.002)
    assert (got["ttft_s"], got["ttft_due_s"], got["tpot_s"]) == (0.1, 0.103, 0.02)
    assert (got["e2e_s"], got["e2e_due_s"], got["longest_gap_s"]) == (0.3, 0.303, 0.02)
    assert (got["prompt_tokens"], got["output_tokens"], got["events"], got["reads"]) == (
        100, 11, 11, 11,
    )  # fmt: skip
    assert (got["stage"], got["worker"], got["model"], got["warmup"]) == ("main", "w0", "m", False)
    assert (got["session"], got["turn"], got["outcome"]) == (4, 1, "ok")


def test_unix_times_keep_microseconds() -> None:
    got = row(record(sent_ns=T0 + 123_456_789))
    assert got["sent"] == 1750000000.123456


def test_a_failed_request_keeps_its_stamps_and_has_no_latency() -> None:
    events = [T0 + 11 * S, T0 + 12 * S]
    got = row(record(0, Outcome.CONNECTION_LOST, event_ns=events, error="reset", connect_ns=MS))
    assert (got["first_token"], got["last_token"]) == (1750000011.0, 1750000012.0)
    assert got["error"] == "reset"
    assert got["prompt_tokens"] == 100
    assert got["send_delay_s"] == 0.0
    for name in ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "connect_s",
                 "longest_gap_s"):  # fmt: skip
        assert got[name] is None


def test_a_request_never_sent_has_nulls() -> None:
    got = row(record(0, Outcome.CANCELLED, sent_ns=None, end_ns=None))
    assert [got[k] for k in ("sent", "first_token", "last_token", "end", "send_delay_s")] == (
        [None] * 5
    )


def test_inter_token_latencies_sum_to_last_minus_first() -> None:
    got = row(record(itl_ms=20.25), itl=True)
    assert got["itl_s"] == [0.02025] * 10


@pytest.mark.parametrize("itl", [True, False])
def test_reading_back_gives_the_same_metrics(tmp_path: Path, itl: bool) -> None:
    path = tmp_path / "requests.jsonl"
    written = [
        record(0, stage=0, due_s=1.0000001),
        record(1, delay_ms=1.234567, ttft_ms=87.654321, itl_ms=12.345678, first_event_tokens=3),
        record(2, Outcome.HTTP_ERROR, http_status=500, error="boom", retries=2),
        record(3, tokens=1),
        record(4, Outcome.CANCELLED, sent_ns=None, end_ns=None),
        record(5, coalesced_reads=1, unstamped_reads=2, cached_tokens=64, url="http://b"),
    ]
    path.write_bytes(b"".join(line(r, "w0", STAGES, "m", itl) for r in written))
    back = [r for r, _ in read(path, stages=STAGES)]
    for name, metric in METRICS.items():
        if name != "itl_s" or itl:
            assert [values(r, metric) for r in back] == [values(r, metric) for r in written]
    same = ("index", "stage", "outcome", "error", "http_status", "due_offset_ns", "reads",
            "prompt_tokens", "output_tokens", "finish_reason", "retries", "coalesced_reads",
            "unstamped_reads", "cached_tokens", "url", "first_event_tokens", "warmup")  # fmt: skip
    for name in same:
        assert [getattr(r, name) for r in back] == [getattr(r, name) for r in written]
    assert [len(r.event_ns) for r in back] == [11, 11, 0, 1, 0, 11]


def test_a_torn_last_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    lines = [line(record(k), "w0", STAGES, "m", False) for k in range(3)]
    path.write_bytes(b"".join(lines)[:-40])
    torn = Torn()
    assert [r.index for r, _ in read(path, torn)] == [0, 1]
    assert torn.lines == 1


@pytest.mark.parametrize("junk", [b"\n", b"[]\n", b"null\n", b'{"index": 1}\n', b"\xff\xfe\n",
                                  b'{"index":1,"outcome":"ok"}\n'])  # fmt: skip
def test_lines_that_are_not_ours_are_counted(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(junk + line(record(9), "w0", STAGES, "m", False))
    torn = Torn()
    assert [r.index for r, _ in read(path, torn)] == [9]
    assert torn.lines == 1


def test_a_line_is_quick() -> None:
    r = record(tokens=128)
    best = min(_seconds(r) for _ in range(5))
    # about 7 us on the machine where it was written; three times slower is a mistake of ours
    assert best < 40e-6


def _seconds(r: Record) -> float:
    start = time.perf_counter()
    for _ in range(500):
        line(r, "w0", STAGES, "m", False)
    return (time.perf_counter() - start) / 500
