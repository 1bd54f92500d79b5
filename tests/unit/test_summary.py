from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hand_made import MS, T0, S, objectives, record, run, worker, workload

from exporters import summary
from exporters.request_log import line
from tokenswarm import figures
from tokenswarm.measure import METRICS
from tokenswarm.records import BadInput, Outcome, Record
from tokenswarm.run import Run, StageWindow
from tokenswarm.workload_hardware import Hardware


def build(found: Run) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(summary.to_json(summary.build(found)))
    return made


def spread(n: int = 1000, **over: Any) -> list[Record]:
    """Requests evenly over the measured 20 s; TTFT 1, 2, ... n ms in no order of time."""
    return [record(k, due_s=10 + k * 19 / n, ttft_ms=1 + (k * 7919) % n, **over) for k in range(n)]


def test_the_keys_are_those_of_the_contract() -> None:
    got = build(run(worker(0, *spread(100))))
    assert got["schema"] == 1
    assert {"schema", "run", "valid", "invalid_reasons", "warnings", "window", "requests",
            "tokens", "makespan_s", "throughput", "metrics", "slo", "probe", "prompts",
            "generator", "stages", "cost", "utilization"} <= set(got)  # fmt: skip
    assert {"id", "name", "started", "ended", "host", "backend", "model", "tokenizer", "seed",
            "workers", "versions"} <= set(got["run"])  # fmt: skip
    assert list(got["metrics"]) == list(METRICS)
    for figure in got["metrics"].values():
        assert list(figure) == ["count", "mean", "min", "max", "p1", "p10", "p50", "p90", "p95",
                                 "p99", "p999", "ci95"]  # fmt: skip


def test_counts_cover_the_whole_run_and_metrics_the_measured_stages() -> None:
    warm = [record(5000 + k, stage=0, due_s=k, ttft_ms=9000) for k in range(10)]
    bad = [record(6000 + k, Outcome.HTTP_ERROR, error="500") for k in range(2)]
    w0, w1 = worker(0, *spread(1000)[::2], *warm), worker(1, *spread(1000)[1::2], *bad)
    w0.snapshot.stage(1).dropped, w1.snapshot.stage(1).lost = 3, 4
    got = build(run(w0, w1, worker(None, state="ready")))
    assert got["requests"] == {
        "due": 1019, "sent": 1012, "ok": 1010, "failed": 2, "dropped": 3, "lost": 4,
        "by_outcome": {"http_error": 2, "ok": 1010, "lost": 4},
    }  # fmt: skip
    assert got["tokens"] == {"prompt": 101_200, "output": 11_110}
    ttft = got["metrics"]["ttft_s"]
    assert ttft["count"] == 1000
    assert (ttft["min"], ttft["max"], ttft["mean"]) == (0.001, 1.0, 0.5005)
    assert ttft["p50"] == pytest.approx(0.5, rel=1e-3)
    assert ttft["p99"] == pytest.approx(0.99, rel=1e-3)
    assert got["metrics"]["itl_s"]["count"] == 10_000
    assert got["metrics"]["output_tokens"]["p50"] == 11
    assert got["metrics"]["tokens_per_s_per_user"]["p50"] == pytest.approx(50, rel=1e-3)
    assert got["slo"]["error_ratio"] == (2 + 3) / 1009
    assert got["run"]["workers"] == 2
    assert got["errors"] == [{"outcome": "http_error", "error": "500", "count": 2}]


@pytest.mark.parametrize(
    ("n", "null", "weak"),
    [
        (1, ["p1", "p10", "p50", "p90", "p95", "p99", "p999"], []),
        (9, ["p90", "p95", "p99", "p999"], ["p1", "p10", "p50"]),
        (10, ["p95", "p99", "p999"], ["p1", "p10", "p50", "p90"]),
        (99, ["p99", "p999"], ["p90", "p95"]),
        (100, ["p999"], ["p95", "p99"]),
        (999, ["p999"], ["p99"]),
        (1000, [], ["p999"]),
        (10_000, [], []),
    ],
)
def test_percentiles_without_values_beyond_are_null_and_those_with_few_weak(
    n: int, null: list[str], weak: list[str]
) -> None:
    found = run(worker(0, record(tokens=1)))
    found.workers["w0"].snapshot.stage(1).histograms["ttft_s"].record(100 * MS, n - 1)
    figure = build(found)["metrics"]["ttft_s"]
    assert figure["count"] == n
    assert {p for p in figures.PERMILLE if figure[p] is None} == set(null)
    assert figures.weak_percentiles({"ttft_s": figure}) == []  # all the same: nothing is uncertain
    named = figures.weak_percentiles({"ttft_s": {**figure, "max": 0.2}})
    assert named == ([f"{' '.join(weak)} of ttft_s (n = {n})"] if weak else [])


