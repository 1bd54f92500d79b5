"""Automatic steady state, end to end: an engine that stands still at the beginning."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from product import run

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
STALL_S, DURATION_S = 2.0, 10.0


LOADS = {"closed": {"users": 6}, "open": {"mode": "open", "rate_per_s": 30}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def one(mode):
        with EngineProcess("--set", "stall_at_s=0.1", f"stall_for_s={STALL_S}") as engine:
            load = {**LOADS[mode], "duration": f"{DURATION_S:g}s", "steady_state": True}
            return run(tmp_path_factory.mktemp(mode), engine.url, "--workers", "0",
                       prompts={"probe": False}, load=load)  # fmt: skip

    with ThreadPoolExecutor() as pool:  # side by side: each mostly waits
        return dict(zip(LOADS, pool.map(one, LOADS), strict=True))


@pytest.mark.parametrize("mode", LOADS)
def test_a_slow_beginning_is_left_out_everywhere(mode, runs):
    finished = runs[mode]
    summary = finished.summary
    found = summary["steady_state"]
    assert found["found"], finished.said
    assert STALL_S - 0.6 < found["discarded_s"] <= DURATION_S / 2
    assert summary["window"]["seconds"] == pytest.approx(DURATION_S - found["discarded_s"])
    kept = [r for r in finished.rows if r["outcome"] == "ok" and not r["warmup"]]
    assert summary["metrics"]["e2e_s"]["count"] == len(kept) < len(finished.rows)
    assert min(r["due_offset_s"] for r in kept) >= found["discarded_s"] - 0.01
    assert summary["metrics"]["ttft_due_s"]["p50"] < 0.5
    counts = summary["requests"]
    assert counts["due"] == counts["sent"] == len(finished.rows)
