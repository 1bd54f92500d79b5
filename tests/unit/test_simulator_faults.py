"""Every fault, seen by a slow and obvious client that reads raw bytes and judges for itself."""

import gzip
import http.client
import json
import random
import socket
from collections import Counter

import pytest
from simulator_harness import call, engine, log, post, raw_exchange

from tokenswarm.simulator.answer import Answer, Ask, Vocabulary
from tokenswarm.simulator.fault_scripts import Delivery
from tokenswarm.simulator.faults import FAULTS, choose, scripted
from tokenswarm.simulator.native_apis import LLAMACPP, SGLANG, TGI, TRITON
from tokenswarm.simulator.openai_api import CHAT, COMPLETIONS

TOKENS = 12
BODIES = {
    "/v1/completions": {"prompt": "abcd", "max_tokens": TOKENS, "ignore_eos": True},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
    },
}
HANGS = ("stall_first_token", "stall_mid_stream")


def judge(port, path, body, timeout=5):
    """(outcome, words) of one request, by rules written out one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    raw = b""
    try:
        connection.request("POST", path, json.dumps(body | {"stream": True}))
        answer = connection.getresponse()
        headers = dict(answer.getheaders())
        try:
            while piece := answer.read1(65536):
                raw += piece
        except TimeoutError:
            return ("timeout_stalled" if b'"text":"' in raw or b'content":" ' in raw
                    else "timeout_first_token"), 0  # fmt: skip
    except (ConnectionResetError, http.client.RemoteDisconnected, http.client.IncompleteRead):
        return "connection_lost", 0
    finally:
        connection.close()
    if answer.status == 429 or (answer.status == 503 and "Retry-After" in headers):
        return "throttled", 0
    if answer.status != 200:
        return "http_error", 0
    if headers.get("content-encoding") == "gzip":
        raw = gzip.decompress(raw)
    if "event-stream" not in headers["content-type"]:
        return ("stream_error" if raw.startswith(b'{"error"') else "not_stream"), 0
    return judge_events(raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


def judge_events(raw):
    words = ended = 0
    for block in raw.decode().split("\n\n")[:-1]:
        fields, data = {}, []
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            if name == "data":
                data.append(fields[name])
        data = "\n".join(data)
        if fields.get("event") == "error" or "error" in fields:
            return "stream_error", words
        if data == "[DONE]":
            ended = True
        if data in ("", "[DONE]"):
            continue
        try:
            event = json.loads(data)
        except ValueError:
            return "malformed", words
        if "error" in event:
            return "stream_error", words
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            text = delta.get("text") or delta.get("content") or delta.get("reasoning_content")
            for called in delta.get("tool_calls", ()):
                text = called["function"]["arguments"]
            words += len((text or "").split())
            ended = ended or choice["finish_reason"] is not None
    if not ended:
        return "truncated", words
    if not words:
        return "empty", words
    return ("ok" if words == TOKENS else "short_output"), words


@pytest.fixture(scope="module")
def server():
    with engine("itl_ms=0.1", "fault_slow_ms=30") as running:
        yield running


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in HANGS])
def test_a_client_sees_the_outcome_that_the_log_says(server, path, fault):
    outcome, words = judge(server.port, path, BODIES[path] | {"tokenswarm_fault": fault})
    line = log(server)[-1]
    assert outcome == line["outcome"]
    if line["fault"] is None:
        row = FAULTS[fault]
        assert row.only is not None
        assert row.only.isdisjoint({line["protocol"]})
        return
    assert line["fault"] == fault
    assert line["outcome"] == FAULTS[fault].outcome
    if outcome == "ok":
        assert (words, line["tokens_sent"]) == (TOKENS, TOKENS)
    elif outcome == "short_output":
        assert words == line["tokens_sent"] == 9


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fault", HANGS)
def test_stalls_last_until_the_client_gives_up(server, path, fault):
    body = BODIES[path] | {"tokenswarm_fault": fault}
    outcome, _ = judge(server.port, path, body, timeout=0.5)
    assert outcome == FAULTS[fault].outcome
    call(server, "GET", "/health")
    line = log(server)[-1]
    assert (line["fault"], line["outcome"], line["client_closed"]) == (fault, outcome, True)


@pytest.mark.parametrize("fault", HANGS)
def test_finite_stalls_end_well_for_a_patient_client(fault):
    with engine("itl_ms=0.1", "fault_stall_s=0.1") as server:
        body = BODIES["/v1/completions"] | {"tokenswarm_fault": fault}
        assert judge(server.port, "/v1/completions", body) == ("ok", TOKENS)
        (line,) = log(server)
    assert line["tokens_sent"] == TOKENS
    assert line["last_sent"] - line["received"] >= 0.1
    assert (line["longest_gap_s"] >= 0.05) == (fault == "stall_mid_stream")


def test_one_token_answers_are_cut_before_their_finish_reason(server):
    for fault in ("reset_mid_stream", "cut_mid_stream", "error_object", "error_event"):
        body = BODIES["/v1/completions"] | {"tokenswarm_fault": fault, "max_tokens": 1}
        outcome, _ = judge(server.port, "/v1/completions", body)
        assert outcome == log(server)[-1]["outcome"] == FAULTS[fault].outcome


def test_a_fault_can_be_asked_for_in_four_ways(server):
    body = BODIES["/v1/completions"]
    path = "/v1/completions"
    assert call(server, "POST", path, body, {"X-Tokenswarm-Fault": "http_500"})[0] == 500
    assert call(server, "POST", path + "?fault=http_429", body)[0] == 429
    assert call(server, "POST", path, body | {"model": "demo#http_400"})[0] == 400
    assert call(server, "POST", path, body | {"tokenswarm_fault": "http_503"})[0] == 503
    assert [line["fault"] for line in log(server)[-4:]] == [
        "http_500", "http_429", "http_400", "http_503",
    ]  # fmt: skip
    model = json.loads(call(server, "POST", path, body | {"model": "m#slow_start"})[2])["model"]
    assert model == "m"


def test_stream_faults_leave_whole_answers_alone(server):
    body = BODIES["/v1/completions"] | {"tokenswarm_fault": "truncated"}
    assert call(server, "POST", "/v1/completions", body)[0] == 200
    assert (log(server)[-1]["fault"], log(server)[-1]["outcome"]) == (None, "ok")


def test_short_output_is_fine_when_nobody_asked_for_an_exact_length(server):
    body = {"prompt": "a", "max_tokens": TOKENS, "tokenswarm_fault": "short_output"}
    assert judge(server.port, "/v1/completions", body) == ("short_output", 9)
    assert (log(server)[-1]["fault"], log(server)[-1]["outcome"]) == ("short_output", "ok")


def test_retry_after_is_sent(server):
    body = BODIES["/v1/completions"] | {"tokenswarm_fault": "http_429_retry_after"}
    assert call(server, "POST", "/v1/completions", body)[1]["Retry-After"] == "1"


def test_the_mix_of_faults_follows_the_seed():
    seen = []
    for _ in range(2):
        sets = ("faults.http_500=0.3", "faults.truncated=0.2", "faults.comments=0.2", "seed=5")
        with engine("itl_ms=0.1", *sets) as server:
            for _ in range(40):
                judge(server.port, "/v1/completions", BODIES["/v1/completions"])
            seen.append([line["fault"] for line in log(server)])
    assert seen[0] == seen[1]
    assert set(seen[0]) == {None, "http_500", "truncated", "comments"}


def test_probabilities_are_what_they_say():
    rng = random.Random(1)
    counts = Counter(choose({"a": 0.5, "b": 0.2}, rng) for _ in range(10_000))
    # Six standard deviations of a binomial: 300, 240 and 275.
    assert abs(counts["a"] - 5000) < 300
    assert abs(counts["b"] - 2000) < 240
    assert abs(counts[None] - 3000) < 275


def test_split_writes_really_cut_events(server):
    body = BODIES["/v1/completions"] | {"tokenswarm_fault": "split_writes", "stream": True}
    raw = raw_exchange(server, post("/v1/completions", body, "Connection: close"))
    chunks = [line for line in raw.split(b"\r\n") if line and b"HTTP" not in line]
    assert len(chunks) > 2 * (TOKENS + 1)


def test_coalesced_events_share_a_write(server):
    body = BODIES["/v1/completions"] | {"tokenswarm_fault": "coalesced", "stream": True}
    with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
        sock.sendall(post("/v1/completions", body))
        received = b""
        while b"[DONE]" not in received:
            received += sock.recv(65536)
    assert received.count(b"\n\n\r\n") == 2  # eight tokens; four tokens with the end mark
    assert log(server)[-1]["events_sent"] == TOKENS


@pytest.mark.parametrize("api", [COMPLETIONS, CHAT, TGI, TRITON, SGLANG, LLAMACPP])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_no_script_has_more_tokens_than_asked_or_a_broken_pace(api, size, tokens):
    for name, fault in FAULTS.items():
        options = {"token_ids": size == 3, "logprobs": False}
        ask = Ask(api.name, "m", "p", stream=True, include_usage=True, options=options)
        vocabulary = Vocabulary((" one", " two"), (1, 2))
        answer = Answer(1, 0, ask, vocabulary, 5, tokens)
        answer.shape.tokens_per_event = size
        if fault.canned or not fault.fits(answer) or name == "not_stream":
            continue
        delivery = Delivery(answer, api, random.Random(3), 1000, 1000)
        if fault.alter is not None:
            fault.alter(delivery)
        pieces = [item for item in scripted(delivery, fault) if isinstance(item, tuple)]
        assert sum(piece[1] for piece in pieces) <= tokens, name
        assert sum(piece[2] for piece in pieces) <= max(1, tokens), name
        if fault.outcome == "ok":
            assert sum(piece[1] for piece in pieces) == tokens, name
            assert sum(piece[2] for piece in pieces) == tokens, name
