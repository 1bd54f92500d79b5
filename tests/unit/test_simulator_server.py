import json
import socket
import ssl
import subprocess
import time

import pytest
from simulator_harness import call, engine, events, log, post, raw_exchange, stream

from tokenswarm.records import BadInput
from tokenswarm.simulator.settings import capacity_per_s, load

LATE = 1.0
"""How late a send may be on a machine that is busy with other things; it is never early."""


@pytest.fixture(scope="module")
def server():
    with engine() as running:
        yield running


def test_completions_stream_has_as_many_tokens_as_asked(server):
    body = {"prompt": "x" * 400, "max_tokens": 5, "stream": True}
    body["stream_options"] = {"include_usage": True}
    *chunks, usage, done = stream(server, "/v1/completions", body)
    texts = [json.loads(chunk)["choices"][0]["text"] for chunk in chunks]
    assert len(texts) == 5
    assert all(len(text) == 4 for text in texts)
    reasons = [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, None, "length"]
    expected = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    assert json.loads(usage)["usage"] == expected
    assert json.loads(usage)["choices"] == []
    assert done == "[DONE]"


def test_chat_stream_begins_with_the_role(server):
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_completion_tokens": 2, "stream": True}
    role, first, last, done = stream(server, "/v1/chat/completions", body)
    assert json.loads(role)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert list(json.loads(first)["choices"][0]["delta"]) == ["content"]
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert done == "[DONE]"


def test_answers_without_stream_come_whole(server):
    status, headers, raw = call(
        server, "POST", "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    )  # fmt: skip
    answer = json.loads(raw)
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert len(answer["choices"][0]["message"]["content"]) == 12
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "body", "text_of", "count"),
    [
        (
            "/generate_stream",
            {"inputs": "abcd", "parameters": {"max_new_tokens": 3, "details": True}},
            lambda event: event["token"]["text"],
            3,
        ),
        (
            "/v2/models/m/generate_stream",
            {"text_input": "abcd", "max_tokens": 3, "stream": True},
            lambda event: event["text_output"],
            3,
        ),
        (
            "/completion",
            {"prompt": "abcd", "n_predict": 3, "stream": True},
            lambda event: event["content"],
            4,
        ),
    ],
)
def test_native_streams_carry_the_text_in_pieces(server, path, body, text_of, count):
    got = [json.loads(event) for event in stream(server, path, body)]
    assert len(got) == count
    assert len("".join(map(text_of, got))) == 12


def test_tgi_says_the_counts_in_its_last_event(server):
    body = {"inputs": "a" * 40, "parameters": {"max_new_tokens": 2, "details": True}}
    first, last = map(json.loads, stream(server, "/generate_stream", body))
    assert (first["index"], first["generated_text"], first["details"]) == (1, None, None)
    assert last["generated_text"] == first["token"]["text"] + last["token"]["text"]
    assert last["details"]["generated_tokens"] == 2
    assert last["details"]["input_length"] == 10
    assert last["details"]["finish_reason"] == "length"


def test_llamacpp_ends_with_stop_and_counts(server):
    body = {"prompt": "a" * 40, "n_predict": 2, "stream": True}
    last = json.loads(stream(server, "/completion", body)[-1])
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert (last["tokens_predicted"], last["tokens_evaluated"]) == (2, 10)


