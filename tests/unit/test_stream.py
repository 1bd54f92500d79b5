"""What an answer is worth: events, stamps, counts and the outcome."""

import json

import pytest
import stream_play
from stream_play import END, backend, chunk, head, play

from tokenswarm.records import Outcome, Record, TokenEvent
from tokenswarm.stream import Stream
from tokenswarm.stream_settle import settle
from tokenswarm.transport_errors import TransportError

SSE = head(200, "text/event-stream")
COMPLETIONS = "openai-completions"


def event(text="", finish=None, **more):
    choices = [{"index": 0, "text": text, "finish_reason": finish, **more.pop("choice", {})}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def usage(prompt=8, output=4):
    counts = {"prompt_tokens": prompt, "completion_tokens": output}
    return b'data: {"choices":[],"usage":' + str(counts).replace("'", '"').encode() + b"}\n\n"


DONE = b"data: [DONE]\n\n"


def streamed(*reads, **options):
    """The reads as chunks of a stream that ends well."""
    wires = [chunk(read) for read in reads]
    return play(COMPLETIONS, [*wires[:-1], wires[-1] + END], before=SSE, **options)


# -- stamps and reads --------------------------------------------------------------------------


def test_each_token_event_has_the_stamp_of_its_read():
    played = streamed(event("a"), b": ping\n\n", event("b"), event(), event("c", "length") + DONE)
    assert list(played.stream.event_ns) == [1, 3, 5]
    assert (played.stream.reads, played.stream.longest_gap_ns) == (3, 2)
    assert (played.stream.batched_reads, played.stream.coalesced_reads) == (0, 0)


def test_events_that_came_together_on_time_share_a_stamp():
    played = streamed(event("a"), b": ping\n\n", event("b") + event("c"), DONE)
    assert list(played.stream.event_ns) == [1, 3, 3]
    assert (played.stream.batched_reads, played.stream.coalesced_reads) == (1, 0)


def test_events_that_waited_for_a_lagging_loop_are_spread_and_counted():
    pings = [b": ping\n\n"] * 9
    played = streamed(event("a"), *pings, event("b") + event("c") + event("d"), DONE,
                      lag_ns=2_000_000)  # fmt: skip
    assert list(played.stream.event_ns) == [1, 4, 7, 11]
    assert (played.stream.batched_reads, played.stream.coalesced_reads) == (0, 1)
    assert played.stream.longest_gap_ns == 10


def test_a_first_token_read_with_the_second_keeps_the_reads_stamp():
    played = streamed(event("a") + event("b"), DONE, lag_ns=2_000_000)
    assert list(played.stream.event_ns) == [1, 1]
    assert played.stream.coalesced_reads == 1


def test_reads_without_a_kernel_stamp_are_counted():
    played = streamed(event("a"), event("b"), DONE, stamped=False)
    assert (played.stream.reads, played.stream.unstamped_reads) == (2, 2)


def test_the_answers_first_token_comes_after_reasoning():
    think = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    say = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
    wires = [chunk(think), chunk(say), chunk(DONE) + END]
    played = play("openai-chat", wires, before=SSE)
    assert (played.record.first_ns, played.record.first_answer_ns) == (1, 2)
    assert (played.stream.text, played.record.output_chars) == ("hmHi", 4)
    assert played.stream.answer == "Hi"


def test_tool_calls_are_tokens():
    call = {"tool_calls": [{"index": 0, "function": {"name": "get", "arguments": '{"a":'}}]}
    more = {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}
    wires = [
        chunk(b"data: " + str({"choices": [{"delta": d}]}).replace('"', '\\"')
              .replace("'", '"').encode() + b"\n\n")
        for d in (call, more)
    ]  # fmt: skip
    played = play("openai-chat", [*wires, chunk(DONE) + END], before=SSE)
    assert (played.outcome, played.stream.text) == (Outcome.OK, 'get{"a":1}')
    assert played.record.event_ns == [1, 2]


def test_the_end_is_the_end_marks_stamp():
    played = streamed(event("a"), event("b", "stop"), usage(), DONE)
    assert (played.record.last_ns, played.record.end_ns) == (2, 4)


def test_nothing_after_the_end_mark_counts():
    played = streamed(event("a", "stop") + DONE + event("b") + usage(99, 99))
    assert (played.text, played.stream.usage) == ("a", None)


# -- token counts ------------------------------------------------------------------------------


def test_output_tokens_are_the_servers_usage_where_given():
    record = streamed(event("a"), event("b"), usage(8, 5), DONE, count=len).record
    assert (record.output_tokens, record.output_tokens_source) == (5, "usage")
    assert (record.prompt_tokens, record.prompt_tokens_source) == (8, "usage")


def test_output_tokens_are_the_tokenizers_count_else():
    record = streamed(event("one"), event(" two"), DONE, count=lambda text: len(text)).record
    assert (record.output_tokens, record.output_tokens_source) == (7, "tokenizer")
    assert record.prompt_tokens_source == "tokenizer"


def test_output_tokens_are_events_without_a_tokenizer():
    record = streamed(event("one"), event(" two"), DONE).record
    assert (record.output_tokens, record.output_tokens_source) == (2, "events")


def test_token_ids_in_every_event_are_the_servers_count():
    record = streamed(
        event("one two", choice={"token_ids": [1, 2]}),
        event(" three", choice={"token_ids": [3]}), DONE, count=len,
    ).record  # fmt: skip
    assert (record.output_tokens, record.output_tokens_source) == (3, "usage")
    assert record.first_event_tokens == 2


def test_an_answer_without_a_token_has_no_count():
    record = streamed(event("", "stop"), DONE, count=len).record
    assert (record.outcome, record.output_tokens) == (Outcome.EMPTY, None)


def test_usage_in_every_chunk_is_the_last_one():
    def chunked(n):
        return event("a", usage={"prompt_tokens": 8, "completion_tokens": n})

    record = streamed(chunked(1), chunked(2), chunked(3), DONE).record
    assert record.output_tokens == 3


@pytest.mark.parametrize("count", ["3", None, -1, True, 2.5])
def test_a_count_that_is_no_count_is_none(count):
    record = streamed(
        event("a"), event("b", "stop", usage={"completion_tokens": count}), DONE
    ).record
    assert (record.output_tokens, record.output_tokens_source) == (2, "events")


# -- exact output ------------------------------------------------------------------------------


def test_fewer_tokens_than_exactly_asked_for_is_short():
    played = streamed(event("a"), event("b", "stop"), usage(8, 3), DONE, exact=True, wanted=4)
    assert played.outcome is Outcome.SHORT_OUTPUT
    assert played.error == "3 of 4 output tokens (finish reason stop)"


@pytest.mark.parametrize("output", [4, 5])
def test_as_many_or_more_are_not_short(output):
    played = streamed(event("a", "length"), usage(8, output), DONE, exact=True, wanted=4)
    assert played.outcome is Outcome.OK


def test_short_output_is_fine_where_exact_output_was_not_asked_for():
    assert streamed(event("a"), usage(8, 3), DONE, wanted=4).outcome is Outcome.OK


def test_a_count_of_our_own_is_no_proof_against_the_finish_reason():
    played = streamed(event("a"), event("b", "length"), DONE, exact=True, wanted=4,
                      count=lambda text: 3)  # fmt: skip
    assert (played.outcome, played.record.output_tokens) == (Outcome.OK, 3)
    played = streamed(event("a"), event("b", "stop"), DONE, exact=True, wanted=4,
                      count=lambda text: 3)  # fmt: skip
    assert played.outcome is Outcome.SHORT_OUTPUT


# -- outcomes ----------------------------------------------------------------------------------


def refused(status, body=b"", *headers, media="application/json"):
    return play(COMPLETIONS, [head(status, media, *headers) + (chunk(body) if body else b"") + END])


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (429, (), Outcome.THROTTLED),
        (429, ("Retry-After: 3",), Outcome.THROTTLED),
        (503, ("Retry-After: 3",), Outcome.THROTTLED),
        (503, (), Outcome.HTTP_ERROR),
        (500, ("Retry-After: 3",), Outcome.HTTP_ERROR),
        (401, (), Outcome.HTTP_ERROR),
        (204, (), Outcome.HTTP_ERROR),
        (201, (), Outcome.HTTP_ERROR),
    ],
)
def test_a_status_that_is_not_200(status, headers, outcome):
    played = refused(status, b"" if status == 204 else b"no", *headers)
    assert (played.outcome, played.record.http_status) == (outcome, status)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "no\\n such model"}}', "HTTP 404: no such model"),
        (b'{"error": "no such model"}', "HTTP 404: no such model"),
        (b'{"detail": "Not Found"}', "HTTP 404: Not Found"),
        (b'{"message": "no"}', "HTTP 404: no"),
        (b'{"error": {"code": 7}}', 'HTTP 404: {"code":7}'),
        (b"<html>\n  <b>no</b>\n</html>", "HTTP 404: <html> <b>no</b> </html>"),
        (b"[1]", "HTTP 404: [1]"),
        (b"", "HTTP 404"),
        (b"\xff", "HTTP 404: \ufffd"),
    ],
)
def test_what_an_error_body_says(body, text):
    assert refused(404, body).error == text


