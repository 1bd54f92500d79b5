"""What a user gets wrong: said once, with what to do, exit code 2, and no load was sent.

All cases run once, some at a time, before the first test that wants to see one.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest
from product import CORPUS, free_port, locust_command, run_command, running, start, workload
from product import run as run_product
from product import written as write

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
AT_ONCE = 3  # on a machine of two cores
QUIET = ("--set", "base_ms=10", "itl_ms=10")  # nothing that a busy machine could not follow
KEY = "sk-quite-a-secret-0123456789"
KEYED = {"api_key_env": "E2E_KEY"}


@pytest.fixture(scope="module")
def engine():
    with EngineProcess(*QUIET) as process:
        yield process


@pytest.fixture(scope="module")
def keyed_engine():
    os.environ["E2E_ENGINE_KEY"] = KEY
    try:
        with EngineProcess(*QUIET, "--api-key-env", "E2E_ENGINE_KEY") as process:
            yield process
    finally:
        del os.environ["E2E_ENGINE_KEY"]


def run(tmp, host, *options, **sections):
    """Without workers, which would only wait for the same end."""
    workers = () if "--workers" in options else ("--workers", "0")
    return run_product(tmp, host, *workers, *options, **sections)


def dataset(content):
    """A case whose data set has this content; None for no file at all."""

    def case(tmp, engine, *options):
        path = tmp / "data.json"
        if content is not None:
            path.write_bytes(content)
        return run(
            tmp, engine.url, *options, prompts={"path": str(path)}, backend={"model": tmp.name}
        )

    return case


def unreachable(tmp, engine):
    return run(tmp, f"http://127.0.0.1:{free_port()}")


def no_such_name(tmp, engine):
    return run(tmp, "http://no-such-host.invalid")


def wrong_path(tmp, engine):
    return run(tmp, engine.url + "/nothing/here", backend={"model": tmp.name})


def no_url(tmp, engine):
    return run(tmp, "localhost:8000")


class Document(BaseHTTPRequestHandler):
    """A server that answers everything with one JSON document."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"choices": [{"text": "Hi"}], "usage": {"prompt_tokens": 1}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def not_streamed(tmp, engine):
    with HTTPServer(("127.0.0.1", 0), Document) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            return run(tmp, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()


def unknown_keys(tmp, engine):
    return run(tmp, engine.url, lod={"users": 1}, prompts={"ouput_tokens": 3},
               backend={"model": tmp.name})  # fmt: skip


def unknown_setting(tmp, engine):
    return run(tmp, engine.url, "--set", "load.stages.0.user=8")


def too_little_room(tmp, engine):
    return run(
        tmp, engine.url, "--workers", "2", load={"users": 4, "requests": 8, "max_in_flight": 1}
    )


def no_workload(tmp, engine):
    return start(run_command(tmp / "nothing.yaml", engine.url, tmp / "out"), tmp / "out").finish()


def no_tokenizer(tmp, engine):
    return run(tmp, engine.url, tokenizer={"source": "hf", "path": str(tmp / "nothing")})


def other_tokenizer(tmp, engine):
    with EngineProcess("--set", "tokenizer=none") as other:
        return run(tmp, other.url)


def impossible_length(tmp, engine):
    return run(tmp, engine.url, prompts={"input_tokens": 2})


def run_in_out(tmp, engine):
    (tmp / "out").mkdir()
    (tmp / "out" / "summary.json").write_text("{}")
    finished = run(tmp, engine.url)
    assert (tmp / "out" / "summary.json").read_text() == "{}"
    return finished


def file_as_out(tmp, engine):
    (tmp / "out").write_text("mine")
    finished = run(tmp, engine.url)
    assert (tmp / "out").read_text() == "mine"
    return finished


def taken_port(tmp, engine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        return run(tmp, engine.url, "--export", f"prometheus={port}")


def no_model_config(tmp, engine):
    hardware = {"gpu": "L4", "model": {"config": "nowhere"}}
    finished = run(tmp, engine.url, hardware=hardware)
    assert not (tmp / "out").exists()
    return finished


def unknown_exporter(tmp, engine):
    return run(tmp, engine.url, "--export", "promotheus=1")


def users_beside_the_workload(tmp, engine):
    command = locust_command("--headless", "--workload", str(write(tmp, workload())), "--host",
                             engine.url, "-u", "3", "-t", "10s")  # fmt: skip
    return start(command, tmp / "out").finish()


def no_key(tmp, engine):
    return run(tmp, engine.url, backend=KEYED)


def with_workers(case):
    """The same with two workers, which meet the same mistake."""

    def doubled(tmp, engine):
        return case(tmp, engine, "--workers", "2")

    return doubled


# name: what is done, and what must be said
CASES = {
    "unreachable": (unreachable, ["ECONNREFUSED", "--wait-ready SECONDS waits"]),
    "no such name": (no_such_name, ["no-such-host.invalid:80: name not known"]),
    "wrong path": (wrong_path, ["/nothing/here: http_error: HTTP 404", "check --host"]),
    "no URL": (no_url, ["--host 'localhost:8000'", "http://127.0.0.1:8000"]),
    "not streamed": (not_streamed, ["not_stream: expected Content-Type 'text/event-stream', got "
                                    "'application/json'", "Is streaming off"]),
    "unknown keys": (unknown_keys, ["workload.yaml:", "'lod'", "'load'", "'ouput_tokens'",
                                    "'output_tokens'"]),
    "too little room": (too_little_room, ["load.max_in_flight: 1 cannot be shared out among 2 "
                                          "workers: start at most 1, or raise it"]),
    "unknown setting": (unknown_setting, ["--set load.stages.0.user=8"]),
    "no workload": (no_workload, ["nothing.yaml"]),
    "no tokenizer": (no_tokenizer, ["nothing"]),
    "other tokenizer": (other_tokenizer, ["the server counted", "another tokenizer on the server",
                                          "prompts.probe: warn"]),
    "impossible length": (impossible_length, ["2"]),
    "no data set": (dataset(None), ["data.json"]),
    "no data set, two workers": (with_workers(dataset(None)), ["data.json"]),
    "a web page": (dataset(b"<!DOCTYPE html><html>Sign in</html>"), ["data.json", "is a web page"]),
    "LFS pointer": (dataset(b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\n"
                            b"size 1\n"), ["data.json", "LFS"]),
    "truncated": (dataset(CORPUS.read_bytes()[:5000]), ["data.json", "allow_truncated"]),
    "a run in --out": (run_in_out, ["holds a run already (summary.json)"]),
    "a file as --out": (file_as_out, ["is a file; choose another name"]),
    "taken port": (taken_port, ["--export prometheus", "in use"]),
    "no model config": (no_model_config, ["hardware.model.config: nowhere: cannot be read"]),
    "unknown exporter": (unknown_exporter, ["unknown exporter 'promotheus'", "prometheus"]),
    "users beside the workload": (users_beside_the_workload, ["-u/--users", "-t/--run-time",
                                                              "--set load.users=N"]),
    "no key": (no_key, ["E2E_KEY is not set"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def said(engine, tmp_path_factory):
    """A function that gives the end of a case."""
    folders = {name: tmp_path_factory.mktemp("bad") for name in CASES}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = {name: pool.submit(CASES[name][0], folders[name], engine) for name in CASES}
        yield lambda name: ends[name].result()


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_said_with_exit_code_2(said, name):
    finished = said(name)
    assert finished.code == 2, finished.said
    for text in CASES[name][1]:
        assert text in finished.err, finished.err
    assert "Traceback" not in finished.said
    assert finished.out == ""  # no table, no summary


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_is_said_once(said, name):
    lines = [line for line in said(name).err.splitlines() if line.startswith("tokenswarm: ")]
    assert lines
    assert len(lines) == len(set(lines))


def test_no_load_was_sent(said, engine):
    for name in CASES:
        said(name)
    assert {line["max_tokens"] for line in engine.log()} <= {1, None}  # probes and refusals


# -- keys --------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_and_no_secret_is_shown(keyed_engine, tmp_path):
    finished = run(tmp_path, keyed_engine.url, backend=KEYED, env={"E2E_KEY": "sk-wrong-" + KEY})
    assert finished.code == 2
    assert "HTTP 401" in finished.err
    assert "backend.api_key_env" in finished.err
    assert KEY not in finished.said


def test_a_right_key_is_in_no_file_no_log_and_no_process_list(keyed_engine, tmp_path):
    out = tmp_path / "out"
    file = write(tmp_path, workload(backend=KEYED, load={"users": 2, "duration": "2s"}))
    command = run_command(file, keyed_engine.url, out, "--workers", "2")
    with running(command, out, {"E2E_KEY": KEY}) as going:
        going.wait_for(lambda: going.recorded() >= 1, "a record")
        family = psutil.Process(going.process.pid)
        lines = [family.cmdline(), *(p.cmdline() for p in family.children(recursive=True))]
        finished = going.finish()
    assert finished.code == 0, finished.said
    assert finished.summary["requests"]["ok"] == len(finished.rows) > 0
    assert KEY not in str(lines) + finished.said
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert [path.name for path in files if KEY.encode() in path.read_bytes()] == []


# -- disks -------------------------------------------------------------------------------------


def test_an_out_that_cannot_be_written_is_said_and_the_summary_printed(engine, tmp_path):
    (tmp_path / "file").touch()
    command = run_command(write(tmp_path, workload()), engine.url, tmp_path / "file" / "out",
                          "--workers", "0")  # fmt: skip
    finished = start(command, tmp_path / "out").finish()
    assert finished.code == 0, finished.said
    assert "cannot write there" in finished.err
    assert "only the printed summary" in finished.err
    assert "VALID RUN" in finished.out
    assert "40 due, 40 sent: 40 ok" in finished.out


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of its own; skips where it cannot be made."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can make a small disk")
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small disk can be made here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_is_said_and_the_summary_printed(engine, tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, "64k"):
        load = {"users": 8, "requests": 160}
        command = run_command(write(tmp_path, workload(load=load)), engine.url, disk / "out",
                              "--workers", "2")  # fmt: skip
        finished = start(command, disk / "out").finish()
        written = (disk / "out" / "requests.jsonl").read_bytes()
    assert finished.code in (0, 3), finished.said
    assert "160 due, 160 sent: 160 ok" in finished.out
    assert "No space left" in finished.said
    assert "request records were not written" in finished.said
    assert all(json.loads(line)["outcome"] == "ok" for line in written.splitlines())
    assert "Traceback" not in finished.said
