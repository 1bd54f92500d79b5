"""The product against the real server of llama.cpp: its OpenAI protocol and its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from product_run import assert_sound, run, workload
from real_engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", ["openai-completions", "openai-chat", "llamacpp"])
@pytest.mark.parametrize(("input_tokens", "n"), [(64, 12), (1000, 5), (3000, 3)])
def test_every_length_is_exact_and_llamacpp_counts_the_same(
    llama_server: Engine, tmp_path: Path, kind: str, input_tokens: int, n: int
) -> None:
    before = llama_server.counters()
    finished = run(
        workload(kind, input_tokens, 16, load={"users": 2, "requests": n}),
        llama_server.url,
        tmp_path,
    )
    assert_sound(finished, n, input_tokens, 16)

    after = llama_server.counters()
    generated = "llamacpp:tokens_predicted_total"
    # One token more: the probe.
    assert after[generated] - before[generated] == n * 16 + 1