def test_sglang_text_is_cumulative(server):
    body = {"text": "a" * 40, "sampling_params": {"max_new_tokens": 3}, "stream": True}
    *states, done = stream(server, "/generate", body)
    texts = [json.loads(state)["text"] for state in states]
    assert [len(text) for text in texts] == [4, 8, 12]
    assert texts[2].startswith(texts[1])
    meta = json.loads(states[-1])["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (10, 3)
    assert done == "[DONE]"


def test_generate_is_tgi_or_sglang_by_its_body(server):
    tgi = {"inputs": "abcd", "parameters": {"max_new_tokens": 2}}
    assert len(json.loads(call(server, "POST", "/generate", tgi)[2])["generated_text"]) == 8
    sglang = {"text": "abcd", "sampling_params": {"max_new_tokens": 2}}
    assert len(json.loads(call(server, "POST", "/generate", sglang)[2])["text"]) == 8


def test_triton_without_stream_sends_one_event(server):
    body = {"text_input": "abcd", "max_tokens": 3}
    (event,) = stream(server, "/v2/models/m/generate_stream", body)
    assert len(json.loads(event)["text_output"]) == 12
    whole = json.loads(call(server, "POST", "/v2/models/m/generate", body)[2])
    assert (whole["model_name"], len(whole["text_output"])) == ("m", 12)


def test_mii_answers_a_list(server):
    body = {"prompts": ["a" * 40], "max_new_tokens": 3, "ignore_eos": True}
    (answer,) = json.loads(call(server, "POST", "/mii/m", body)[2])
    assert len(answer.pop("generated_text")) == 12
    assert answer == {"prompt_length": 10, "generated_length": 3, "finish_reason": "length"}


def test_usage_in_every_chunk_counts_up(server):
    body = {"prompt": "abcd", "max_tokens": 3, "stream": True}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    chunks = [json.loads(chunk) for chunk in stream(server, "/v1/completions", body)[:-1]]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


def test_token_ids_count_as_they_are(server):
    body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 2, "return_token_ids": True}
    answer = json.loads(call(server, "POST", "/v1/completions", body)[2])
    assert answer["usage"]["prompt_tokens"] == 5
    assert len(answer["choices"][0]["token_ids"]) == 2


def test_logprobs_say_the_tokens_of_an_event():
    body = {"prompt": "a", "max_tokens": 3, "logprobs": 1, "stream": True}
    with engine("tokens_per_event=2") as server:
        chunks = [json.loads(chunk) for chunk in stream(server, "/v1/completions", body)[:-1]]
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": True}
        answer = json.loads(call(server, "POST", "/v1/chat/completions", chat)[2])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [2, 1]
    assert "".join(choices[0]["logprobs"]["tokens"]) == choices[0]["text"]
    assert choices[-1]["finish_reason"] == "length"
    assert len(answer["choices"][0]["logprobs"]["content"]) == 2


def test_stop_strings_end_the_answer_before_them(server):
    free = {"prompt": "abcd", "max_tokens": 6}
    text = json.loads(call(server, "POST", "/v1/completions", free)[2])["choices"][0]["text"]
    words = text.split()
    # The vocabulary goes round, so the next request starts 7 words later: ask for all of them.
    body = {"prompt": "abcd", "max_tokens": 60, "stop": words[3]}
    answer = json.loads(call(server, "POST", "/v1/completions", body)[2])
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert words[3] not in choice["text"]
    assert answer["usage"]["completion_tokens"] < 60


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/completions", b"{", 400, "not JSON"),
        ("/v1/completions", b"[]", 400, "not a JSON object"),
        ("/v1/completions", {}, 400, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "one prompt"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n:"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 200_000}, 400, "maximum context length"),
        ("/v1/completions", {"prompt": "a", "tokenswarm_fault": "nope"}, 400, "unknown fault"),
        (
            "/v1/completions",
            {"prompt": "a", "stream_options": {"include_usage": True}},
            400,
            "Stream options",
        ),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/nothing", {}, 404, "Not Found"),
    ],
)
def test_bad_requests_are_refused_in_words(server, path, body, status, said):
    got, _, raw = call(server, "POST", path, body)
    assert got == status
    assert said in raw.decode()


def test_refused_requests_are_in_the_log():
    with engine() as server:
        call(server, "POST", "/v1/completions", {})
        (line,) = log(server)
    assert (line["status"], line["outcome"], line["tokens_sent"]) == (400, "http_error", 0)


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/health", "/v2/health/ready", "/info", "/get_model_info", "/props", "/metrics",
     "/stats", "/version", "/v2/models/demo", "/v2/models/demo/ready"],
)  # fmt: skip
def test_every_engine_is_found_by_its_own_paths(server, path):
    assert call(server, "GET", path)[0] == 200


