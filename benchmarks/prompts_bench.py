"""How long does it take to make 50,000 exact prompts? tokenswarm beside other tools' generators.

Writes a table to benchmarks/results. Ours makes all of them;
a peer runs for a while and is extrapolated, which is said. Every tool uses as many cores as it
likes. Run: python -m benchmarks.prompts_bench [--count 50000] [--peers] [--tokenizers llama3_1]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fetch_tokenizers

from benchmarks.publish import circumstances, publish, table
from tokenswarm import tokens, workload
from tokenswarm.prompts import cache, open_source

LENGTHS = (1000, 5000)
PEERS = ("guidellm", "aiperf", "vllm")
_BATCH = 512
_FULL_SHARE = 10  # of the prompts, one in so many where each is recounted: minutes otherwise
_RECOUNTED = 400


def one(tokenizer: str, length: int, chat: bool, verify: str, count: int) -> dict[str, Any]:
    """Make `count` prompts in this process and recount a sample of them one by one."""
    work = workload.parse(json.dumps(_workload(tokenizer, length, chat, verify)))
    began = time.perf_counter()
    source = open_source(work)
    opened = time.perf_counter() - began
    cpu, began = time.process_time(), time.perf_counter()
    kept = []
    with tokens.all_cores():
        for at in range(0, count, _BATCH):
            made = source.prompts(range(at, min(count, at + _BATCH)))
            kept += made[:: max(1, count // _RECOUNTED)]
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "prompts": count,
        "seconds": took,
        "cpu_s": cpu,
        "open_s": opened,
        "peak_mb": peak / 1024,
        "exact": sum(source.count(prompt) == length for prompt in kept),
        "checked": len(kept),
    }


def _workload(tokenizer: str, length: int, chat: bool, verify: str) -> dict[str, Any]:
    path = fetch_tokenizers.path_of(tokenizer)
    return {
        "name": "bench",
        "nonce": "bench",
        "backend": {"kind": "openai-chat" if chat else "openai-completions", "model": "m"},
        "tokenizer": {"source": "hf", "path": str(path)}
        if path
        else {"source": "tiktoken", "path": tokenizer},
        "prompts": {
            "input_tokens": length,
            "output_tokens": 100,
            "options": {"verify": verify},
        },
        "load": {"users": 1, "requests": 1},
    }


def _ran(command: list[str], **environment: str) -> dict[str, Any] | None:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=3600
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{' '.join(command[:4])}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _row(
    tool: str, tokenizer: str, length: int, count: int, found: dict[str, Any]
) -> dict[str, str]:
    scale = count / found["prompts"]
    guess = "" if found["prompts"] == count else "≈ "
    return {
        "tool": tool,
        "tokenizer": tokenizer,
        "tokens": f"{length:,}",
        "seconds": f"{guess}{found['seconds'] * scale:,.0f}",
        "CPU s": f"{guess}{found['cpu_s'] * scale:,.0f}",
        "peak MB": f"{found['peak_mb']:,.0f}",
        "exact": f"{found['exact']} of {found['checked']}",
    }


def main() -> None:
    """Run all cells and publish the table."""
    options = _options()
    if options.cell:
        tokenizer, length, chat, verify, count = json.loads(options.cell)
        print(json.dumps(one(tokenizer, length, chat, verify, count)))
        return
    rows, data = [], []
    about = {
        "what": f"{options.count:,} prompts; ≈ extrapolated: from a tenth where each is "
        f"recounted, from {options.seconds:.0f} s of a peer's work",
        **circumstances(),
    }
    for tokenizer in options.tokenizers:
        path = fetch_tokenizers.path_of(tokenizer)
        for length in LENGTHS:
            for name, chat, verify in (
                ("tokenswarm", False, "sampled"),
                ("tokenswarm, each recounted in full", False, "full"),
                ("tokenswarm, chat", True, "sampled"),
            ):
                if path is None and chat:
                    continue
                count = options.count // (_FULL_SHARE if verify == "full" else 1)
                cell = json.dumps([tokenizer, length, chat, verify, count])
                found = _ran([sys.executable, "-m", "benchmarks.prompts_bench", "--cell", cell])
                if found is not None:
                    rows.append(_row(name, tokenizer, length, options.count, found))
                    data.append({**rows[-1], **found})
                    print(rows[-1], flush=True)
            for peer in PEERS if options.peers and path is not None else ():
                python = cache.folder() / "venvs" / peer / "bin" / "python"
                script = str(Path(__file__).with_name("prompts_peers.py"))
                command = [str(python), script, peer, str(path), str(length), str(options.seconds)]
                found = _ran(command) if python.exists() else None
                if found is not None:
                    rows.append(_row(peer, tokenizer, length, options.count, found))
                    data.append({**rows[-1], **found})
                    print(rows[-1], flush=True)
            publish("prompts", about, data, table(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="prompts to make")
    parser.add_argument("--peers", action="store_true", help="run the peers' generators too")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a peer runs")
    parser.add_argument("--tokenizers", nargs="+", default=["llama3_1", "qwen3", "cl100k_base"])
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
