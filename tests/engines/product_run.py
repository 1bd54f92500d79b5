"""The product as its users run it: `tokenswarm run WORKLOAD.yaml --host URL`, and what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from real_engine import MODEL

TOKENSWARM = Path(sys.executable).with_name("tokenswarm")


@dataclass(frozen=True)
class Finished:
    """A run that has ended: exit code, what it printed, and its files."""

    code: int
    printed: str
    summary: dict[str, Any]
    requests: list[dict[str, Any]]


def workload(kind: str, input_tokens: int, output_tokens: int, **sections: Any) -> dict[str, Any]:
    """A workload with real text of exact length; `sections` are merged over it."""
    whole: dict[str, Any] = {
        "name": f"{kind}-{input_tokens}-{output_tokens}",
        "seed": 7,
        "backend": {"kind": kind, "model": "smollm2", "extra_body": {"temperature": 0.8}},
        "tokenizer": {"source": "hf", "path": str(MODEL)},
        "prompts": {"input_tokens": input_tokens, "output_tokens": output_tokens},
        "load": {"mode": "closed", "users": 4, "requests": 8},
    }
    for name, section in sections.items():
        whole[name] = {**whole.get(name, {}), **section}
    return whole


def run(content: dict[str, Any], host: str, folder: Path, *options: str) -> Finished:
    """Run it with one worker, and read what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(content))
    out = folder / "out"
    command = [
        str(TOKENSWARM), "run", str(file), "--host", host, "--workers", "1", "--out", str(out),
        "--export", "prometheus=off", *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500
    )
    if not (out / "summary.json").exists():
        raise AssertionError(f"exit code {done.returncode} and no summary:\n{done.stdout}")
    rows = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    return Finished(done.returncode, done.stdout, _read(out / "summary.json"), rows)


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def assert_sound(finished: Finished, n: int, input_tokens: int, output_tokens: int) -> None:
    """Exit code 0, a valid run, nothing lost, and every length as it was asked for."""
    summary, rows = finished.summary, finished.requests
    assert finished.code == 0, finished.printed
    assert summary["valid"] is True, summary["invalid_reasons"]

    counts = summary["requests"]
    assert counts["by_outcome"] == {"ok": n}
    assert (counts["due"], counts["sent"], counts["ok"]) == (n, n, n)
    assert (counts["failed"], counts["dropped"], counts["lost"]) == (0, 0, 0)

    assert [row["output_tokens"] for row in rows] == [output_tokens] * n
    assert {row["output_tokens_source"] for row in rows} == {"usage"}
    assert [row["prompt_tokens"] for row in rows] == [input_tokens] * n
    assert {row["prompt_tokens_source"] for row in rows} == {"usage"}
    # llama.cpp's own protocol says "limit"
    assert {row["finish_reason"] for row in rows} in ({"length"}, {"limit"})
    assert summary["tokens"] == {"prompt": n * input_tokens, "output": n * output_tokens}
    assert (summary["prompts"]["exact"], summary["prompts"]["compared"]) == (n, n)

    for row in rows:
        assert row["due"] <= row["sent"] < row["first_token"] <= row["last_token"] <= row["end"]
