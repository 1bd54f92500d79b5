"""tokenswarm as the benchmarks run it: the workload, the command, and where its figures are.

Knows the interfaces that any user has (workload file, command line, summary.json); nothing
below them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.ground_truth.truth import Served, cache

TOKENIZER = cache() / "models" / "smollm2"
PROGRAM = Path(sys.executable).with_name("tokenswarm")


def workload(
    *, kind: str, users: int, requests: int, input_tokens: int, output_tokens: int
) -> dict[str, Any]:
    """A closed loop without warm-up: every request counts, here as in the server's log."""
    return {
        "name": f"bench-{users}",
        "seed": 7,
        "backend": {"kind": kind, "model": "oracle"},
        "tokenizer": {"source": "hf", "path": str(TOKENIZER)},
        # The ground truth server does not tokenise: there is no count to compare with.
        "prompts": {"input_tokens": input_tokens, "output_tokens": output_tokens, "probe": False},
        "load": {"mode": "closed", "users": users, "requests": requests},
    }


def command(content: dict[str, Any], host: str, folder: Path, *, workers: int = 0) -> list[str]:
    """Write the workload into `folder`; the run's files come to `folder`/out."""
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(content))
    return [
        str(PROGRAM), "run", str(file), "--host", host, "--workers", str(workers),
        "--out", str(folder / "out"), "--export", "prometheus=off",
    ]  # fmt: skip


def summary(folder: Path) -> dict[str, Any]:
    """The summary.json of a run that `command` described."""
    content: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
    return content


def first_tokens(folder: Path) -> list[float]:
    """When the first token of each request came, by requests.jsonl; Unix seconds, ascending."""
    rows = map(json.loads, (folder / "out" / "requests.jsonl").read_text().splitlines())
    return sorted(row["first_token"] for row in rows if row["first_token"] is not None)


def require_answers(code: int, folder: Path, served: list[Served]) -> None:
    """End the benchmark with what tokenswarm printed (`folder`/log) when there is no result."""
    if not served or not (folder / "out" / "summary.json").exists():
        said = (folder / "log").read_text()
        raise SystemExit(f"tokenswarm ended with {code} and without a result:\n{said}")


def warm_up(host: str, folder: Path, content: dict[str, Any]) -> list[str]:
    """A command that builds the prompt index, so that no measured run has to."""
    few = {**content, "load": {"mode": "closed", "users": 1, "requests": 1}}
    folder.mkdir(parents=True, exist_ok=True)
    return command(few, host, folder)
