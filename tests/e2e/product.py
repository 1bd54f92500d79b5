"""tokenswarm as people run it: its commands as processes, and what they leave behind."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = ROOT / "locustfiles" / "stream.py"
CORPUS = ROOT / "workloads" / "sample_sharegpt.json"
DEADLINE_S = 120


def workload(**sections: Any) -> dict[str, Any]:
    """A small workload that the engine `demo` serves; sections are merged over it."""
    whole: dict[str, Any] = {
        "name": "e2e",
        "seed": 11,
        "nonce": "e2e",
        "backend": {"kind": "openai-completions", "model": "demo"},
        "tokenizer": {"source": "tiktoken", "path": "cl100k_base"},
        "prompts": {"path": str(CORPUS), "input_tokens": 64, "output_tokens": 8},
        "load": {"users": 4, "requests": 40},
        # other tests may keep both cores busy: that is not what these runs are about
        "validity": {"coalesced_share": 0.5, "cpu": 1.0, "rate_tolerance": 0.1},
    }
    for name, section in copy.deepcopy(sections).items():
        merged = isinstance(section, dict) and name != "load"
        whole[name] = {**whole.get(name, {}), **section} if merged else section
    return whole


def written(folder: Path, content: dict[str, Any]) -> Path:
    """The workload as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "workload.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Finished:
    """A command that has ended, and the folder of its run."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def said(self) -> str:
        return self.out + self.err

    @property
    def summary(self) -> dict[str, Any]:
        path = self.folder / "summary.json"
        assert path.exists(), f"exit code {self.code}, no summary:\n{self.said}"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        lines = (self.folder / "requests.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def codes(self) -> list[str]:
        """Why the run is invalid."""
        return [reason["code"] for reason in self.summary["invalid_reasons"]]


@dataclass
class Running:
    """A command that is running, its output gathered as it comes."""

    process: subprocess.Popen[str]
    folder: Path
    texts: dict[str, list[str]] = field(default_factory=lambda: {"out": [], "err": []})

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, "out")),
            threading.Thread(target=self._read, args=(self.process.stderr, "err")),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, name: str) -> None:
        with stream:
            for line in stream:
                self.texts[name].append(line)

    def wait_for(self, condition: Any, what: str) -> Any:
        """Await a true value of condition() while the command runs."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            assert self.process.poll() is None, f"ended before {what}:\n{self.said}"
            time.sleep(0.02)
        raise AssertionError(f"no {what} in {DEADLINE_S} s:\n{self.said}")

    @property
    def said(self) -> str:
        return "".join(self.texts["out"] + self.texts["err"])

    def workers(self) -> list[dict[str, Any]]:
        """workers.json, once every worker in it has its share."""
        path = self.folder / "workers.json"
        try:
            rows = json.loads(path.read_text())
        except (OSError, ValueError):
            return []
        return rows if rows and all(row["pid"] for row in rows) else []

    def recorded(self) -> int:
        """Lines of requests.jsonl so far."""
        path = self.folder / "requests.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def finish(self) -> Finished:
        """Wait for its end."""
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise AssertionError(f"did not end:\n{self.said}") from None
        for reader in self._readers:
            reader.join()
        return Finished(code, "".join(self.texts["out"]), "".join(self.texts["err"]), self.folder)


def start(
    command: list[str], folder: Path, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> Running:
    """Start a command; its run's folder is known beforehand."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True, cwd=cwd,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT), **(env or {})},
        start_new_session=True,
    )  # fmt: skip
    return Running(process, folder)


@contextmanager
def running(
    command: list[str], folder: Path, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> Any:
    """The same for a `with` that ends it."""
    made = start(command, folder, env, cwd)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            os.killpg(made.process.pid, signal.SIGKILL)
        made.finish()


def run_command(file: Path, host: str, out: Path, *options: str) -> list[str]:
    """`tokenswarm run`, without metrics unless options say so."""
    export = [] if "--export" in options else ["--export", "prometheus=off"]
    return [sys.executable, "-m", "tokenswarm.cli", "run", str(file), "--host", host,
            "--out", str(out), *export, *options]  # fmt: skip


def run(tmp: Path, host: str, *options: str, env: Any = None, **sections: Any) -> Finished:
    """`tokenswarm run` of a workload from start to end."""
    out = tmp / "out"
    command = run_command(written(tmp, workload(**sections)), host, out, *options)
    return start(command, out, env).finish()


def locust_command(*options: str) -> list[str]:
    """Plain locust with our locustfile."""
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *options]