def test_throughput_counts_what_came_inside_the_window() -> None:
    # due at 29.5 s: tokens from 29.6 on, so only part of them before the window's end at 30 s
    late = record(1, due_s=29.5, tokens=101, itl_ms=10)
    early = record(2, stage=0, due_s=9.85, tokens=11, itl_ms=20)  # 9.95 to 10.15 s
    got = build(run(worker(0, late, early)))
    assert got["window"] == {"start": T0 / S + 10, "end": T0 / S + 30, "seconds": 20.0}
    rates = got["throughput"]
    assert rates["output_tokens_per_s"] == (40 + 8) / 20
    assert rates["requests_per_s"] == 1 / 20
    assert rates["total_tokens_per_s"] == (48 + 100) / 20
    assert rates["output_chars_per_s"] == 4 * 48 / 20
    assert rates["output_tokens_per_s_per_gpu"] is None
    warmup = got["stages"][0]["throughput"]
    assert warmup["output_tokens_per_s"] == 3 / 10


def test_an_unknown_window_gives_no_rates() -> None:
    found = run(worker(0, record()))
    found.stages[1].end_s = None
    got = build(found)
    assert got["window"] == {"start": None, "end": None, "seconds": None}
    assert set(got["throughput"].values()) == {None}


def test_stages_carry_the_same_figures() -> None:
    got = build(run(worker(0, *spread(100), record(999, stage=0, due_s=1.0))))
    warmup, main = got["stages"]
    assert (warmup["name"], warmup["warmup"], warmup["users"]) == ("warmup", True, 2)
    assert (warmup["requests"]["due"], main["requests"]["due"]) == (1, 100)
    assert main["metrics"]["ttft_s"]["count"] == 100
    assert {"window", "requests", "tokens", "throughput", "metrics", "slo"} <= set(main)


def test_makespan_is_first_sent_to_last_end() -> None:
    first, last = record(0, stage=0, due_s=1.5), record(1, due_s=29.0)
    assert build(run(worker(0, first), worker(1, last)))["makespan_s"] == pytest.approx(27.801)
    assert build(run(worker(0)))["makespan_s"] is None


def test_goodput_in_open_loop_and_only_attainment_in_closed_loop() -> None:
    slo = {"ttft": "<2s"}
    w = worker(0, *spread(100))
    w.snapshot.stage(1).good, w.snapshot.stage(1).dropped = 90, 20
    opened = build(run(w, mode="open", objectives=objectives(slo, "open")))["slo"]
    assert (opened["goodput_per_s"], opened["attainment"]) == (4.5, 0.75)
    closed = build(run(w, objectives=objectives(slo)))["slo"]
    assert (closed["goodput_per_s"], closed["attainment"]) == (None, 0.75)
    without = build(run(w, mode="open"))["slo"]
    assert (without["goodput_per_s"], without["attainment"]) == (None, None)


def test_checks_say_what_was_wanted_and_what_came() -> None:
    slo = {"p90(ttft)": "<2s", "main: p50(tpot)": "<5ms", "p999(ttft)": "<1s"}
    got = build(run(worker(0, *spread(100)), objectives=objectives(slo)))
    checks = {c["key"]: c for c in got["slo"]["checks"]}
    assert list(checks) == [*slo, "error_ratio", "ok_requests"]
    assert checks["p90(ttft)"]["passed"] is True
    assert checks["p90(ttft)"]["actual"] == pytest.approx(0.09, rel=1e-3)
    assert checks["main: p50(tpot)"]["passed"] is False
    assert (checks["main: p50(tpot)"]["metric"], checks["main: p50(tpot)"]["bound"]) == (
        "tpot_s", 0.005,
    )  # fmt: skip
    assert checks["p999(ttft)"]["passed"] is None
    assert got["slo"]["passed"] is False
    assert got["valid"] is False
    assert got["invalid_reasons"][0]["code"] == "insufficient_samples"


