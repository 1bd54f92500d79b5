"""Engines that a workload describes: a body with placeholders, paths into the events."""

from types import SimpleNamespace

import httptools
import pytest
from backend_play import CHAT, FREE, IDS, TEXT, make, read, refused, sent
from stream_play import END, Overheard, StillClock, chunk, head

from tokenswarm.backends import speaks_chat
from tokenswarm.records import BadInput, Outcome, Prompt, Record, TokenEvent, Usage
from tokenswarm.stream import Stream
from tokenswarm.stream_settle import settle

BODY = {"p": "{{prompt}}", "n": "{{max_tokens}}", "m": "{{model}}", "stream": True}
LEAST = {"path": "/gen", "text": "token.text", "body": BODY}


def made(**options):
    return make("template", options={**LEAST, **options})


def body_of(body, prompt=TEXT):
    return sent(made(body=body).build(prompt))[1]


def test_placeholders_keep_their_types_and_become_text_inside_text():
    assert sent(made().build(TEXT)) == (
        "/gen", {"p": "Hello there", "n": 3, "m": "m/1", "stream": True},
    )  # fmt: skip
    assert sent(made().probe(TEXT))[1]["n"] == 1
    nested = {"a": [{"q": "{{ prompt }}"}, 5], "b": "{{model}}: {{max_tokens}} of {{prompt}}"}
    assert body_of(nested) == {"a": [{"q": "Hello there"}, 5], "b": "m/1: 3 of Hello there"}


def test_a_length_that_is_not_asked_for_leaves_its_member_out():
    assert body_of(BODY, FREE) == {"p": "Hello there", "m": "m/1", "stream": True}


def test_json_text_with_quoted_and_bare_placeholders():
    text = '{"p": {{prompt}}, "q": "say \\"{{prompt}}\\"", "n": {{max_tokens}}}'
    assert body_of(text) == {"p": "Hello there", "q": 'say "Hello there"', "n": 3}


def test_a_prompt_that_looks_like_a_placeholder_or_has_quotes_is_sent_as_it_is():
    odd = Prompt(0, 5, 3, text='a "quoted" {{model}}\n')
    assert body_of({"p": "{{prompt}}", "q": "<{{prompt}}>"}, odd) == {
        "p": odd.text, "q": f"<{odd.text}>",
    }  # fmt: skip


def test_messages_are_made_of_a_text_or_taken_as_they_are():
    body = {"messages": "{{messages}}"}
    assert body_of(body) == {"messages": [{"role": "user", "content": "Hello there"}]}
    assert body_of(body, CHAT) == {"messages": list(CHAT.messages)}
    assert made(body=body).chat
    assert not made().chat


@pytest.mark.parametrize(
    ("kind", "body", "chat"),
    [
        ("template", {"m": ["{{ messages }}"]}, True),
        ("template", '{"m": {{messages}}}', True),
        ("template", {"p": "{{prompt}}"}, False),
        ("openai-chat", None, True),
        ("openai-completions", None, False),
    ],
)
def test_prompts_are_counted_through_the_chat_template_where_messages_are_sent(kind, body, chat):
    backend = SimpleNamespace(kind=kind, options={"body": body} if body else {})
    assert speaks_chat(SimpleNamespace(backend=backend)) is chat


def test_token_ids_go_where_the_prompt_goes():
    assert body_of({"p": "{{prompt}}"}, IDS) == {"p": [7, 8]}
    with pytest.raises(BadInput, match=r"has \{\{messages\}\}, but .* makes token ids"):
        body_of({"m": "{{messages}}"}, IDS)
    with pytest.raises(BadInput, match=r"has \{\{prompt\}\}, but .* makes messages"):
        body_of({"m": "{{prompt}}"}, CHAT)


def test_extra_body_is_laid_over():
    backend = make("template", options=LEAST, extra_body={"m": None, "t": 0.5})
    assert sent(backend.build(TEXT))[1] == {"p": "Hello there", "n": 3, "stream": True, "t": 0.5}


def test_events():
    backend = made(
        usage_prompt="u.in", usage_output="u.out", finish="choices.0.why", reasoning="think",
        error="oops.message", end="[END]",
    )  # fmt: skip
    events = read(
        backend,
        {"token": {"text": "He"}, "think": "hm", "choices": [{"why": None}]},
        {"token": None, "choices": []},
        {"u": {"in": 5, "out": 2}, "choices": [{"why": "length"}]},
        {"oops": {"message": "no room"}},
        b" [END]\n",
    )
    assert events == [
        TokenEvent(text="He", reasoning="hm"),
        TokenEvent(),
        TokenEvent(usage=Usage(5, 2), finish_reason="length"),
        TokenEvent(error="no room"),
        TokenEvent(end=True),
    ]
    assert not backend.closes


def test_without_end_and_finish_the_end_of_the_body_is_the_end():
    assert made().closes
    assert not made(finish="why").closes


def test_cumulative_text():
    events = read(made(cumulative=True), {"token": {"text": "a"}}, {"token": {"text": "ab"}})
    assert [e.text for e in events] == ["a", "b"]
    assert not made(cumulative=True).stateless


def test_a_path_to_something_that_is_no_text_is_malformed():
    with pytest.raises(ValueError, match=r'token.text is no text but \{"a":1\}'):
        read(made(), {"token": {"text": {"a": 1}}})


def test_a_named_error_event_is_an_error():
    assert read(made(), {"detail": "broke"}, name="error")[0].error == "broke"


def test_lines_of_json_are_read_as_they_come():
    backend = Overheard(
        made(lines=True, text="response", finish="done_reason", usage_output="eval_count")
    )
    stream = Stream(backend, StillClock())
    parser = httptools.HttpResponseParser(stream)
    stream.attach(parser)
    wire = head(200, "application/x-ndjson") + chunk(b'{"response":"He"}\n{"resp')
    stream.read_ns = 1
    parser.feed_data(wire)
    stream.after_read(True)
    stream.read_ns = 2
    rest = b'onse":"y"}\n\n{"response":"","done_reason":"length","eval_count":2}'
    parser.feed_data(chunk(rest) + END)
    stream.after_read(True)
    stream.end_of_body()
    record = Record(0, 0, 0, 0, Outcome.INTERNAL_ERROR)
    settle(record, stream, None, False, None, str)
    assert (record.outcome, record.event_ns, record.output_tokens, backend.text) == (
        Outcome.OK, [1, 2], 2, "Hey",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"text": "x", "body": BODY}, "backend.options.path: is required"),
        ({"path": "/g", "body": BODY}, "backend.options.text: is required"),
        ({"path": "/g", "text": "x"}, "backend.options.body: is required"),
        ({**LEAST, "body": "{"}, "backend.options.body: is no JSON"),
        ({**LEAST, "body": "[1]"}, "backend.options.body: must be a mapping (a JSON object)"),
        ({**LEAST, "body": {"p": "{{promt}}"}}, "unknown placeholder {{promt}}"),
        ({**LEAST, "body": {"p": "fixed"}}, "has neither {{prompt}} nor {{messages}}"),
        ({**LEAST, "body": {"p": "{{prompt}} {{messages}}"}}, "leave one out"),
        ({**LEAST, "streams": "no way"}, "backend.options.streams: must be true or false"),
        ({**LEAST, "body": 5}, "backend.options.body: must be a mapping or JSON text"),
        ({**LEAST, "txt": "x"}, "Did you mean 'text'?"),
    ],
)  # fmt: skip
def test_wrong_options(options, problem):
    assert any(problem in found for found in refused("template", options=options))


def test_all_mistakes_are_named_at_once():
    assert len(refused("template", options={"end": "x"})) == 3
