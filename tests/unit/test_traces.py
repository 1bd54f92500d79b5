from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tokenswarm.records import BadInput
from tokenswarm.traces import read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:01.017335+00:00,2399,6\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,230,1317,Conversation log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3500, "input_length": 7319, "output_length": 490, "hash_ids": [0, 2]}\n'
)
BAILIAN = (
    '{"chat_id": 1, "timestamp": 61.25, "input_length": 20, "output_length": 3, "turn": 1}\n'
    '{"chat_id": 2, "timestamp": 61.5, "input_length": 21, "output_length": 4, "turn": 1}\n'
)


def read(tmp_path: Path, text: str) -> list[tuple[float, int | None, int | None]]:
    path = tmp_path / "trace.txt"
    path.write_text(text, encoding="utf-8")
    return read_trace(path)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (AZURE, [(0.0, 374, 44), (4.314579, 396, 109)]),
        (AZURE_2024, [(0.0, 2162, 5), (1.007405, 2399, 6)]),
        (BURST, [(0.0, 472, 18), (40.0, 1087, 230)]),
        (MOONCAKE, [(0.0, 6758, 500), (3.5, 7319, 490)]),
        (BAILIAN, [(0.0, 20, 3), (0.25, 21, 4)]),
        ("time_s,input_tokens,output_tokens\n1,2,3\n2,3,4\n", [(0.0, 2, 3), (1.0, 3, 4)]),
        ("time_s\n1\n2.5\n", [(0.0, None, None), (1.5, None, None)]),
        ("﻿time_s\r\n1\r\n\r\n2.5\r\n", [(0.0, None, None), (1.5, None, None)]),
        ("time_s\n9\n4\n", [(0.0, None, None), (5.0, None, None)]),
    ],
)
def test_known_kinds(
    tmp_path: Path, text: str, rows: list[tuple[float, int | None, int | None]]
) -> None:
    found = read(tmp_path, text)
    assert [row[1:] for row in found] == [row[1:] for row in rows]
    assert [row[0] for row in found] == pytest.approx([row[0] for row in rows], abs=2e-6)


def test_failed_requests_of_a_trace_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        rows = read(tmp_path, BURST + "50,GPT-4,277,0,277,API log\n")
    assert rows == [(0.0, 472, 18), (40.0, 1087, 230)]
    assert [r.getMessage().split(": ", 1)[1] for r in caplog.records] == [
        "1 of 3 requests have no tokens (failed ones are kept so) and are left out"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": is empty. Expected the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure)"),
        ("time_s\n", ": has no requests; a trace needs a line for each. Expected the columns"),
        ("a,b\n1,2\n", ":2: not a known trace: has the columns a, b. Expected the columns"),
        (AZURE + "2023-11-16 18:15:51,x,1\n",
         ":4: column 'ContextTokens': must be a whole number of tokens, got 'x'"),
        (AZURE + "yesterday,1,1\n", ":4: column 'TIMESTAMP': must be a time, got 'yesterday'"),
        (AZURE + "2023-11-16 18:15:51,1\n", ":4: has 2 columns, the heading has 3"),
        (MOONCAKE + '{"timestamp": 9', ":3: is not JSON: "),
        (MOONCAKE + "[1]\n", ":3: must be a JSON object, one a line"),
        (MOONCAKE + '{"timestamp": 9, "input_length": null, "output_length": 3}\n',
         ":3: column 'input_length': must be a whole number of tokens, got None"),
        ("time_s\nnan\n", ":2: column 'time_s': must be a time, got 'nan'"),
    ],
)  # fmt: skip
def test_what_is_no_trace(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, text)
    assert caught.value.problems[0].startswith(f"{tmp_path / 'trace.txt'}{problem}")


def test_all_odd_rows_are_told_up_to_a_limit(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, "time_s\n1\n" + "x\n" * 30)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1].endswith("reading stopped after 20 mistakes")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bin").write_bytes(b"time_s\n\xff\xfe\n")
    for name, text in (("none", "cannot read the trace: "), ("", "cannot read the trace: "),
                       ("bin", "is not UTF-8 text (byte offset ")):  # fmt: skip
        with pytest.raises(BadInput) as caught:
            read_trace(tmp_path / name)
        assert text in caught.value.problems[0]
