"""A soak in small: `python -m benchmarks.soak_bench`.

Ten minutes of open loop at 200 requests/s with two workers against the embedded engine: does
the memory of master or workers grow, is a request lost, is the plan kept? Memory of each process
every two seconds; its slope is taken over the time after the first fifth, by means of ten blocks.
Before that half a minute at 400 requests/s: how late are requests sent?
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.product import PROGRAM
from benchmarks.publish import circumstances, publish, table
from tokenswarm.launch import data_folder
from tokenswarm.simulator.process import EngineProcess
from tokenswarm.study_verdict import growth

RATE, SECONDS, WORKERS = 200, 600, 2
LATE_RATE, LATE_SECONDS = 400, 30
INPUT_TOKENS, OUTPUT_TOKENS = 64, 16
EVERY_S, SETTLED = 2.0, 0.2


def workload(rate: int, seconds: int) -> dict[str, Any]:
    """Poisson arrivals, every request counted."""
    corpus = data_folder("workloads") / "sample_sharegpt.json"
    return {
        "name": "soak-in-small",
        "backend": {"model": "demo"},
        "tokenizer": {"source": "tiktoken", "path": "cl100k_base"},
        "prompts": {
            "path": str(corpus),
            "input_tokens": INPUT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
        },
        "load": {"mode": "open", "rate_per_s": rate, "duration": f"{seconds}s"},
    }


def role(process: psutil.Process) -> str | None:
    """master or worker, for the processes of Locust; None for others."""
    words = process.cmdline()
    if "--master" in words:
        return "master"
    return f"worker {process.pid}" if "--worker" in words else None


def sampled(command: list[str], log: Path) -> dict[str, list[tuple[float, float]]]:
    """Run a command; (Unix seconds, MB) of each process of Locust meanwhile."""
    memory: dict[str, list[tuple[float, float]]] = {}
    with log.open("wb") as out:
        process = psutil.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None:
            for child in process.children():
                try:
                    name, size = role(child), child.memory_full_info().uss
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
                if name:
                    memory.setdefault(name, []).append((time.time(), size / 1e6))
            time.sleep(EVERY_S)
    return memory


def slope(samples: list[tuple[float, float]], begin: float, end: float) -> tuple[float, bool]:
    """MB an hour between two instants, and whether its 95 % interval is above 0."""
    per_s, certain = growth([(t, mb) for t, mb in samples if begin <= t <= end])
    return per_s * 3600, certain


@dataclass
class Soaked:
    """A run: its summary, what the engine served, lines of records, memory of each process."""

    summary: dict[str, Any]
    served: int
    records: int
    memory: dict[str, list[tuple[float, float]]]


def one_run(rate: int, seconds: int, folder: Path) -> Soaked:
    """An engine of its own, and tokenswarm with its workers."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(workload(rate, seconds)))
    with EngineProcess() as engine:
        command = [
            str(PROGRAM), "run", str(file), "--host", engine.url, "--workers", str(WORKERS),
            "--out", str(folder / "out"), "--export", "prometheus=off",
        ]  # fmt: skip
        memory = sampled(command, folder / "log")
        path = folder / "out" / "summary.json"
        if not path.exists():
            raise SystemExit(f"no result:\n{(folder / 'log').read_text()}")
        lines = (folder / "out" / "requests.jsonl").read_bytes().count(b"\n")
        served = engine.stats()["requests"] - 1  # the probe
        return Soaked(json.loads(path.read_text()), served, lines, memory)


def accounts(rate: int, run: Soaked) -> dict[str, str]:
    """What became of the plan, as a row."""
    counts, delay = run.summary["requests"], run.summary["metrics"]["send_delay_s"]
    return {
        "requests/s": str(rate),
        "due": f"{counts['due']:,}",
        "sent": f"{counts['sent']:,}",
        "served": f"{run.served:,}",
        "records": f"{run.records:,}",
        "lost or dropped": str(counts["lost"] + counts["dropped"]),
        "send delay p50": f"{delay['p50'] * 1e3:.2f} ms",
        "send delay p99": f"{delay['p99'] * 1e3:.2f} ms",
        "valid": str(run.summary["valid"]).lower(),
    }


def growths(run: Soaked) -> dict[str, Any]:
    """The memory of each process under load: samples after it settled, and their slope."""
    window = run.summary["window"]
    end = window["end"]
    begin = window["start"] + SETTLED * window["seconds"]
    found = {}
    for who, samples in sorted(run.memory.items()):
        mb_per_hour, certain = slope(samples, begin, end)
        during = [round(mb, 1) for t, mb in samples if begin <= t <= end]
        found[who] = {"mb_per_hour": mb_per_hour, "certain": certain, "mb": during}
    return found


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--keep", type=Path, help="keep the runs' files in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        print(f"{LATE_SECONDS} s at {LATE_RATE} requests/s, {WORKERS} workers", flush=True)
        late = one_run(LATE_RATE, LATE_SECONDS, folder / "late")
        print(f"{options.seconds} s at {RATE} requests/s, {WORKERS} workers", flush=True)
        soak = one_run(RATE, options.seconds, folder / "soak")
    memory = growths(soak)
    rows = [
        {
            "process": who.split()[0],
            "MB at the beginning and the end": f"{found['mb'][0]:.0f}, {found['mb'][-1]:.0f}",
            "MB an hour": f"{found['mb_per_hour']:+.1f}",
            "differs from 0": "yes" if found["certain"] else "not shown",
        }
        for who, found in memory.items()
    ]
    runs = ((LATE_RATE, late), (RATE, soak))
    markdown = f"{table(rows)}\n\n{table([accounts(rate, run) for rate, run in runs])}"
    data = {
        "memory": memory,
        "runs": [
            {"rate_per_s": rate, "requests": run.summary["requests"], "served": run.served,
             "records": run.records, "send_delay_s": run.summary["metrics"]["send_delay_s"],
             "valid": run.summary["valid"], "invalid_reasons": run.summary["invalid_reasons"]}
            for rate, run in runs
        ],
    }  # fmt: skip
    publish("soak", circumstances(), data, markdown)


if __name__ == "__main__":
    main()
