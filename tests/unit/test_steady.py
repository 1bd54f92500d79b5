"""How much of a stage is left out, and what becomes of it."""

import json
import random

import pytest
from hand_made import run as hand_made_run
from hand_made import worker

from tokenswarm import workload
from tokenswarm.records import BadInput
from tokenswarm.run import StageWindow
from tokenswarm.steady import SLICES, detect, slice_name, truncation

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed.spool import mark_warmup

HEAD = """
backend: {model: m}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 8, output_tokens: 2}
load: """


def parsed(load, more=""):
    return workload.parse(HEAD + load + "\n" + more)


@pytest.mark.parametrize(
    ("values", "discarded"),
    [
        ([5.0] * 20, 0),
        ([0.0] * 4 + [5.0] * 16, 4),
        ([1.0, 2.0, 4.0] + [5.0, 5.1, 4.9, 5.0] * 4, 3),
        ([float(i) for i in range(20)], None),  # still moving at the end
        ([9.0] + [5.0] * 9, 1),
    ],
)
def test_the_transient_is_cut_off(values, discarded):
    assert truncation(values) == discarded


def test_noise_alone_costs_little():
    """White noise, 300 series: a slice in twenty on average, and a false trend in 1 to 5 %."""
    rng = random.Random(4)
    found = [truncation([rng.gauss(100, 5) for _ in range(SLICES)]) for _ in range(300)]
    settled = [d for d in found if d is not None]
    assert sum(settled) / len(settled) < 0.1 * SLICES
    assert len(found) - len(settled) < 0.05 * len(found)


def test_a_transient_in_noise_is_found():
    rng = random.Random(5)
    found = [
        truncation([rng.gauss(20 * k if k < 5 else 100, 3) for k in range(SLICES)])
        for _ in range(100)
    ]
    assert sum(d is None for d in found) <= 5
    settled = [d for d in found if d is not None]
    assert min(settled) >= 4
    assert sum(d > 7 for d in settled) <= 0.1 * len(settled)


# -- in a workload -----------------------------------------------------------------------------


def test_the_first_measured_stage_is_cut_into_slices():
    load = parsed(
        "{steady_state: true, stages: [{duration: 3s, users: 2, warmup: true}, "
        "{name: main, duration: 10.5s, users: 8}, {duration: 2s, users: 9}]}"
    ).load
    stages = load.resolved_stages()
    assert load.steady_stage == "main"
    assert [s.name for s in stages[1:4]] == ["main.01", "main.02", "main.03"]
    assert len(stages) == 2 + SLICES
    assert {s.users for s in stages[1:-1]} == {8}
    assert sum(s.duration for s in stages[1:-1]) == pytest.approx(10.5)
    assert stages[1].duration == 0.52  # whole buckets of the series of tokens
    assert stages[-1].name == "stage-2"


def test_a_load_without_stages_is_cut_too_and_reads_back():
    work = parsed("{steady_state: true, mode: open, rate_per_s: 5, duration: 20s}")
    again = workload.parse(workload.dump(work))
    assert again == work
    assert [s.name for s in again.load.resolved_stages()][-1] == f"main.{SLICES}"
    assert parsed("{users: 3, duration: 20s}").load.steady_stage is None


@pytest.mark.parametrize(
    "load",
    [
        "{steady_state: true, users: 3, requests: 100}",
        "{steady_state: true, stages: [{users: 3, requests: 100}]}",
        "{steady_state: true, stages: [{duration: 9s, shape: {ramp: {from: 1, to: 5}}}]}",
    ],
)
def test_a_stage_that_cannot_settle_is_refused(load):
    with pytest.raises(BadInput, match="the stage must end by duration and have a level"):
        parsed(load)


def test_an_slo_of_the_stage_that_is_cut_is_refused():
    with pytest.raises(BadInput, match="main"):
        parsed("{steady_state: true, users: 3, duration: 9s}", 'slo: {"main: p90(ttft)": <1s}')


# -- in a run ----------------------------------------------------------------------------------


def made(rates, e2e_s):
    """A run whose slices of one second had these token rates and latencies."""
    found = hand_made_run(worker(0))
    snapshot = found.workers["w0"].snapshot
    found.stages = [StageWindow("warmup", True, 0.0, 2.0)]
    snapshot.stages.clear()
    snapshot.stage(0)
    for k, (rate, seconds) in enumerate(zip(rates, e2e_s, strict=True)):
        found.stages.append(StageWindow(slice_name("main", k + 1), False, 2.0 + k, 3.0 + k))
        if seconds is not None:
            snapshot.stage(k + 1).histogram("e2e_s").record(round(seconds * 1e9))
        snapshot.series.tokens[(2 + k) * 100 + 50] = rate
    return found


def test_slices_before_the_steady_state_become_warmup():
    run = made([10] * 3 + [100] * (SLICES - 3), [1.0] * SLICES)
    found = detect(run, "main")
    assert (found.discarded, found.seconds) == (3, 3.0)
    assert run.window() == (5.0, 2.0 + SLICES)
    assert [w.warmup for w in run.stages[:5]] == [True, True, True, True, False]
    assert found.to_json()["by"] == {"output_tokens_per_s": 3, "e2e_mean_s": 0}


def test_the_later_one_of_both_figures_decides():
    run = made([10] * 3 + [100] * (SLICES - 3), [9.0] * 6 + [1.0] * (SLICES - 6))
    assert detect(run, "main").discarded == 6


def test_a_slice_in_which_nothing_was_asked_is_as_slow_as_the_slowest():
    run = made([100] * SLICES, [7.0, None, None] + [1.0] * (SLICES - 3))
    assert detect(run, "main").discarded == 3


def test_without_a_steady_state_nothing_is_discarded():
    run = made([100] * SLICES, [float(k + 1) for k in range(SLICES)])
    found = detect(run, "main")
    assert (found.discarded, found.to_json()["found"]) == (None, False)
    assert run.window() == (2.0, 2.0 + SLICES)


def test_a_run_that_was_cut_short_is_not_looked_at():
    run = made([100] * SLICES, [1.0] * SLICES)
    run.workers["w0"].snapshot.stages[-1].histograms.clear()
    run._merged = None
    assert detect(run, "main") is None
    assert detect(run, "other") is None


def test_records_say_what_the_summary_counted(tmp_path):
    path = tmp_path / "requests.jsonl"
    rows = [{"stage": f"main.{k:02d}", "error": '"stage":"main.01",', "warmup": False}
            for k in (1, 2, 11)]  # fmt: skip
    path.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows))
    mark_warmup(path, ["main.01"])
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["warmup"] for r in found] == [True, False, False]
    assert [r["error"] for r in found] == [r["error"] for r in rows]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["requests.jsonl"]
