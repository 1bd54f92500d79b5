import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import run_folder

from tokenswarm import economics, economics_shape
from tokenswarm.economics import Hardware, Model
from tokenswarm.economics_gpus import GPUS
from tokenswarm.records import BadInput
from tokenswarm.run_files import read_requests

LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
LLAMA_70B = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
             "num_key_value_heads": 8, "intermediate_size": 28672,
             "vocab_size": 128256}  # fmt: skip
MIXTRAL = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
           "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip


def test_the_worked_example_of_mbu_is_half():
    """7B parameters of 16 bits at 14 ms a token move 1 TB/s, half of 2 TB/s."""
    assert economics.mbu(7e9 * 2, 0, 0.014, 2e12) == pytest.approx(0.5)


def test_mbu_counts_the_cache():
    assert economics.mbu(14e9, 14e9, 0.014, 2e12) == pytest.approx(1.0)


def test_mfu_is_two_operations_a_parameter_and_token():
    assert economics.mfu(2 * 7e9 * 1000, 1.0, 312e12) == pytest.approx(0.0449, abs=1e-4)


@pytest.mark.parametrize(
    ("usd", "tokens", "utilization", "price"),
    [
        (98.0, 10_000, 1.0, 2.7222),
        (98.0, 10_000, 0.7, 3.8889),
        (3.6, 1000, 1.0, 1.0),
        (98.0, 0, 1.0, None),
        (98.0, None, 1.0, None),
    ],
)
def test_price_of_a_million_tokens(usd, tokens, utilization, price):
    found = economics.price_per_million(usd, tokens, utilization)
    assert found == (None if price is None else pytest.approx(price, abs=1e-4))


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [
        (LLAMA_7B, 6_738_415_616, 2 * 32 * 4096 * 2),
        (LLAMA_70B, 70_553_706_496, 2 * 80 * 8 * 128 * 2),
        (MIXTRAL, 46_702_792_704, 2 * 32 * 8 * 128 * 2),
    ],
)
def test_published_sizes_follow_from_the_config(config, parameters, kv_bytes):
    found = economics_shape.from_config(config)
    assert found["parameters"] == parameters
    assert found["kv_bytes"] == kv_bytes


def test_gpt2_is_close_to_its_published_size():
    config = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    assert economics_shape.from_config(config)["parameters"] == pytest.approx(124.4e6, rel=0.01)


def test_latent_attention_has_a_small_cache_and_needs_its_parameters_given(tmp_path):
    config = {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
              "kv_lora_rank": 512, "qk_rope_head_dim": 64}  # fmt: skip
    assert economics_shape.from_config(config) == {"kv_bytes": 61 * 576 * 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="give `parameters`"):
        economics.model({"config": str(tmp_path)})
    found = economics.model({"config": str(tmp_path), "parameters": 671e9})
    assert (found.parameters, found.kv_bytes) == (671e9, 61 * 576 * 2)


def test_a_mixture_of_experts_computes_with_few_and_reads_more_the_larger_the_batch(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    found = economics.model({"config": str(tmp_path / "config.json")})
    assert found.active == pytest.approx(12.88e9, rel=0.001)
    everything = 46_702_792_704 * 2
    assert found.bytes_read(1) == pytest.approx(12.88e9 * 2, rel=0.001)
    assert found.bytes_read(4) == pytest.approx(everything * (1 - 0.9656 * 0.75**4), rel=0.001)
    assert found.bytes_read(1000) == pytest.approx(everything)


def test_numbers_hold_over_the_config_and_bits_over_both(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_7B))
    found = economics.model({"config": str(tmp_path), "parameters": 7e9, "weight_bits": 4,
                             "kv_bits": 8})  # fmt: skip
    assert found == Model(7e9, 0.5, 2 * 32 * 4096)


