"""How often `tokenswarm compare` is right, on real runs against the embedded engine.

Pairs of runs of one workload: against the same engine (a difference that is shown is a false
alarm), and against engines that are 5 % and 20 % slower (a difference that is not shown is a
miss). Engines run one at a time; the base is measured again for every pair, so that a machine
that gets busier does not look like an engine that got slower.

    python -m benchmarks.compare_bench --pairs 40 --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tokenswarm.compare import DIFFERENT, compare
from tokenswarm.simulator.process import EngineProcess

WORKLOAD = """
name: compare
seed: 1
backend: {kind: openai-completions, model: demo}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {source: sharegpt, input_tokens: 128, output_tokens: 32}
load:
  mode: closed
  stages: [{duration: 1s, users: 16, warmup: true}, {requests: 160, users: 16}]
"""
ENGINE = {"base_ms": 30.0, "prefill_ms_per_token": 0.05, "itl_ms": 10.0, "itl_ms_per_running": 0.1}
JITTER = 0.05
SLOWER = (1.0, 1.05, 1.2)
RARER = 2  # of the small difference, which is only told, one pair in so many


def run(folder: Path, workload: Path, factor: float) -> Path:
    """One run against an engine that takes `factor` times as long."""
    settings = [f"{key}={value * factor}" for key, value in ENGINE.items()]
    seed = str(time.time_ns() % 10_000_000)  # the jitter of every run is another
    with EngineProcess("--set", *settings, f"jitter={JITTER}", "--seed", seed) as engine:
        subprocess.run(
            [sys.executable, "-m", "tokenswarm.cli", "run", str(workload), "--host", engine.url,
             "--workers", "0", "--out", str(folder), "--export", "prometheus=off"],
            check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return folder


def measure(pairs: int, home: Path) -> list[dict]:
    """What compare said of each pair."""
    workload = home / "workload.yaml"
    workload.write_text(WORKLOAD)
    found = []
    for k in range(pairs):
        base = run(home / f"base-{k}", workload, 1.0)
        for factor in SLOWER:
            if factor == SLOWER[1] and k % RARER:
                continue
            new = run(home / f"new-{k}-{factor}", workload, factor)
            pair = compare(base, [new]).pairs[0]
            shown = [row.key for row in pair.rows if row.verdict == DIFFERENT]
            found.append({"pair": k, "slower": factor, "shown": shown,
                          "refused": list(pair.refused),
                          "regressions": [row.key for row in pair.regressions]})  # fmt: skip
            print(json.dumps(found[-1]), flush=True)
    return found


def table(found: list[dict]) -> str:
    """The rates as Markdown."""
    lines = ["| engine slower by | pairs | refused (invalid) | difference shown | of all |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    for factor in SLOWER:
        mine = [f for f in found if f["slower"] == factor]
        judged = [f for f in mine if not f["refused"]]
        shown = sum(bool(f["shown"]) for f in judged)
        share = f"{shown / len(judged):.0%}" if judged else "-"
        lines.append(
            f"| {factor - 1:.0%} | {len(mine)} | {len(mine) - len(judged)} | {shown} | {share} |"
        )
    alarms = Counter(key for f in found if f["slower"] == 1 for key in f["shown"])
    named = ", ".join(f"{key} {count}" for key, count in alarms.most_common()) or "none"
    return "\n".join([*lines, "", f"False alarms by figure: {named}.", ""])


def main() -> None:
    """Run the pairs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--out", type=Path, help="folder for compare.json and compare.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compare-") as home:
        found = measure(args.pairs, Path(home))
    print(table(found))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "compare.json").write_text(json.dumps(found, indent=1) + "\n")
        (args.out / "compare.md").write_text(table(found))


if __name__ == "__main__":
    main()