def test_generator_health_of_each_worker() -> None:
    w = worker(0, *spread(10))
    w.snapshot.health.cpu_max = 0.42
    w.snapshot.health.lag.record(2 * MS, 100)
    w.snapshot.stage(1).coalesced_reads, w.snapshot.stage(1).unstamped_reads = 11, 22
    got = build(run(w, worker(1, state="lost")))["generator"]["workers"]
    assert (got[0]["id"], got[0]["cpu"], got[0]["lost"]) == ("w0", 0.42, False)
    assert got[0]["loop_lag_p99_s"] == pytest.approx(0.002, rel=1e-3)
    assert (got[0]["coalesced_share"], got[0]["kernel_stamp_share"]) == (0.1, 0.8)
    assert (got[1]["lost"], got[1]["coalesced_share"], got[1]["loop_lag_p99_s"]) == (
        True, None, None,
    )  # fmt: skip


def test_prompts_compared() -> None:
    rs = [record(0), record(1, prompt_tokens=98), record(2, prompt_tokens=98)]
    assert build(run(worker(0, *rs)))["prompts"] == {
        "exact": 1, "compared": 3, "difference": {"-2": 2},
    }  # fmt: skip


def test_price_of_a_million_tokens() -> None:
    # 100 requests of 11 tokens in 20 s: 55 output tokens/s; 100 prompt tokens each: 500/s
    hardware = Hardware(gpu="L4", count=2, usd_per_hour=36.0, utilization=0.5)
    got = build(run(worker(0, *spread(100)), workload=workload(hardware=hardware)))
    assert got["throughput"]["output_tokens_per_s_per_gpu"] == 27.5
    assert got["cost"] == {
        "usd_per_hour": 36.0,
        "utilization": 0.5,
        "usd_per_million_input_tokens": pytest.approx(40.0),
        "usd_per_million_output_tokens": pytest.approx(363.636, rel=1e-5),
        "usd_per_million_total_tokens": pytest.approx(36.036, rel=1e-4),
    }
    assert got["utilization"] is None


def test_no_price_without_hardware() -> None:
    assert build(run(worker(0, *spread(10))))["cost"] is None


SEVEN_BILLION = {"parameters": 7e9, "kv_bytes_per_token": 500_000}


def hardware(**over: Any) -> Any:
    facts = {"peak_tflops": 312, "memory_bandwidth_gb_per_s": 2000, "model": SEVEN_BILLION}
    # unchecked, as a workload of an older version may be
    return workload(hardware=Hardware.model_construct(**{**facts, **over}))


def test_utilization_where_the_model_is_described(tmp_path: Path) -> None:
    # one request: tokens from 10.1 to 24.1 s, one every 14 ms: 0.7 sequences of 20 s on average,
    # which hold the prompt of 100 and half of the answer of 1,001
    one = record(tokens=1001, itl_ms=14)
    write_requests(tmp_path, [one])
    got = build(run(worker(0, *[one] * 20), out=tmp_path, workload=hardware()))["utilization"]
    context = 0.7 * (100 + 1001 / 2)
    assert got["inputs"]["batch"] == pytest.approx(0.7)
    assert got["inputs"]["kv_cache_bytes"] == pytest.approx(context * 500_000)
    assert got["mbu"] == pytest.approx((14e9 + context * 500_000) / 0.014 / 2e12, rel=1e-3)


def test_a_cache_that_is_not_known_is_said_and_shape_keys_beside_parameters_tell_it() -> None:
    def built(**shape: Any) -> dict[str, Any]:
        one = record(tokens=1001, itl_ms=10)
        described = hardware(model={"parameters": 7e9, **shape})
        return build(run(worker(0, *[one] * 20), workload=described))

    known = built(num_hidden_layers=32, num_key_value_heads=8, head_dim=128)
    assert known["utilization"]["inputs"]["kv_bytes_per_token"] == 131_072
    cache = 10 * 600.5 * 131_072
    assert known["utilization"]["inputs"]["kv_cache_bytes"] == pytest.approx(cache, rel=1e-3)
    assert not [text for text in known["warnings"] if "KV cache" in text]
    unknown = built(num_hidden_layers=32)
    assert unknown["utilization"]["mbu"] < known["utilization"]["mbu"]
    assert "the size of the KV cache is not known, so MBU counts" in unknown["warnings"][-1]