@pytest.mark.parametrize(
    ("shape", "kv_bytes"),
    [
        ({"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128}, 131_072),
        ({"n_layer": 32, "n_head": 8, "n_embd": 1024}, 131_072),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 61 * 576 * 2),
        ({"num_hidden_layers": 32, "num_key_value_heads": 8}, 0),
        ({"num_key_value_heads": 8, "head_dim": 128}, 0),
    ],
)
def test_shape_keys_beside_parameters_give_the_cache(shape, kv_bytes):
    spec = {"parameters": 8e9, **shape}
    found = economics.model(spec)
    assert (found.parameters, found.kv_bytes) == (8e9, kv_bytes)
    assert len(economics.unknowns(found, {"model": spec})) == (kv_bytes == 0)


def test_shape_keys_alone_give_the_parameters_and_hold_over_the_config(tmp_path):
    assert economics.model(LLAMA_7B).parameters == 6_738_415_616
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_7B, "num_hidden_layers": 2}))
    assert economics.model({"config": str(tmp_path), "n_layer": 32}) == economics.model(LLAMA_7B)


def test_parameters_are_not_guessed_from_half_a_shape():
    shape = {k: v for k, v in LLAMA_7B.items() if k != "vocab_size"}
    assert economics_shape.from_config(shape) == {"kv_bytes": 2 * 32 * 4096 * 2}


def test_experts_of_unknown_share_all_count_and_that_is_said():
    spec = {"parameters": 47e9, "num_local_experts": 8, "kv_bytes_per_token": 131_072}
    found = economics.model(spec)
    assert found.active == 47e9
    (text,) = economics.unknowns(found, {"model": spec})
    assert "which part of the parameters is in experts is not known" in text


def test_a_config_with_a_shape_that_is_no_number_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_7B, "num_hidden_layers": [1]}))
    with pytest.raises(BadInput, match=r"num_hidden_layers must be a number, got \[1\]"):
        economics.model({"config": str(tmp_path)})


def test_an_empty_description_is_no_model():
    assert economics.model({}) is None
    assert economics.hardware({"count": 8, "usd_per_hour": 98.0}) is None


def test_hardware_from_the_table():
    found = economics.hardware({"gpu": "h100-sxm", "count": 8, "model": {"tensor_parallel": 4}})
    assert found == Hardware("h100-sxm", 8, 3350e9, 989.4e12, 4, 80e9)
    assert found.replicas == 2


def test_eight_bit_weights_compute_at_eight_bits():
    found = economics.hardware({"gpu": "L4", "model": {"weight_bits": 8}})
    assert found.flops == 242e12


def test_own_numbers_need_no_table():
    found = economics.hardware({"gpu": "TPU", "peak_tflops": 197, "memory_bandwidth_gb_per_s": 820})
    assert (found.flops, found.bandwidth, found.replica) == (197e12, 820e9, 1)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"gpu": "H100-SMX"}, "unknown GPU 'H100-SMX'.*Did you mean 'H100-SXM'"),
        ({"gpu": "L4", "count": 3, "model": {"tensor_parallel": 2}}, "3 GPUs cannot hold copies"),
    ],
)
def test_bad_hardware(spec, text):
    with pytest.raises(BadInput, match=text):
        economics.hardware(spec)


def test_a_config_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(BadInput, match=r"hardware\.model\.config: .*none: cannot be read"):
        economics.model({"config": str(tmp_path / "none")})


def test_the_table_is_plausible():
    """Operations a byte: between 30 and 600 at 16 bits; 8 bits are twice as fast."""
    for name, gpu in GPUS.items():
        assert 30 < gpu.tflops_16 * 1e3 / gpu.bandwidth_gb_per_s < 600, name
        assert gpu.tflops_8 is None or gpu.tflops_8 == pytest.approx(2 * gpu.tflops_16, rel=0.02)
        assert gpu.source


def test_running_sequences_are_averaged_over_the_window(tmp_path):
    """Two requests of 100 + 50 tokens, each decoding for half of a window of 20 s."""
    rows = []
    for first in (0.0, 10.0):
        row = next(iter(run_folder.rows(n=1, error_share=0)))
        row.update(first_token=first, last_token=first + 10, prompt_tokens=100, output_tokens=50)
        rows.append(row)
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    requests = read_requests(path)
    assert economics.running(requests, {"start": 0.0, "end": 20.0}) == pytest.approx(
        {"sequences": 1.0, "context_tokens": 125.0}
    )
    assert economics.running(requests, {"start": 5.0, "end": 10.0}) == pytest.approx(
        {"sequences": 1.0, "context_tokens": 137.5}
    )
    assert economics.running(requests, {"start": None, "end": None}) == {}


