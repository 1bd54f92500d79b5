"""SGLang's /generate: text and counts that repeat what came before."""

import pytest
from backend_play import CHAT, FREE, IDS, TEXT, make, read, sent

from tokenswarm.backends.cumulative import Growth
from tokenswarm.records import BadInput, TokenEvent, Usage


def state(text, done, reason=None):
    return {"text": text, "meta_info": {"id": "r", "prompt_tokens": 5, "completion_tokens": done,
            "cached_tokens": 2, "finish_reason": reason}}  # fmt: skip


def test_the_request_forces_the_length():
    backend = make("sglang", extra_body={"temperature": 0.8})
    assert sent(backend.build(TEXT)) == ("/generate", {
        "text": "Hello there", "stream": True,
        "sampling_params": {"max_new_tokens": 3, "min_new_tokens": 3, "ignore_eos": True,
                            "temperature": 0.8},
    })  # fmt: skip
    assert sent(backend.probe(TEXT))[1]["sampling_params"]["min_new_tokens"] == 1
    assert sent(backend.build(IDS))[1]["input_ids"] == [7, 8]
    assert sent(make("sglang", exact=False).build(TEXT))[1]["sampling_params"] == {
        "max_new_tokens": 3
    }
    assert sent(make("sglang").build(FREE))[1]["sampling_params"] == {}


def test_messages_are_refused():
    with pytest.raises(BadInput, match="makes messages"):
        make("sglang").build(CHAT)


def test_events():
    events = read(
        make("sglang"), state("He", 1), state("Hello", 4), state("Hello", 5, {"type": "length"}),
        b"[DONE]",
    )  # fmt: skip
    assert events == [
        TokenEvent(text="He", tokens=1, usage=Usage(5, 1, 2)),
        TokenEvent(text="llo", tokens=3, usage=Usage(5, 4, 2)),
        TokenEvent(tokens=1, usage=Usage(5, 5, 2), finish_reason="length"),
        TokenEvent(end=True),
    ]


def test_answers_do_not_share_their_texts():
    backend = make("sglang")
    assert [read(backend, state("He", 1))[0].text for _ in range(2)] == ["He", "He"]


def test_an_abort_is_an_error_and_older_servers_say_the_reason_as_a_word():
    events = read(make("sglang"), state("A", 1, {"type": "abort", "message": "no room"}))
    assert (events[0].error, events[0].finish_reason) == ("no room", "abort")
    assert read(make("sglang"), state("A", 1, "stop"))[0].finish_reason == "stop"


def test_only_new_text_when_the_server_streams_so():
    backend = make("sglang", options={"cumulative": False})
    assert [e.text for e in read(backend, state("a", 1), state("ab", 2))] == ["a", "ab"]


def test_text_that_does_not_go_on_is_malformed_and_says_what_to_set():
    with pytest.raises(ValueError, match=r"backend\.options\.cumulative: false"):
        read(make("sglang"), state("He", 1), state("llo", 2))


@pytest.mark.parametrize(
    ("texts", "new"),
    [
        (["a", "ab", "abc"], ["a", "b", "c"]),
        (["x\ufffd", "xé", "xé!"], ["x\ufffd", "", "!"]),  # the character was completed
        (["x\ufffd\ufffd", "x€"], ["x\ufffd\ufffd", ""]),
        (["stop me", "stop "], ["stop me", ""]),  # a stop word was taken back
        (["", "a"], ["", "a"]),
    ],
)
def test_growth(texts, new):
    growth = Growth("x")
    assert [growth.new(text) for text in texts] == new
