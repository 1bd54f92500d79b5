"""Real inference engines as child processes: start, wait until ready, read their counters, end.

Knows where `make engines` puts things; knows nothing about the product. The subtle rule: an engine
runs in a process group of its own, and only that group is ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families


def cache() -> Path:
    """The folder of `make engines` (see benchmarks/setup/common.sh)."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TOKENSWARM_CACHE") or home / "tokenswarm")


VLLM = cache() / "venvs/vllm/bin/vllm"
LLAMA_SERVER = cache() / "bin/llama-server"
MODEL = cache() / "models/smollm2"
GGUF = cache() / "models/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Engine:
    """A running engine: where it listens and what it has counted."""

    url: str
    log: Path

    def counters(self) -> dict[str, float]:
        """Every sample of /metrics by name, summed over labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def label(self, family_name: str, label: str) -> str:
        """The value of a label of the first sample of a family of /metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            if family.name == family_name:
                return family.samples[0].labels[label]
        raise LookupError(f"{self.url}/metrics has no {family_name}")


def free_port() -> int:
    """A port on the loopback address that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def require(*paths: Path) -> None:
    """Skip, saying what is missing and which make target brings it."""
    for path in paths:
        if not path.exists():
            target = "engines-llamacpp" if path == LLAMA_SERVER else "engines-vllm"
            pytest.skip(f"{path} is not there: run `make {target}`")


@contextmanager
def running(
    command: list[str], port: int, log: Path, environment: Mapping[str, str], patience_s: float
) -> Iterator[Engine]:
    """Start an engine, wait until /health says yes, end it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        engine = Engine(f"http://127.0.0.1:{port}", log)
        _wait_until_ready(process, engine, patience_s)
        yield engine
    finally:
        _end(process)


def _die_with_parent() -> None:
    """Have the kernel end the engine when the tests are killed (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], engine: Engine, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{engine.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    if process.returncode == -signal.SIGILL:
        pytest.skip(f"{process.args[0]} was built for another processor: build it anew here")
    last_lines = engine.log.read_text(errors="replace").splitlines()[-20:]
    raise RuntimeError(f"the engine was not ready in {patience_s:g} s:\n" + "\n".join(last_lines))


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):  # the group is ended below
            process.wait(timeout=20)
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what the engine started and left behind
    except ProcessLookupError:
        return
    process.wait(timeout=20)


def _quick_dtype() -> str:
    """bfloat16 where the processor computes with it; elsewhere it is far slower than floats."""
    flags = Path("/proc/cpuinfo").read_text(errors="replace").split()
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"


@contextmanager
def vllm(folder: Path) -> Iterator[Engine]:
    """vLLM on the CPU with at most 16 sequences at once and prefix caching, its default."""
    require(VLLM, MODEL)
    port = free_port()
    command = [
        str(VLLM), "serve", str(MODEL), "--served-model-name", "smollm2", "--dtype", _quick_dtype(),
        "--max-model-len", "4096", "--max-num-seqs", "16", "--enforce-eager",
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    environment = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with running(command, port, folder / "vllm.log", environment, 400) as engine:
        yield engine


@contextmanager
def llama_server(folder: Path) -> Iterator[Engine]:
    """llama.cpp's server with two slots of 4,096 tokens each.

    One thread: two that wait for each other in a spin loop stand still on a busy machine.
    """
    require(LLAMA_SERVER, GGUF, MODEL)
    port = free_port()
    command = [
        str(LLAMA_SERVER), "-m", str(GGUF), "-t", "1", "-np", "2", "-c", "8192", "--metrics",
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    with running(command, port, folder / "llama-server.log", {}, 120) as engine:
        yield engine
