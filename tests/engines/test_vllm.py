"""The product against a real vLLM: exact lengths, and its own counters equal to ours.

The probe of a run (one request for one token) is in the server's counters and in none of ours.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from product_run import Finished, assert_sound, run, workload
from real_engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROMPT, GENERATED = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"


def counted(engine: Engine, before: dict[str, float], finished: Finished) -> dict[str, float]:
    """How far vLLM's counters rose in a run, once they have the tokens of the whole run.

    vLLM updates them after an answer is out: they are waited for, at most 10 s.
    """
    wanted = finished.summary["tokens"]["output"]
    deadline = time.monotonic() + 10
    while True:
        now = engine.counters()
        rise = {name: value - before.get(name, 0.0) for name, value in now.items()}
        if rise[GENERATED] >= wanted or time.monotonic() > deadline:
            return rise
        time.sleep(0.2)


def probe_tokens(finished: Finished) -> int:
    """The prompt tokens of the probe, which the server must have counted as we did."""
    probe = finished.summary["probe"]
    counted: int = probe["counted_prompt_tokens"]
    assert counted == probe["expected_prompt_tokens"]
    return counted


@pytest.mark.parametrize("kind", ["openai-completions", "openai-chat"])
@pytest.mark.parametrize(("input_tokens", "n"), [(64, 16), (1000, 5), (3000, 2)])
def test_every_length_is_exact_and_vllm_counts_the_same(
    vllm: Engine, tmp_path: Path, kind: str, input_tokens: int, n: int
) -> None:
    before = vllm.counters()
    probe = input_tokens < 3000  # a minute of one core each
    content = workload(kind, input_tokens, 16, load={"requests": n}, prompts={"probe": probe})
    finished = run(content, vllm.url, tmp_path)
    assert_sound(finished, n, input_tokens, 16)

    rise = counted(vllm, before, finished)
    assert rise[PROMPT] == n * input_tokens + (probe_tokens(finished) if probe else 0)
    assert rise[GENERATED] == n * 16 + probe


def test_streams_past_the_batch_limit_queue_and_are_measured_so(
    vllm: Engine, tmp_path: Path
) -> None:
    n, output_tokens = 48, 48
    before = vllm.counters()
    finished = run(
        workload(
            "openai-completions", 64, output_tokens,
            prompts={"probe": False}, load={"users": n, "requests": n},
        ),
        vllm.url,
        tmp_path,
    )  # fmt: skip
    assert_sound(finished, n, 64, output_tokens)

    rise = counted(vllm, before, finished)
    assert rise[PROMPT] == n * 64
    assert rise[GENERATED] == n * output_tokens
    queued_s = rise["vllm:request_queue_time_seconds_sum"] / n
    theirs_s = rise["vllm:time_to_first_token_seconds_sum"] / n
    ours_s = finished.summary["metrics"]["ttft_s"]["mean"]
    assert queued_s > 0.2, "48 streams on 16 places must wait"
    # A client cannot see a token before the server has it; HTTP and JSON lie between.
    assert theirs_s - 0.005 <= ours_s <= theirs_s * 1.25 + 0.1
    # The last third waited for two batches before it: the slow TTFTs show the queue.
    ttft = finished.summary["metrics"]["ttft_s"]
    assert ttft["p90"] > 3 * ttft["p10"]


def test_prompts_as_token_ids_are_exact(vllm: Engine, tmp_path: Path) -> None:
    before = vllm.counters()
    finished = run(
        workload("openai-completions", 200, 8, prompts={"as_token_ids": True}), vllm.url, tmp_path
    )
    assert_sound(finished, 8, 200, 8)
    assert counted(vllm, before, finished)[PROMPT] == 8 * 200 + probe_tokens(finished)


@pytest.mark.parametrize("kind", ["openai-completions", "openai-chat"])
def test_usage_in_every_chunk_is_read_as_a_running_total(
    vllm: Engine, tmp_path: Path, kind: str
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    content = workload(kind, 64, 24)
    content["backend"]["extra_body"]["stream_options"] = options
    finished = run(content, vllm.url, tmp_path)
    assert_sound(finished, 8, 64, 24)


def prefix_hits(rise: dict[str, float]) -> tuple[float, float]:
    return rise["vllm:prefix_cache_hits_total"], rise["vllm:prefix_cache_queries_total"]


def test_two_runs_of_a_workload_find_nothing_in_the_prefix_cache(
    vllm: Engine, tmp_path: Path
) -> None:
    content = workload("openai-completions", 500, 4, load={"requests": 6})
    before = vllm.counters()
    first = run(content, vllm.url, tmp_path / "first")
    assert_sound(first, 6, 500, 4)
    again = run(content, vllm.url, tmp_path / "again")
    assert_sound(again, 6, 500, 4)

    hits, asked = prefix_hits(counted(vllm, before, again))
    assert asked == 2 * 6 * 500 + probe_tokens(first) + probe_tokens(again)
    assert hits / asked < 0.02


def test_a_shared_prefix_is_found_in_the_prefix_cache(vllm: Engine, tmp_path: Path) -> None:
    n, prefix = 12, 384
    block = int(vllm.label("vllm:cache_config_info", "block_size"))
    content = workload(
        "openai-completions", 500, 4,
        prompts={"shared_prefix_tokens": prefix, "probe": False},
        load={"users": 1, "requests": n},
    )  # fmt: skip
    before = vllm.counters()
    finished = run(content, vllm.url, tmp_path)
    assert_sound(finished, n, 500, 4)

    hits, asked = prefix_hits(counted(vllm, before, finished))
    assert asked == n * 500
    # Whole blocks are shared; the first request finds nothing.
    assert hits == (n - 1) * (prefix // block * block)