def test_tokenize_counts_in_both_forms(server):
    vllm = json.loads(call(server, "POST", "/tokenize", {"prompt": "a" * 40})[2])
    assert (vllm["count"], vllm["max_model_len"]) == (10, 131072)
    llamacpp = json.loads(call(server, "POST", "/tokenize", {"content": "a" * 40})[2])
    assert len(llamacpp["tokens"]) == 10


def test_wrong_methods_and_paths(server):
    assert call(server, "GET", "/v1/completions")[0] == 405
    assert call(server, "GET", "/nothing")[0] == 404
    assert call(server, "DELETE", "/v1/models")[0] == 405


def test_keep_alive_pipelining_answers_in_order(server):
    slow = {"prompt": "a", "max_tokens": 20, "stream": True}
    both = post("/v1/completions", slow) + post("/v1/completions", {"prompt": "b"}, "X: 1")
    both += b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
    received = raw_exchange(server, both)
    stream_at, whole_at = received.index(b"[DONE]"), received.index(b'"text_completion","created"')
    assert received.count(b"HTTP/1.1 200") == 3
    assert whole_at < stream_at < received.rindex(b"content-length: 0")


def test_chunked_requests_and_expect_continue(server):
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    for byte in body:
        chunked += b"1\r\n" + bytes([byte]) + b"\r\n"
    assert b'"completion_tokens":1' in raw_exchange(server, chunked + b"0\r\n\r\n")
    with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        sock.sendall(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert sock.recv(20).startswith(b"HTTP/1.1 200 OK")


def test_http_1_0_streams_end_with_the_connection(server):
    request = post("/v1/completions", {"prompt": "a", "stream": True}, version="1.0")
    head, _, body = raw_exchange(server, request).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert events(body)[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, b"413"),
    ],
)
def test_hostile_requests_are_sent_away(request_bytes, status):
    with engine("max_body_bytes=1000") as server:
        assert raw_exchange(server, request_bytes, until=b"\n").split()[1] == status
        assert call(server, "GET", "/health")[0] == 200


def test_base_path_and_model_are_checked():
    with engine("base_path=/llm", "check_model=true", "model=m") as server:
        assert call(server, "POST", "/v1/completions", {"prompt": "a"})[0] == 404
        assert call(server, "POST", "/llm/v1/completions", {"prompt": "a", "model": "x"})[0] == 404
        assert call(server, "POST", "/llm/completions", {"prompt": "a", "model": "m"})[0] == 200


def test_api_key(monkeypatch):
    monkeypatch.setenv("ENGINE_KEY", "secret")
    with engine("api_key_env=ENGINE_KEY") as server:
        body = {"prompt": "a", "max_tokens": 1}
        status, _, raw = call(server, "POST", "/v1/completions", body)
        assert (status, json.loads(raw)["error"]["code"]) == (401, 401)
        good = {"Authorization": "Bearer secret"}
        assert call(server, "POST", "/v1/completions", body, good)[0] == 200
        assert call(server, "GET", "/v1/models")[0] == 401
        assert call(server, "GET", "/health")[0] == 200
    monkeypatch.delenv("ENGINE_KEY")
    with pytest.raises(BadInput, match="ENGINE_KEY is not set"), engine("api_key_env=ENGINE_KEY"):
        pass


def test_timing_follows_the_model_and_the_log_says_so():
    sets = ("base_ms=30", "prefill_ms_per_token=0.2", "itl_ms=4", "prefix_caching=false")
    with engine(*sets) as server:
        stream(server, "/v1/completions", {"prompt": "a" * 400, "max_tokens": 26, "stream": True})
        (line,) = log(server)
    assert LATE > line["first_sent"] - line["received"] - 0.050 >= 0
    assert LATE > line["last_sent"] - line["received"] - 0.150 >= 0
    assert (line["prompt_tokens"], line["tokens_sent"], line["events_sent"]) == (100, 26, 26)
    assert (line["outcome"], line["status"], line["client_closed"]) == ("ok", 200, False)


