"""Before the load: what an answer to one request tells, and what is to be done about it."""

import contextlib
import json
import socket

import pytest
from socket_server import DONE, END, JSON, SSE, Server, answers, chunk, token
from stream_play import backend

from tokenswarm import probe
from tokenswarm.records import BadInput, Outcome, Prompt
from tokenswarm.target import parse_url
from tokenswarm.transport import Transport
from tokenswarm.transport_answer import Timeouts

PROMPT = Prompt(-1, 8, 1, text="one two")


def said(counted=8, output=1):
    """The answer of a server that counted so many prompt tokens; None: it does not say."""
    events = token("a", "length")
    if counted is not None:
        usage = {"prompt_tokens": counted, "completion_tokens": output}
        events += b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    return SSE + chunk(events + DONE) + END


def refused(status, text="no", *headers):
    body = json.dumps({"error": {"message": text}})
    head, _, rest = JSON.format(status, len(body), body).partition("\r\n\r\n")
    return "\r\n".join([head, *headers]).encode() + b"\r\n\r\n" + rest.encode()


@contextlib.contextmanager
def asked(*wires, timeouts=None):
    """A transport to a server that gives these answers."""
    with Server(answers(*wires)) as server:
        transport = Transport(parse_url(server.url), timeouts or Timeouts())
        try:
            yield transport
        finally:
            transport.close()


def probed(wire, policy=True, prompt=PROMPT, timeouts=None):
    with asked(wire, timeouts=timeouts) as transport:
        return probe.probe(transport, backend("openai-completions"), prompt, policy)


def refusal(wire, policy=True, prompt=PROMPT):
    with pytest.raises(BadInput) as error:
        probed(wire, policy, prompt)
    return str(error.value)


def test_the_request_asks_for_exactly_one_token():
    seen = []

    def script(peer):
        seen.append(json.loads(peer.request()[1]))
        peer.send(said())

    with Server(script) as server:
        transport = Transport(parse_url(server.url), Timeouts())
        record = probe.ask(transport, backend("openai-completions"), PROMPT)
        transport.close()
    assert record.outcome is Outcome.OK
    body = seen[0]
    assert (body["max_tokens"], body["prompt"], body["stream"]) == (1, "one two", True)
    assert body.get("min_tokens", 1) == 1


def test_a_server_that_counts_as_we_do():
    finding, warnings = probed(said(8))
    assert warnings == []
    assert finding == {
        "outcome": "ok", "error": None, "http_status": 200, "expected_prompt_tokens": 8,
        "counted_prompt_tokens": 8, "output_tokens": 1, "prompt_check": "exact", "difference": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counted", "cause"),
    [(9, "adds a BOS token"), (7, "the tokenizer here adds a BOS"), (12, "another tokenizer"),
     (3, "truncates prompts")],
)  # fmt: skip
def test_a_server_that_counts_otherwise_stops_the_run_with_the_likely_cause(counted, cause):
    text = refusal(said(counted))
    assert f"the server counted {counted} prompt tokens, the workload's tokenizer 8" in text
    assert f"({counted - 8:+d})" in text
    assert cause in text
    assert "prompts.probe: warn" in text
    finding, warnings = probed(said(counted), "warn")
    assert finding["prompt_check"] == "differs"
    assert finding["difference"] == counted - 8
    assert cause in finding["likely_cause"]
    assert len(warnings) == 1


def test_a_chat_template_is_the_likely_cause_for_messages():
    prompt = Prompt(-1, 30, 1, messages=({"role": "user", "content": "hi"},))
    assert "chat template" in probe.likely_cause(12, prompt)
    assert "another tokenizer" in probe.likely_cause(500, prompt)


@pytest.mark.parametrize(
    ("wire", "prompt"), [(said(None), PROMPT), (said(8), Prompt(-1, None, 1, text="x"))]
)
def test_lengths_that_cannot_be_compared_are_a_warning(wire, prompt):
    finding, (warning,) = probed(wire, prompt=prompt)
    assert finding["prompt_check"] == "unavailable"
    assert "prompt_check: unavailable" in warning


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "backend.model"), (401, "backend.api_key_env"), (403, "not allowed"),
     (404, "no such path or model"), (405, "takes no POST"), (422, "did not understand"),
     (418, "check --host")],
)  # fmt: skip
def test_a_status_that_no_run_could_use_stops_it(status, advice):
    text = refusal(refused(status, "because"), policy="warn")
    assert f"http_error: HTTP {status}: because\n" in text
    assert text.startswith("--host http://127.0.0.1:")
    assert advice in text


def test_what_is_no_stream_stops_the_run():
    document = refused(200, "x").replace(b"error", b"other")
    assert "not_stream: expected Content-Type" in refusal(document)
    broken = SSE + chunk(b"data: {not json}\n\n" + DONE) + END
    assert "malformed" in refusal(broken)
    failed = SSE + chunk(b'data: {"error": "no such model"}\n\n' + DONE) + END
    assert "stream_error: no such model" in refusal(failed)


@pytest.mark.parametrize(
    ("wire", "outcome"),
    [(refused(429), "throttled"), (refused(503), "http_error"), (refused(500), "http_error"),
     (refused(503, "no", "Retry-After: 2"), "throttled")],
)  # fmt: skip
def test_a_server_that_is_only_busy_is_a_warning(wire, outcome):
    finding, warnings = probed(wire)
    assert finding["outcome"] == outcome
    assert warnings[0].startswith(f"probe: {outcome}: HTTP ")


def test_a_server_that_is_slow_is_a_warning():
    finding, warnings = probed(SSE, timeouts=Timeouts(first_token=0.1))
    assert finding["outcome"] == "timeout_first_token"
    assert warnings[0].startswith("probe: timeout_first_token")


def test_nobody_there():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        transport = Transport(parse_url(f"http://127.0.0.1:{unused.getsockname()[1]}"), Timeouts())
        try:
            for check in (
                lambda: probe.reach(transport),
                lambda: probe.probe(transport, backend("openai-completions"), PROMPT, True),
            ):
                with pytest.raises(BadInput, match=r"ECONNREFUSED\](.|\n)*--wait-ready SECONDS"):
                    check()
        finally:
            transport.close()


def test_somebody_there():
    with asked() as transport:
        probe.reach(transport)


# -- waiting for a server that starts ----------------------------------------------------------


def waited(*wires, seconds=20.0):
    told = []
    with asked(*wires) as transport:
        probe.wait_ready(transport, backend("openai-completions"), PROMPT, seconds, told.append)
    return told


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(probe, "_POLL_S", 0.01)


def test_waiting_ends_with_the_first_token():
    told = waited(refused(503, "loading"), refused(404), refused(500), said())
    assert len(told) == 1  # once in ten seconds
    assert "http_error: HTTP 503: loading" in told[0]


def test_waiting_does_not_mend_a_wrong_key():
    with pytest.raises(BadInput, match="HTTP 401"):
        waited(refused(401))


def test_waiting_has_an_end():
    with pytest.raises(BadInput, match=r"--wait-ready 0.1: no token from .* the last try: http_e"):
        waited(*[refused(503)] * 50, seconds=0.1)