def test_without_a_request_log_utilization_follows_from_the_means() -> None:
    one = record(tokens=1001, itl_ms=10)  # 20 of them in 20 s, each 10 s from first to last token
    made = build(run(worker(0, *[one] * 20), workload=hardware()))
    assert made["throughput"]["requests_per_s"] == 1
    assert made["utilization"]["inputs"]["batch"] == pytest.approx(10, rel=1e-3)
    cache = made["utilization"]["inputs"]["kv_cache_bytes"]
    assert cache == pytest.approx(10 * 600.5 * 500_000, rel=1e-3)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"memory_bandwidth_gb_per_s": None}, "hardware.model: of no use without hardware.gpu"),
        ({"memory_bandwidth_gb_per_s": None, "gpu": "H100-SMX"}, "unknown GPU 'H100-SMX'"),
        ({"model": {"weight_bits": 8}}, "hardware.model: give `parameters`"),
    ],
)
def test_hardware_that_cannot_be_reckoned_with_is_refused_before_the_load(
    over: dict[str, Any], words: str
) -> None:
    found = run(worker(0, *spread(30)), workload=hardware(**over))
    with pytest.raises(BadInput, match=words):
        summary.Summary().start(found)
    made = build(found)  # a folder whose report is built again
    assert made["utilization"] is None
    assert words in made["warnings"][-1]


def write_requests(out: Path, records: list[Record], itl: bool = False) -> None:
    stages = ["warmup", "main", "second"]
    (out / "requests.jsonl").write_bytes(b"".join(line(r, "w0", stages, "m", itl) for r in records))


def test_intervals_come_from_the_requests_of_the_folder(tmp_path: Path) -> None:
    rng = random.Random(3)
    rs = [
        record(k, due_s=10 + k * 0.04, ttft_ms=rng.gauss(100, 10), itl_ms=rng.gauss(20, 2))
        for k in range(400)
    ]
    warm = [record(9000 + k, stage=0, due_s=k, ttft_ms=5000) for k in range(50)]
    bad = [record(8000 + k, Outcome.HTTP_ERROR) for k in range(50)]
    write_requests(tmp_path, [*warm, *rs, *bad])
    got = build(run(worker(0, *rs), out=tmp_path))["metrics"]
    low, high = got["ttft_s"]["ci95"]["mean"]
    # the mean of 400 values of stddev 10 ms has a standard error of 0.5 ms
    assert low < 0.1 < high
    assert 0.0014 < high - low < 0.0026
    assert list(got["ttft_s"]["ci95"]) == ["mean", "p50", "p90", "p99"]
    assert got["ttft_s"]["ci95"]["p90"][0] < got["ttft_s"]["p90"] < got["ttft_s"]["ci95"]["p90"][1]
    itl = got["itl_s"]["ci95"]
    assert itl["mean"][0] < 0.02 < itl["mean"][1]
    assert (itl["p50"], itl["p90"], itl["p99"]) == (None, None, None)
    assert got["tokens_per_s_per_user"]["ci95"]["mean"][0] > 45
    assert got["connect_s"]["ci95"] is None


def test_percentiles_of_itl_have_intervals_by_request_where_every_gap_was_recorded(
    tmp_path: Path,
) -> None:
    rng = random.Random(3)
    rs = [record(k, due_s=10 + k * 0.04, itl_ms=rng.gauss(20, 2)) for k in range(400)]
    write_requests(tmp_path, rs, itl=True)
    got = build(run(worker(0, *rs), out=tmp_path))["metrics"]["itl_s"]
    low, high = got["ci95"]["p50"]
    assert low < got["p50"] < high
    # the median of 400 requests has a standard error of 1.25 * 2 ms / 20 = 0.125 ms; of 4,000
    # gaps, if each were independent, it would be 0.04 ms
    assert 0.00035 < high - low < 0.00065
    for name in ("p90", "p99"):
        assert got["ci95"][name][0] < got[name] < got["ci95"][name][1]


def two_stages(out: Path, **over: Any) -> dict[str, Any]:
    """The summary of a warm-up and two measured stages, the second slower."""
    rng = random.Random(4)
    rs = [
        record(k, stage=s, due_s=10 * s + k * 0.05, ttft_ms=rng.gauss(100 * s, 5),
               itl_ms=rng.gauss(20 * s, 1))
        for s in (0, 1, 2) for k in range(200)
    ]  # fmt: skip
    write_requests(out, rs, itl=True)
    stages = [StageWindow("warmup", True, 0.0, 10.0), StageWindow("main", False, 10.0, 20.0),
              StageWindow("second", False, 20.0, 30.0)]  # fmt: skip
    return build(run(worker(0, *rs), out=out, stages=stages, **over))