def test_tokens_per_event_keeps_the_rate_of_tokens():
    with engine("itl_ms=5", "tokens_per_event=4") as server:
        body = {"prompt": "a", "max_tokens": 21, "stream": True}
        *chunks, _ = stream(server, "/v1/completions", body)
        (line,) = log(server)
    assert [len(json.loads(c)["choices"][0]["text"]) // 4 for c in chunks] == [4, 4, 4, 4, 4, 1]
    assert (line["tokens_sent"], line["events_sent"]) == (21, 6)
    # The first event is due with its fourth token, the last with its twenty-first.
    assert LATE > line["first_sent"] - line["received"] - 0.016 >= 0
    assert LATE > line["last_sent"] - line["received"] - 0.101 >= 0


def test_a_full_batch_queues_first_come_first_served():
    with engine("max_batch=1", "base_ms=20") as server:
        request = post("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True})
        socks = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(3)]
        for sock in socks:
            sock.sendall(request)
            assert sock.recv(17).startswith(b"HTTP/1.1 200 OK")  # the head: its turn is fixed
        for sock in socks:
            while b"[DONE]" not in sock.recv(65536):
                pass
            sock.close()
        lines = log(server)
    assert [line["id"] for line in lines] == [1, 2, 3]
    waits = [line["first_sent"] - line["received"] for line in lines]
    assert waits == sorted(waits)
    assert LATE > lines[2]["last_sent"] - lines[0]["received"] - 3 * 0.021 >= 0


def test_the_capacity_can_be_computed():
    sets = ["max_batch=4", "base_ms=10", "itl_ms=5", "tokenizer=none", "prefill_ms_per_token=0.1"]
    capacity = capacity_per_s(load("default", sets), 10, 5)
    assert capacity == pytest.approx(4 / 0.031)
    with engine(*sets, "prefix_caching=false") as server:
        request = post("/v1/completions", {"prompt": "a" * 40, "max_tokens": 5})
        with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
            socks = [sock] + [socket.create_connection(sock.getpeername(), 10) for _ in range(7)]
            for each in socks:
                each.sendall(request * 5)
            for each in socks:
                received = b""
                while received.count(b'"usage"') < 5:
                    received += each.recv(65536)
            for each in socks[1:]:
                each.close()
        lines = log(server)
    spent = max(line["last_sent"] for line in lines) - min(line["received"] for line in lines)
    assert LATE > spent - 40 / capacity >= 0


def test_a_full_queue_and_a_too_large_request_are_refused():
    with engine("max_batch=1", "max_queue=0", "kv_tokens=100", "base_ms=5000") as server:
        body = {"prompt": "a" * 500, "max_tokens": 10}
        status, _, raw = call(server, "POST", "/v1/completions", body)
        assert (status, b"KV cache" in raw) == (400, True)
        with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
            sock.sendall(post("/v1/completions", {"prompt": "a", "stream": True}))
            sock.recv(15)
            status, _, raw = call(server, "POST", "/v1/completions", {"prompt": "b"})
            assert (status, b"queue is full" in raw) == (503, True)


def test_kv_cache_limits_how_many_run():
    with engine("kv_tokens=30", "base_ms=5000") as server:
        request = post("/v1/completions", {"prompt": "a" * 40, "max_tokens": 5, "stream": True})
        socks = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(3)]
        for sock in socks:
            sock.sendall(request)
            sock.recv(15)
        page = call(server, "GET", "/metrics")[2].decode()
        assert 'vllm:num_requests_running{engine="0",model_name="demo"} 2' in page
        assert 'vllm:num_requests_waiting{engine="0",model_name="demo"} 1' in page
        assert 'vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 1.0' in page
        for sock in socks:
            sock.close()


def test_a_client_that_leaves_frees_its_place():
    with engine("max_batch=1", "itl_ms=1000") as server:
        with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
            sock.sendall(post("/v1/completions", {"prompt": "a", "max_tokens": 50, "stream": True}))
            while b'"text"' not in sock.recv(65536):
                pass
        body = {"prompt": "a", "max_tokens": 1}
        assert call(server, "POST", "/v1/completions", body)[0] == 200
        left, _ = log(server)
    assert (left["client_closed"], left["outcome"], left["tokens_sent"]) == (True, "cancelled", 1)
    assert left["output_tokens"] == 50


