"""llama.cpp's /completion, and the older form of it that PowerInfer kept."""

import pytest
from backend_play import CHAT, FREE, IDS, TEXT, make, read, refused, sent
from stream_play import END, chunk, head, play

from tokenswarm.records import BadInput, Outcome, TokenEvent, Usage

SSE = head(200, "text/event-stream")
LAST = {"content": "", "tokens": [], "stop": True, "tokens_predicted": 2, "tokens_evaluated": 6,
        "stop_type": "limit", "timings": {"cache_n": 4, "prompt_n": 2}}  # fmt: skip


def test_the_request_forces_the_length_and_asks_for_token_ids():
    backend = make("llamacpp", extra_body={"cache_prompt": False})
    assert sent(backend.build(TEXT)) == ("/completion", {
        "prompt": "Hello there", "stream": True, "return_tokens": True, "n_predict": 3,
        "ignore_eos": True, "cache_prompt": False,
    })  # fmt: skip
    assert sent(backend.probe(TEXT))[1]["n_predict"] == 1
    assert sent(backend.build(IDS))[1]["prompt"] == [7, 8]
    assert "n_predict" not in sent(backend.build(FREE))[1]
    assert sent(make("llamacpp", exact=False).build(TEXT))[1]["ignore_eos"] is False


def test_messages_and_options_are_refused():
    with pytest.raises(BadInput, match="makes messages"):
        make("llamacpp").build(CHAT)
    assert "has no options" in refused("llamacpp", options={"n": 1})[0]


def test_events():
    events = read(make("llamacpp"), {"content": "He", "tokens": [1, 2], "stop": False}, LAST)
    assert events == [
        TokenEvent(text="He", tokens=2),
        TokenEvent(usage=Usage(6, 2, 4), finish_reason="limit", end=True),
    ]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"stopped_limit": True, "stopped_eos": False}, "limit"),
        ({"stopped_eos": True}, "eos"),
        ({"stopped_word": True}, "word"),
        ({}, None),
    ],
)
def test_powerinfer_says_the_reason_with_flags(flags, reason):
    last = {"content": "", "stop": True, "tokens_predicted": 2, "tokens_evaluated": 6, **flags}
    [event] = read(make("llamacpp"), last)
    assert event == TokenEvent(usage=Usage(6, 2), finish_reason=reason, end=True)


def test_an_error_object_and_the_older_error_field():
    [event] = read(make("llamacpp"), {"error": {"code": 500, "message": "no slot", "type": "x"}})
    assert event.error == "no slot"
    older = b'error: {"content":"slot unavailable","code":500}\n\n'
    played = play("llamacpp", [chunk(older) + END], before=SSE)
    assert played.outcome is Outcome.STREAM_ERROR
    assert "slot unavailable" in played.error