def test_an_endless_error_body_is_cut():
    piece = chunk(b"x" * 65536)
    played = play(COMPLETIONS, [head(500, "text/plain"), *[piece] * 40, END])
    assert (played.outcome, len(played.error)) == (Outcome.HTTP_ERROR, 300)
    assert len(played.stream._body) == 65536


def test_a_redirect_is_not_followed_and_said():
    played = refused(307, b"", "Location: https://other/v1")
    assert played.outcome is Outcome.HTTP_ERROR
    assert played.error == (
        "HTTP 307: redirect to https://other/v1, not followed: give that as --host"
    )


def test_a_document_instead_of_a_stream():
    played = refused(200, b'{"choices": [{"text": "Hi"}]}')
    assert played.outcome is Outcome.NOT_STREAM
    assert played.error == (
        "expected Content-Type 'text/event-stream', got 'application/json'. "
        "Is streaming off on this server?"
    )
    assert played.record.event_ns == []


def test_a_lost_connection_after_the_end_mark_costs_nothing():
    played = play(COMPLETIONS, [SSE + chunk(event("a", "stop")), chunk(DONE)])
    assert (played.outcome, played.error) == (Outcome.OK, None)


def test_a_lost_connection_before_the_end_mark_is_lost_whatever_came():
    played = play(COMPLETIONS, [SSE + chunk(event("a", "stop"))])
    assert played.outcome is Outcome.CONNECTION_LOST