def test_utilization_shows_its_inputs():
    summary = {
        "metrics": {"tpot_s": {"p50": 0.014}, "ttft_s": {"p50": 0.5},
                    "prompt_tokens": {"p50": 1000}},
        "throughput": {"total_tokens_per_s": 2000},
    }  # fmt: skip
    hardware = Hardware("x", 2, 2e12, 312e12, 1)
    model = Model(7e9, 2.0, 524_288)
    found = economics.utilization(
        summary, hardware, model, {"sequences": 8.0, "context_tokens": 8000.0}
    )
    cache = 4000 * 524_288  # each of two copies holds half of the context
    assert found["mbu"] == pytest.approx((14e9 + cache) / 0.014 / 2e12)
    assert found["mfu"] == pytest.approx(2 * 7e9 * 2000 / 624e12)
    assert found["mfu_prefill"] == pytest.approx(2 * 7e9 * 1000 / 0.5 / 312e12)
    assert found["inputs"]["batch"] == 4
    assert found["inputs"]["kv_cache_bytes"] == cache


@pytest.mark.parametrize(
    ("hardware", "model"),
    [
        (Hardware("x", 4, 2e12, 312e12, 2, 80e9), Model(7e9, 2.0, 524_288)),
        (Hardware("y", 1, 3e11, 121e12, 1), Model(47e9, 0.5, 131_072, 0.96, 8, 2)),
    ],
)
def test_a_roof_follows_from_the_inputs_in_a_summary(hardware, model):
    running = {"sequences": 12.0, "context_tokens": 9000.0}
    found = economics.utilization({}, hardware, model, running)
    assert economics.roof_of(json.loads(json.dumps(found["inputs"]))) == (hardware, model, 750.0)


def test_inputs_of_older_summaries_give_no_roof():
    found = economics.utilization({}, Hardware("x", 1, 2e12, 3e14, 1), Model(7e9, 2, 0), {})
    assert economics.roof_of(found["inputs"])[2] == 0  # nothing ran: no context
    del found["inputs"]["gpus_per_replica"]
    assert economics.roof_of(found["inputs"]) is None
    assert economics.roof_of({}) is None


def test_utilization_of_a_run_without_tokens_is_unknown():
    found = economics.utilization({}, Hardware("x", 1, 2e12, 3e14, 1), Model(7e9, 2, 0), {})
    assert (found["mbu"], found["mfu"], found["mfu_prefill"]) == (None, None, None)


def test_the_roofs_meet_at_the_ridge():
    hardware, model = Hardware("x", 1, 2e12, 312e12, 1), Model(7e9, 2.0, 0.0)
    one, ridge = economics.roofline(hardware, model, 0, [1, 156])
    assert one.by_bandwidth == pytest.approx(2e12 / 14e9)
    assert one.best == one.by_bandwidth
    assert ridge.by_bandwidth == pytest.approx(ridge.by_compute)


def test_the_cache_bends_the_roof_and_memory_ends_it():
    hardware, model = Hardware("x", 1, 2e12, 312e12, 1, 80e9), Model(7e9, 2.0, 524_288)
    plain, bent = (economics.roofline(hardware, model, c, [64])[0] for c in (0, 2000))
    assert bent.by_bandwidth < 0.2 * plain.by_bandwidth
    assert economics.largest_batch(hardware, model, 2000) == pytest.approx(62.9, abs=0.1)
    assert economics.largest_batch(hardware, Model(70e9, 2.0, 1.0), 2000) == 0
    assert economics.largest_batch(Hardware("x", 1, 2e12, 3e14, 1), model, 2000) is None


@pytest.mark.parametrize(
    ("price", "speed", "name"),
    [
        (1.0, 90.0, "leader"),
        (9.0, 90.0, "challenger"),
        (1.0, 10.0, "follower"),
        (9.0, 10.0, "laggard"),
        (5.0, 50.0, "leader"),
    ],
)
def test_quadrants(price, speed, name):
    assert economics.quadrant(price, speed, (5.0, 50.0)) == name


def test_quadrants_meet_at_the_medians():
    assert economics.split_of([1, 2, 9], [10, 60, 20]) == (2, 20)


def test_an_answer_of_512_tokens():
    summary = {"metrics": {"ttft_s": {"p50": 0.05}, "tpot_s": {"p50": 0.05}}}
    assert economics.answer_time(summary, 512) == pytest.approx(25.6)
    assert economics.answer_time({}, 512) is None
