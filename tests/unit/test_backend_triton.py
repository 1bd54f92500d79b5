"""Triton's generate extension: tensors by the names that the model has."""

import pytest
from backend_play import CHAT, IDS, TEXT, make, read, refused, sent

from tokenswarm.records import BadInput, TokenEvent, Usage

FASTER = {"prompt_field": "INPUT_0", "max_tokens_field": "INPUT_1", "text_field": "OUTPUT_0"}


def test_the_request_for_tensorrt_llm():
    backend = make("triton", options={"end_id": -1}, extra_body={"temperature": 0.5})
    assert sent(backend.build(TEXT)) == (
        "/v2/models/m%2F1/generate_stream",
        {"text_input": "Hello there", "stream": True, "max_tokens": 3, "end_id": -1,
         "temperature": 0.5},
    )  # fmt: skip
    assert sent(backend.probe(TEXT))[1]["max_tokens"] == 1
    assert sent(backend.build(IDS))[1]["text_input"] == [7, 8]


def test_the_least_length_goes_along_when_the_model_has_a_tensor_for_it():
    backend = make("triton", options={"min_tokens_field": "min_length"})
    assert sent(backend.build(TEXT))[1]["min_length"] == 3
    assert sent(backend.probe(TEXT))[1]["min_length"] == 1
    assert backend.notes == ()


def test_faster_transformer_names_its_tensors_otherwise():
    backend = make("triton", options=FASTER)
    assert sent(backend.build(TEXT))[1] == {"INPUT_0": "Hello there", "stream": True, "INPUT_1": 3}
    assert [e.text for e in read(backend, {"OUTPUT_0": ["Hey"]}, {"OUTPUT_0": [["you"]]})] == [
        "Hey", "you",
    ]  # fmt: skip


def test_that_a_length_may_not_be_kept_is_said():
    assert "end_id: -1" in make("triton").notes[0]
    assert make("triton", exact=False).notes == ()


def test_messages_are_refused():
    with pytest.raises(BadInput, match="makes messages"):
        make("triton").build(CHAT)


def test_events_without_end_usage_or_reason():
    events = read(make("triton"), {"text_output": "He"}, {"text_output": ""}, {"other": 1})
    assert events == [TokenEvent(text="He"), TokenEvent(), TokenEvent()]
    assert make("triton").closes


def test_text_that_is_repeated_is_counted_once():
    backend = make("triton", options={"cumulative": True})
    events = read(backend, {"text_output": "He"}, {"text_output": "Hey"}, {"text_output": "Hey"})
    assert [e.text for e in events] == ["He", "y", ""]
    assert not backend.stateless


def test_counts_and_reason_from_tensors_that_are_named():
    backend = make("triton", options={"prompt_tokens_field": "num_input_tokens",
                   "output_tokens_field": "num_output_tokens", "finish_field": "why"})  # fmt: skip
    [event] = read(backend, {"text_output": "He", "num_input_tokens": [5],
                             "num_output_tokens": [1], "why": ["length"]})  # fmt: skip
    assert event == TokenEvent(text="He", usage=Usage(5, 1), finish_reason="length")


def test_an_error_event():
    [event] = read(make("triton"), {"error": "in ensemble, failed to decode"})
    assert event.error == "in ensemble, failed to decode"


def test_text_that_is_none_is_malformed():
    with pytest.raises(ValueError, match="text_output is no text"):
        read(make("triton"), {"text_output": 5})


def test_wrong_options_are_named_all_at_once():
    assert sorted(refused("triton", options={"text_feld": "x", "end_id": "two"})) == [
        "backend.options.end_id: must be a whole number (token that ends an answer; -1 lets it go "
        "on to its full length), got 'two'",
        "backend.options.text_feld: no option of backend.kind 'triton'. Expected one of: "
        "cumulative, end_id, finish_field, max_tokens_field, min_tokens_field, "
        "output_tokens_field, prompt_field, prompt_tokens_field, text_field. "
        "Did you mean 'text_field'?",
    ]
