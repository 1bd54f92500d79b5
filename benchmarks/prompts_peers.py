"""Run one tool's own prompt generator, in that tool's environment, for a while.

Started by prompts_bench.py with the Python of the tool's environment; imports nothing of ours.
Prints one JSON line: prompts made, seconds, CPU seconds, peak memory and how many were exact.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any


def guidellm(folder: str, tokens: int) -> Iterator[str]:
    """Faker text, encoded, cut, decoded."""
    from guidellm.data.deserializers.synthetic import SyntheticTextDataset
    from guidellm.schemas.data.deserializers.synthetic import SyntheticTextDataArgs
    from transformers import AutoTokenizer

    config = SyntheticTextDataArgs(prompt_tokens=tokens, output_tokens=100)
    rows = SyntheticTextDataset(config, AutoTokenizer.from_pretrained(folder))
    for row in rows:
        yield _longest_text(row)


def aiperf(folder: str, tokens: int) -> Iterator[str]:
    """Shakespeare, decoded and encoded again until it fits."""
    from aiperf.common import random_generator
    from aiperf.common.tokenizer import Tokenizer
    from aiperf.dataset.generator.prompt import PromptGenerator

    random_generator.init(1)
    generator = PromptGenerator(
        prompts=None, prefix_prompts=None, tokenizer=Tokenizer.from_pretrained(folder)
    )
    while True:
        yield generator.generate(mean=tokens, stddev=0)


def vllm(folder: str, tokens: int) -> Iterator[str]:
    """Vocabulary ids, decoded and encoded again until they fit."""
    # Without it the kernels of a processor that this may not be are loaded, and end the process.
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    from transformers import AutoTokenizer
    from vllm.benchmarks.datasets import RandomDataset

    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = RandomDataset(random_seed=1)
    while True:
        for request in data.sample(tokenizer, 200, input_len=tokens, output_len=100):
            yield request.prompt


def _longest_text(row: Any) -> str:
    """The prompt inside a row, wherever this version keeps it."""
    if isinstance(row, str):
        try:
            return _longest_text(json.loads(row)) if row[:1] in "[{" else row
        except ValueError:
            return row
    if isinstance(row, dict):
        row = list(row.values())
    if isinstance(row, list):
        return max((_longest_text(part) for part in row), key=len, default="")
    return ""


TOOLS: dict[str, Callable[[str, int], Iterator[str]]] = {
    "guidellm": guidellm,
    "aiperf": aiperf,
    "vllm": vllm,
}


def main(tool: str, folder: str, tokens: int, seconds: float) -> None:
    """Make prompts for that long, then count them as a server would."""
    import tokenizers

    made: list[str] = []
    stream = TOOLS[tool](folder, tokens)
    made.append(next(stream))  # loading and first-time work are not counted
    began, cpu = time.perf_counter(), time.process_time()
    number = 0
    while time.perf_counter() - began < seconds:
        made.append(next(stream))
        number += 1
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plain = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    plain.no_truncation()
    sample = made[1:201]
    exact = sum(len(plain.encode(text)) == tokens for text in sample)
    print(
        json.dumps(
            {
                "prompts": number,
                "seconds": took,
                "cpu_s": cpu,
                "peak_mb": peak / 1024,
                "exact": exact,
                "checked": len(sample),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