def test_the_planned_stall_shifts_everything():
    with engine("itl_ms=10", "stall_at_s=0.1", "stall_for_s=0.3") as server:
        body = {"prompt": "a", "max_tokens": 30, "stream": True}
        stream(server, "/v1/completions", body)
        (line,) = log(server)
    assert 0.31 + LATE > line["longest_gap_s"] > 0.30
    assert LATE > line["last_sent"] - line["received"] - 0.591 >= 0


def test_metrics_count_what_was_sent():
    from prometheus_client.parser import text_string_to_metric_families

    with engine() as server:
        for _ in range(3):
            body = {"prompt": "a" * 400, "max_tokens": 4, "stream": True}
            stream(server, "/v1/completions", body)
        page = call(server, "GET", "/metrics")[2].decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "le" not in sample.labels and sample.labels.get("finished_reason", "length") == "length"
    }
    assert samples["vllm:prompt_tokens_total"] == 300
    assert samples["vllm:generation_tokens_total"] == 12
    assert samples["vllm:request_success_total"] == 3
    assert samples["vllm:time_to_first_token_seconds_count"] == 3
    assert samples["vllm:inter_token_latency_seconds_count"] == 9
    assert samples["vllm:e2e_request_latency_seconds_count"] == 3
    assert samples["vllm:prefix_cache_queries_total"] == 300
    # 100 tokens are 6 full blocks of 16, looked up three times, there the last two times.
    assert samples["vllm:prefix_cache_hits_total"] == 2 * 96
    assert samples["vllm:num_requests_running"] == 0


def test_a_cached_prefix_makes_the_first_token_quick():
    with engine("base_ms=0", "prefill_ms_per_token=4") as server:
        body = {"prompt": "a" * 400, "max_tokens": 1}
        for _ in range(2):
            call(server, "POST", "/v1/completions", body)
        cold, warm = log(server)
    assert (cold["cached_tokens"], warm["cached_tokens"]) == (0, 96)
    assert LATE > cold["first_sent"] - cold["received"] - 0.400 >= 0
    assert LATE > warm["first_sent"] - warm["received"] - 0.016 >= 0


def test_ipv6():
    with engine(host="::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        with socket.create_connection(("::1", server.port), 10) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_tls(tmp_path):
    names = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *subject]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with (
        engine(tls=context) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        body = {"prompt": "a" * 100_000, "max_tokens": 5, "stream": True}
        sock.sendall(post("/v1/completions", body))
        received = b""
        while b"[DONE]" not in received:
            received += sock.recv(65536)
        assert received.count(b'"text"') == 5


def test_a_reader_that_sleeps_gets_everything_later(server):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        body = {"text": "a", "sampling_params": {"max_new_tokens": 700}, "stream": True}
        sock.sendall(post("/generate", body))
        deadline = time.monotonic() + 20
        while not any(line["tokens_sent"] == 700 for line in log(server)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        received = b""
        while b"[DONE]" not in received:
            received += sock.recv(65536)
    assert received.count(b"data: ") == 701


def test_the_log_is_streamed_and_complete():
    with engine("itl_ms=0", "base_ms=0") as server:
        request = post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        with socket.create_connection(("127.0.0.1", server.port), 20) as sock:
            for _ in range(40):
                sock.sendall(request * 25)
                received = b""
                while received.count(b'"usage"') < 25:
                    received += sock.recv(65536)
        lines = log(server)
    assert [line["id"] for line in lines] == list(range(1, 1001))


def test_real_tokenizer_text_has_exactly_as_many_tokens():
    from tokenswarm.tokens import TokenizerSpec
    from tokenswarm.tokens import load as load_tokenizer

    tokenizer = load_tokenizer(TokenizerSpec("tiktoken", "cl100k_base"))
    prompt = "The quick brown fox jumps over the lazy dog. " * 200
    with engine("tokenizer={source: tiktoken, path: cl100k_base}") as server:
        body = {"prompt": prompt, "max_tokens": 120, "stream": True}
        *chunks, _ = stream(server, "/v1/completions", body)
        text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
        (line,) = log(server)
    assert tokenizer.count_plain(text) == 120
    assert line["prompt_tokens"] == tokenizer.count(prompt)