def test_an_error_in_the_stream_keeps_what_came_before_it():
    played = streamed(event("a"), b'data: {"error": {"message": "out of memory"}}\n\n', DONE)
    assert (played.outcome, played.error) == (Outcome.STREAM_ERROR, "out of memory")
    assert (played.text, played.record.output_tokens) == ("a", 1)


@pytest.mark.parametrize("data", [b"[]", b"1", b'"x"', b"null", b"not json", b"{", b"\xff"])
def test_an_event_that_is_no_object_is_malformed(data):
    played = streamed(event("a"), b"data: " + data + b"\n\n", event("b", "stop"), DONE)
    assert played.outcome is Outcome.MALFORMED
    assert played.error.startswith("event ")


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices": null}', b'{"choices": {}}', b'{"choices": [null]}', b'{"choices": [1]}',
        b'{"choices": [{"delta": []}]}', b'{"choices": [{"text": 7}]}', b'{"usage": []}', b"{}",
        b'{"choices": [{"text": null, "logprobs": [], "token_ids": 3}]}',
        b'{"choices": [{"delta": {"tool_calls": [null, {"function": 3}]}}]}',
        b'{"usage": {"prompt_tokens_details": 3}}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [COMPLETIONS, "openai-chat"])
def test_an_object_of_another_shape_means_nothing(kind, payload):
    played = play(kind, [SSE + chunk(b"data: " + payload + b"\n\n" + DONE) + END])
    assert played.outcome is Outcome.EMPTY


def test_secrets_in_the_servers_words_are_taken_out_before_they_are_cut():
    played = refused(401, b"x" * 290 + b" bad key SECRETSECRETSECRET")
    record = Record(0, 0, 0, 0, Outcome.INTERNAL_ERROR)
    settle(record, played.stream, None, False, None, lambda t: t.replace("SECRET" * 3, "***"))
    assert "SECRET" not in record.error
    assert len(record.error) <= 300


@pytest.mark.parametrize(
    "outcome", [Outcome.TIMEOUT_STALLED, Outcome.CANCELLED, Outcome.CONNECT_ERROR]
)
def test_why_an_exchange_ended_early_is_its_outcome(outcome):
    stream = Stream(backend(COMPLETIONS), None)
    assert stream.verdict(TransportError(outcome, "why")) == (outcome, "why")


