"""The product against the real server of llama.cpp: its OpenAI protocol and its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from product_run import assert_sound, run, workload
from real_engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", ["openai-completions", "openai-chat", "llamacpp"])
@pytest.mark.parametrize(("input_tokens", "n"), [(64, 8), (1000, 2), (3000, 1)])
def test_every_length_is_exact_and_llamacpp_counts_the_same(
    llama_server: Engine, tmp_path: Path, kind: str, input_tokens: int, n: int
) -> None:
    before = llama_server.counters()
    probe = input_tokens < 3000  # a minute of one core each
    finished = run(
        workload(
            kind, input_tokens, 16, load={"users": 2, "requests": n}, prompts={"probe": probe}
        ),
        llama_server.url,
        tmp_path,
    )  # fmt: skip
    assert_sound(finished, n, input_tokens, 16)

    after = llama_server.counters()
    generated = "llamacpp:tokens_predicted_total"
    # One token more: the probe.
    assert after[generated] - before[generated] == n * 16 + probe
    tokens = finished.summary["server"]["tokens"]
    assert finished.summary["server"]["engine"] == "llamacpp"
    assert tokens["output_tokens"] == {"client": n * 16, "server": n * 16, "difference": 0}
    assert tokens["prompt_tokens"]["server"] == n * input_tokens


def test_token_ids_are_sent_and_counted_exactly(llama_server: Engine, tmp_path: Path) -> None:
    content = workload("llamacpp", 200, 8, prompts={"as_token_ids": True})
    assert_sound(run(content, llama_server.url, tmp_path), 8, 200, 8)


def test_real_text_of_many_prompts_is_counted_alike(llama_server: Engine, tmp_path: Path) -> None:
    content = workload("openai-completions", 200, 1, load={"users": 2, "requests": 24})
    finished = run(content, llama_server.url, tmp_path)
    assert finished.summary["prompts"] == {"exact": 24, "compared": 24, "difference": {}}


def test_a_prompt_that_does_not_fit_is_an_http_error_in_its_own_words(
    llama_server: Engine, tmp_path: Path
) -> None:
    content = workload("llamacpp", 5000, 8, load={"requests": 2})
    content["prompts"]["probe"] = False
    finished = run(content, llama_server.url, tmp_path)
    assert finished.code != 0
    assert finished.summary["requests"]["by_outcome"] == {"http_error": 2}
    assert "context" in finished.requests[0]["error"]
