"""Byte streams of real servers with the right answers, each also cut in other ways."""

import base64
import json
from pathlib import Path

import pytest
from stream_play import END, chunk, head, play

from tokenswarm.backends import BACKENDS

CASES = json.loads((Path(__file__).parent.parent / "data" / "sse_cases.json").read_text())

# Words of the cases that this project says more precisely.
WORDS = {"http_status": {"http_error", "throttled"}, "connection": {"connection_lost"}}


def speaker(case):
    """The protocol of a case; skips it when that is not spoken here."""
    kind = case.get("api", case["kind"])
    if kind not in BACKENDS:
        pytest.skip(f"no backend '{kind}' in BACKENDS")
    return kind


def reads_of(case):
    """The case's reads as bytes on the wire: one chunk a read, the end chunk with the last."""
    wire = [chunk(read) if read else b"" for read in raw_reads(case)]
    if case["eof"] == "clean":
        wire = [*wire[:-1], (wire[-1] if wire else b"") + END]
    return wire


def raw_reads(case):
    """Reads are text, or base64 where they end inside a character."""
    return [
        base64.b64decode(read["b64"]) if isinstance(read, dict) else read.encode()
        for read in case["reads"]
    ]


def check(case, played, *, same_reads):
    expect = case["expect"]
    outcome = played.outcome.value
    if expect["ok"]:
        assert (outcome, played.error) == ("ok", None)
    else:
        words = expect.get("error_kind_any_of", [expect["error_kind"]])
        assert outcome in set().union(*(WORDS.get(word, {word}) for word in words))
        assert played.error
    assert played.text in expect.get("text_any_of", [expect["text"]])
    assert played.reasoning == expect.get("reasoning_text", "")
    events = expect.get("n_content_events_any_of", [expect["n_content_events"]])
    assert len(played.stream.event_ns) in events
    usage = played.stream.usage
    assert (usage and usage.output_tokens) == expect.get("output_tokens_from_usage")
    assert (usage and usage.prompt_tokens) == expect.get("prompt_tokens")
    if "finish_reason" in expect:
        assert played.stream.finish_reason == expect["finish_reason"]
    if same_reads:
        first = expect.get("first_token_read_index_any_of", [expect["first_token_read_index"]])
        assert played.first_read in first
        if "first_answer_read_index" in expect:
            assert played.first_answer_read == expect["first_answer_read_index"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_as_it_was_read(case):
    played = play(speaker(case), reads_of(case), before=head(case["status"], case["content_type"]))
    check(case, played, same_reads=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
@pytest.mark.parametrize("cut", ["whole", "bytes", "sevens", "byte chunks"])
def test_case_cut_in_other_ways(case, cut):
    kind = speaker(case)
    wire = reads_of(case)
    if cut == "byte chunks":
        body = b"".join(raw_reads(case))
        wire = [chunk(body[i : i + 1]) for i in range(len(body))]
        if case["eof"] == "clean":
            wire.append(END)
    whole = head(case["status"], case["content_type"]) + b"".join(wire)
    step = {"whole": len(whole), "bytes": 1, "sevens": 7, "byte chunks": 13}[cut]
    pieces = [whole[i : i + step] for i in range(0, len(whole), step)]
    check(case, play(kind, pieces), same_reads=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_bytes_after_the_answer_change_nothing(case):
    kind = speaker(case)
    if case["eof"] != "clean":
        pytest.skip("nothing can follow an aborted connection")
    wire = reads_of(case)
    wire[-1] += b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\ntrailing"
    check(case, play(kind, wire, before=head(case["status"], case["content_type"])),
          same_reads=True)  # fmt: skip


def test_the_cases_cover_the_two_openai_protocols():
    kinds = [case["kind"] for case in CASES]
    assert (kinds.count("openai-completions"), kinds.count("openai-chat")) == (7, 48)
