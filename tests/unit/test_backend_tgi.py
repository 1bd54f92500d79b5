"""TGI's /generate_stream: what is sent, and what its events mean."""

import pytest
from backend_play import CHAT, FREE, IDS, TEXT, make, read, refused, sent

from tokenswarm.records import BadInput, TokenEvent, Usage


def token(text, special=False, **more):
    return {"index": 1, "token": {"id": 5, "text": text, "logprob": -1.0, "special": special},
            "generated_text": None, "details": None, **more}  # fmt: skip


def test_the_request_asks_for_the_length_and_for_details():
    backend = make("tgi", extra_body={"temperature": 0.8, "details": None})
    assert sent(backend.build(TEXT)) == (
        "/generate_stream",
        {"inputs": "Hello there", "parameters": {"max_new_tokens": 3, "temperature": 0.8}},
    )
    assert sent(make("tgi").probe(TEXT))[1]["parameters"] == {"details": True, "max_new_tokens": 1}
    assert sent(make("tgi").build(FREE))[1]["parameters"] == {"details": True}


@pytest.mark.parametrize("prompt", [CHAT, IDS])
def test_messages_and_token_ids_are_refused(prompt):
    with pytest.raises(BadInput, match="'tgi' sends one text"):
        make("tgi").build(prompt)


def test_that_no_length_can_be_forced_is_said():
    assert "short_output" in make("tgi").notes[0]
    assert make("tgi", exact=False).notes == ()


def test_it_has_no_options():
    assert refused("tgi", options={"x": 1}) == (
        "backend.options.x: backend.kind 'tgi' has no options; leave it out",
    )


def test_events():
    details = {"finish_reason": "length", "generated_tokens": 2, "seed": None, "input_length": 5}
    events = read(
        make("tgi"), token("He"), token(""), token("y", generated_text="Hey", details=details)
    )
    assert events == [
        TokenEvent(text="He"),
        TokenEvent(),
        TokenEvent(text="y", usage=Usage(5, 2), finish_reason="length", end=True),
    ]


def test_the_end_of_sequence_is_no_text_and_details_may_lack_the_prompt():
    details = {"finish_reason": "eos_token", "generated_tokens": 1, "seed": None}
    [event] = read(make("tgi"), token("</s>", special=True, generated_text="", details=details))
    assert event == TokenEvent(usage=Usage(None, 1), finish_reason="eos_token", end=True)


def test_an_error_event():
    [event] = read(make("tgi"), {"error": "CUDA out of memory", "error_type": "generation"})
    assert event.error == "CUDA out of memory"


def test_anything_else_is_malformed():
    with pytest.raises(ValueError, match="JSON object"):
        read(make("tgi"), b"[1]")