def test_measured_stages_have_intervals_of_their_own(tmp_path: Path) -> None:
    warm, main, second = two_stages(tmp_path)["stages"]
    assert all(figure["ci95"] is None for figure in warm["metrics"].values())
    for stage, ttft, itl in ((main, 0.1, 0.02), (second, 0.2, 0.04)):
        # standard errors: 5 ms / sqrt(200) = 0.35 ms, 1.25 * 1 ms / sqrt(200) = 0.09 ms
        low, high = stage["metrics"]["ttft_s"]["ci95"]["mean"]
        assert ttft - 0.0015 < low < stage["metrics"]["ttft_s"]["mean"] < high < ttft + 0.0015
        low, high = stage["metrics"]["itl_s"]["ci95"]["p50"]
        assert itl - 0.0005 < low < stage["metrics"]["itl_s"]["p50"] < high < itl + 0.0005


def test_the_only_measured_stage_has_the_intervals_of_the_run(tmp_path: Path) -> None:
    rs = spread(100)
    write_requests(tmp_path, rs)
    got = build(run(worker(0, *rs), out=tmp_path))
    assert got["stages"][1]["metrics"]["ttft_s"]["ci95"] == got["metrics"]["ttft_s"]["ci95"]
    assert got["metrics"]["ttft_s"]["ci95"]["mean"] is not None


def test_too_many_stages_have_no_intervals_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporters.intervals.MOST_STAGES", 1)
    got = two_stages(tmp_path)
    assert got["stages"][1]["metrics"]["ttft_s"]["ci95"] is None
    assert got["metrics"]["ttft_s"]["ci95"]["mean"] is not None
    assert "no 95 % intervals for single stages: there are 2, more than 1" in got["warnings"]


def test_stages_that_became_warm_up_are_in_no_interval(tmp_path: Path) -> None:
    rs = [record(k, stage=s, due_s=10 * s + k * 0.05, ttft_ms=100 * s)
          for s in (1, 2) for k in range(100)]  # fmt: skip
    write_requests(tmp_path, rs)
    stages = [StageWindow("warmup", True), StageWindow("main", True),  # a slice left out at the end
              StageWindow("second", False, 20.0, 30.0)]  # fmt: skip
    got = build(run(worker(0, *rs), out=tmp_path, stages=stages))["metrics"]["ttft_s"]
    assert (got["mean"], got["ci95"]["mean"]) == (0.2, pytest.approx([0.2, 0.2]))


def test_too_few_requests_have_no_interval(tmp_path: Path) -> None:
    rs = spread(19)
    write_requests(tmp_path, rs)
    assert build(run(worker(0, *rs), out=tmp_path))["metrics"]["ttft_s"]["ci95"] is None


def test_a_request_log_with_holes_gives_no_interval(tmp_path: Path) -> None:
    rs = spread(100)
    write_requests(tmp_path, rs[:60])
    got = build(run(worker(0, *rs), out=tmp_path))
    assert got["metrics"]["ttft_s"]["ci95"] is None
    assert got["warnings"][-1].endswith("requests.jsonl holds 60 of 100 measured requests")


def test_no_request_log_no_interval(tmp_path: Path) -> None:
    assert build(run(worker(0, *spread(50)), out=tmp_path))["metrics"]["ttft_s"]["ci95"] is None


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    found = run(worker(0, *spread(20)), out=tmp_path)
    made = summary.build(found)
    exporter = summary.Summary()
    exporter.start(found)
    exporter.interval(found)
    exporter.finish(found, made)
    exporter.close()
    assert json.loads((tmp_path / "summary.json").read_bytes()) == json.loads(summary.to_json(made))
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_an_unwritable_folder_is_said_and_does_not_raise(tmp_path: Path) -> None:
    found = run(worker(0, *spread(20)), out=tmp_path / "gone")
    made = summary.build(found)
    summary.Summary().finish(found, made)
    assert made["warnings"][-1] == (
        f"cannot write {tmp_path / 'gone' / 'summary.json'}: No such file or directory"
    )


def test_an_empty_run_has_a_summary() -> None:
    got = build(run())
    assert got["requests"]["due"] == 0
    assert got["metrics"]["ttft_s"]["mean"] is None
    assert got["slo"]["passed"] is False


def test_nothing_is_not_a_number_in_the_file() -> None:
    text = summary.to_json(summary.build(run(worker(0, *spread(3))))).decode()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_intervals_of_many_requests_take_bounded_time(tmp_path: Path) -> None:
    one = line(record(5), "w0", ["warmup", "main"], "m", False)
    (tmp_path / "requests.jsonl").write_bytes(one * 20_000)
    start = time.perf_counter()
    build(run(worker(0, record(5)), out=tmp_path))
    assert time.perf_counter() - start < 5  # about 0.5 s on the machine where it was written
