"""A soak in small: `python -m benchmarks.soak_bench`.

Ten minutes of open loop at 200 requests/s with two workers against the embedded engine: does
the memory of master or workers grow, is a request lost, is the plan kept? Memory of each process
every two seconds; its slope is taken over the time after the first fifth, by means of ten blocks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.product import PROGRAM
from benchmarks.publish import circumstances, publish, table
from tokenswarm.launch import data_folder
from tokenswarm.simulator.process import EngineProcess
from tokenswarm.study_search import growth

RATE, SECONDS, WORKERS = 200, 600, 2
INPUT_TOKENS, OUTPUT_TOKENS = 64, 16
EVERY_S, SETTLED = 2.0, 0.2


def workload(seconds: int) -> dict[str, Any]:
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
        "load": {"mode": "open", "rate_per_s": RATE, "duration": f"{seconds}s"},
    }


def role(process: psutil.Process) -> str | None:
    """master or worker, for the processes of Locust; None for others."""
    words = process.cmdline()
    if "--master" in words:
        return "master"
    return f"worker {process.pid}" if "--worker" in words else None


def sampled(command: list[str], log: Path) -> dict[str, list[tuple[float, float]]]:
    """Run a command; (seconds, MB) of each process of Locust meanwhile."""
    memory: dict[str, list[tuple[float, float]]] = {}
    with log.open("wb") as out:
        process = psutil.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        began = time.monotonic()
        while process.poll() is None:
            for child in process.children():
                try:
                    name, size = role(child), child.memory_full_info().uss
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
                if name:
                    memory.setdefault(name, []).append((time.monotonic() - began, size / 1e6))
            time.sleep(EVERY_S)
    return memory


def slope(samples: list[tuple[float, float]], begin: float, end: float) -> tuple[float, bool]:
    """MB an hour between two instants, and whether its 95 % interval is above 0."""
    per_s, certain = growth([(t, mb) for t, mb in samples if begin <= t <= end])
    return per_s * 3600, certain


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--keep", type=Path, help="keep the run's files in this folder")
    options = parser.parse_args()
    seconds = options.seconds
    print(f"{seconds} s at {RATE} requests/s, {WORKERS} workers", flush=True)
    with tempfile.TemporaryDirectory() as name, EngineProcess() as engine:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "workload.yaml"
        file.write_text(yaml.safe_dump(workload(seconds)))
        command = [
            str(PROGRAM), "run", str(file), "--host", engine.url, "--workers", str(WORKERS),
            "--out", str(folder / "out"), "--export", "prometheus=off",
        ]  # fmt: skip
        memory = sampled(command, folder / "log")
        path = folder / "out" / "summary.json"
        if not path.exists():
            raise SystemExit(f"no result:\n{(folder / 'log').read_text()}")
        summary = json.loads(path.read_text())
        served = engine.stats()["requests"] - 1  # the probe
        lines = (folder / "out" / "requests.jsonl").read_bytes().count(b"\n")
    end = min(samples[-1][0] for samples in memory.values())
    begin = end - seconds * (1 - SETTLED)
    rows, data = [], {}
    for who, samples in sorted(memory.items()):
        mb_per_hour, certain = slope(samples, begin, end - seconds * 0.05)
        during = [mb for t, mb in samples if begin <= t]
        data[who] = {"mb_per_hour": mb_per_hour, "certain": certain, "mb": during}
        rows.append({
            "process": who.split()[0],
            "MB, first and last fifth": f"{during[0]:.1f}, {during[-len(during) // 4]:.1f}",
            "MB an hour": f"{mb_per_hour:+.1f}{'' if certain else ' (not shown to differ from 0)'}",
        })  # fmt: skip
    counts = summary["requests"]
    delay = summary["metrics"]["send_delay_s"]
    accounts = {
        "planned and due": f"{counts['due']:,}",
        "sent": f"{counts['sent']:,}",
        "served": f"{served:,}",
        "records": f"{lines:,}",
        "lost or dropped": str(counts["lost"] + counts["dropped"]),
        "send delay p99": f"{delay['p99'] * 1e3:.1f} ms",
        "valid": str(summary["valid"]).lower(),
    }
    markdown = f"{table(rows)}\n\n{table([accounts])}"
    publish("soak", circumstances(), {"memory": data, "requests": counts, "served": served,
            "records": lines, "send_delay_p99_s": delay["p99"], "valid": summary["valid"],
            "invalid_reasons": summary["invalid_reasons"]}, markdown)  # fmt: skip
    print(markdown)


if __name__ == "__main__":
    main()
