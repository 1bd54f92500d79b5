"""The official OpenAI client streams from the embedded engine: it is a fair stand-in."""

import json
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tokenswarm.simulator.process import EngineProcess

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    log = tmp_path_factory.mktemp("engine") / "log.jsonl"
    with EngineProcess("--engine", "fast", "--log", str(log)) as running:
        yield running


@pytest.fixture
def client(engine):
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "demo"


def test_chat_stream(client, engine):
    with client.chat.completions.create(
        model="demo",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}],
        max_completion_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    ) as chunks:
        got = list(chunks)
    assert got[0].choices[0].delta.role == "assistant"
    texts = [c.choices[0].delta.content for c in got if c.choices and c.choices[0].delta.content]
    assert len(texts) == 32
    assert got[-2].choices[0].finish_reason == "length"
    assert got[-1].choices == []
    assert got[-1].usage.completion_tokens == 32
    line = engine.log()[-1]
    assert line["tokens_sent"] == 32
    assert line["prompt_tokens"] == got[-1].usage.prompt_tokens


def test_completions_stream(client):
    with client.completions.create(
        model="demo",
        prompt="Once upon a time",
        max_tokens=16,
        stream=True,
        extra_body={"ignore_eos": True, "min_tokens": 16},
    ) as chunks:
        texts = [chunk.choices[0].text for chunk in chunks]
    assert len(texts) == 16


def test_whole_answers(client):
    answer = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi!"}], max_tokens=8
    )
    assert len(answer.choices[0].message.content.split()) == 8
    assert answer.usage.completion_tokens == 8


def test_errors_are_the_clients_own(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="demo", prompt="Hi", max_tokens=10_000_000)
    for fault, error in (
        ("http_429", openai.RateLimitError),
        ("http_500", openai.InternalServerError),
        ("http_404", openai.NotFoundError),
    ):
        with pytest.raises(error):
            client.completions.create(
                model="demo", prompt="Hi", extra_body={"tokenswarm_fault": fault}
            )


def test_an_error_in_the_stream_is_an_api_error(client):
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hi!"}],
        max_tokens=8,
        stream=True,
        extra_body={"tokenswarm_fault": "error_object"},
    )
    with stream, pytest.raises(openai.APIError, match="out of memory"):
        list(stream)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_process_in_order(number, tmp_path):
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "tokenswarm.simulator", "--port", "0", "--log", str(log)]
    slow = ["--set", "tokenizer=none", "itl_ms=60000"]
    with subprocess.Popen(command + slow, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        url = line.split()[4]
        assert line == f"tokenswarm engine listening on {url} (engine default)\n"
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            client.completions.create(model="m", prompt="a", max_tokens=1)
            stream = client.completions.create(model="m", prompt="a", max_tokens=9, stream=True)
            next(iter(stream))
            process.send_signal(number)
            assert process.wait(20) == 0
            stream.close()
    whole, cancelled = map(json.loads, log.read_text().splitlines())
    assert (whole["outcome"], whole["tokens_sent"]) == ("ok", 1)
    assert (cancelled["outcome"], cancelled["tokens_sent"]) == ("cancelled", 1)


def test_quit_ends_the_process():
    import urllib.request

    engine = EngineProcess("--set", "tokenizer=none")
    request = urllib.request.Request(engine.url + "/quit", b"", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
    engine._process.wait(30)  # a signal while it is ending would be its end
    assert engine.stop() == 0


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_out_of_file_descriptors_it_waits_for_one_to_be_free():
    none = ("--set", "tokenizer=none")
    with EngineProcess(*none, prefix=("prlimit", "--nofile=24:24")) as engine:
        host, port = engine.url.removeprefix("http://").split(":")
        socks = [socket.create_connection((host, int(port)), 10) for _ in range(30)]
        for sock in socks[:25]:
            sock.close()
        for sock in socks[25:]:
            sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
            sock.close()