# -- a protocol whose answer is one document ---------------------------------------------------


class Document:
    """A protocol without streams: {"said": TEXT}."""

    streams = False
    closes = True
    lines = False
    stateless = True

    def reader(self):
        return lambda data, name: TokenEvent(text=json.loads(data)["said"], end=True)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [(b'{"said": "hi"}', Outcome.OK), (b'{"said": ""}', Outcome.EMPTY),
     (b"<html>", Outcome.MALFORMED)],
)  # fmt: skip
def test_a_document_is_one_event(monkeypatch, body, outcome):
    monkeypatch.setattr(stream_play, "backend", lambda kind: Document())
    wire = head(200, "application/json") + chunk(body) + END
    played = play("document", [wire[:60], wire[60:]])
    assert played.outcome is outcome
    assert len(played.record.event_ns) == (1 if outcome is Outcome.OK else 0)
    assert played.stream.reads == (1 if outcome is Outcome.OK else 0)


# -- events that are recognised by their likeness ------------------------------------------------


def likened(stream):
    """Whether the next event of the kind learned would not be parsed."""
    return stream._head is not None


def test_framing_between_events_that_are_recognised_does_not_add_up():
    """A read of framing, a read with an event, and so on: the limit is for framing in a row."""
    wires = []
    for read in [event("a")] * 4:
        frame = chunk(read)
        at = frame.index(b"\r\n") + 2
        wires += [frame[:at], frame[at:-2], frame[-2:]]
    played = play(COMPLETIONS, wires, before=SSE)
    assert likened(played.stream)
    assert played.stream.framing_bytes == 2  # of the last chunk's end


def test_a_change_around_the_text_is_learned_anew():
    """Some servers write the time into every event: it changes once a second."""
    reads = [event(f" {k}", created=second) for second in range(5) for k in range(20)]
    played = streamed(*reads, DONE)
    assert played.stream.text == "".join(f" {k}" for _ in range(5) for k in range(20))
    assert played.stream.answer == played.stream.text
    assert len(played.stream.event_ns) == 100


def test_the_answer_after_reasoning_is_learned_too():
    def delta(**channels):
        choices = [{"index": 0, "delta": channels}]
        return b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n"

    reads = [delta(reasoning_content=" so")] * 5 + [delta(content=" yes")] * 5
    wires = [chunk(read) for read in [*reads, DONE]]
    played = play("openai-chat", [*wires[:-1], wires[-1] + END], before=SSE)
    assert (played.text, played.reasoning) == (" yes" * 5, " so" * 5)
    assert played.stream.text == " so" * 5 + " yes" * 5
    assert played.stream.answer == " yes" * 5  # a history holds no reasoning
    assert played.stream.first_answer_ns == 6


@pytest.mark.parametrize("inside", [b"a\x01b", b"\xff", b"\xc3", b"a\nb"])
def test_what_json_does_not_allow_is_malformed_though_it_looks_like_the_others(inside):
    good = event("good")
    bad = good.replace(b"good", inside)
    played = streamed(good, good, bad, good, DONE)
    assert played.outcome is Outcome.MALFORMED
    assert "not valid JSON" in played.error or "event" in played.error


def test_a_character_cut_in_two_is_malformed_in_either_half():
    good = event("good")
    halves = [good.replace(b"good", half) for half in (b"\xc3", b"\xa9")]
    assert streamed(good, good, *halves, DONE).outcome is Outcome.MALFORMED


def test_escapes_and_other_scripts_come_out_as_they_were_meant():
    texts = ["a", 'b"c', "d\\e", "f\ng", "é", "中文", "🙂", " end"]
    plain = (json.dumps({"choices": [{"text": t}]}, ensure_ascii=False) for t in texts * 3)
    raw = [f"data: {data}\n\n".encode() for data in plain]
    played = streamed(*raw, DONE)
    assert played.stream.text == "".join(texts * 3)
    assert len(played.stream.event_ns) == 24


def test_what_was_malformed_stays_so_when_the_end_is_cut_off_too():
    good = event("good")
    bad = good.replace(b"good", b"a\x01b")
    unterminated = event(" more", created=1).rstrip(b"\n")
    assert streamed(good, good, bad, unterminated).outcome is Outcome.MALFORMED
