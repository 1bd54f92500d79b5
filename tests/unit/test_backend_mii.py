"""DeepSpeed-MII's REST gateway: one document, measured as one event."""

import json

import pytest
from backend_play import CHAT, IDS, TEXT, make, read, sent
from stream_play import END, chunk, head, play

from tokenswarm import stream
from tokenswarm.records import BadInput, Outcome, TokenEvent, Usage

ANSWER = [{"generated_text": "Hey you", "prompt_length": 5, "generated_length": 3,
           "finish_reason": "length"}]  # fmt: skip
EVENT = TokenEvent(
    text="Hey you", tokens=3, usage=Usage(5, 3), finish_reason="length", end=True
)  # fmt: skip
JSON = head(200, "application/json")


def test_the_request_forces_the_length():
    backend = make("mii", extra_body={"temperature": 0.8})
    assert sent(backend.build(TEXT)) == ("/mii/m%2F1", {
        "prompts": ["Hello there"], "max_new_tokens": 3, "min_new_tokens": 3, "ignore_eos": True,
        "temperature": 0.8,
    })  # fmt: skip
    assert sent(backend.probe(TEXT))[1]["max_new_tokens"] == 1


@pytest.mark.parametrize("prompt", [CHAT, IDS])
def test_messages_and_token_ids_are_refused(prompt):
    with pytest.raises(BadInput, match="'mii' sends one text"):
        make("mii").build(prompt)


@pytest.mark.parametrize("document", [ANSWER, json.dumps(ANSWER), ANSWER[0]])
def test_the_answer_plain_or_encoded_twice(document):
    assert read(make("mii"), document) == [EVENT]


def test_that_nothing_streams_is_said():
    assert "one event" in make("mii").notes[0]


def test_a_whole_answer_is_one_token_event():
    played = play("mii", [chunk(json.dumps(ANSWER).encode()), END], before=JSON, exact=True,
                  wanted=3)  # fmt: skip
    assert played.outcome is Outcome.OK
    assert (played.record.event_ns, played.record.output_tokens, played.record.finish_reason) == (
        [2], 3, "length",
    )  # fmt: skip


def test_a_long_answer_is_kept_whole_and_an_endless_one_is_not(monkeypatch):
    long = [{**ANSWER[0], "generated_text": "x" * 200_000}]
    body = json.dumps(long).encode()
    pieces = [chunk(body[i : i + 5000]) for i in range(0, len(body), 5000)]
    assert play("mii", [*pieces, END], before=JSON).record.output_chars == 200_000
    monkeypatch.setattr(stream, "MAX_DOCUMENT_BYTES", 50_000)
    played = play("mii", [*pieces, END], before=JSON)
    assert (played.outcome, played.error) == (
        Outcome.MALFORMED, "an answer of more than 50000 bytes",
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"{}", b"<html>"])
def test_anything_else_is_malformed(body):
    assert play("mii", [chunk(body), END], before=JSON).outcome is Outcome.MALFORMED


def test_an_error_object_in_a_good_status():
    played = play("mii", [chunk(b'{"error": "no such deployment"}'), END], before=JSON)
    assert (played.outcome, played.error) == (Outcome.STREAM_ERROR, "no such deployment")
