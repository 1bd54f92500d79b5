"""Every fault of the engine, mixed at random: each request gets the outcome the engine's log says.

Requests are told apart by the X-Request-Id that each carries. Faults that make a client wait are
rarer than the others, so that all of it is over in a minute.
"""

from collections import Counter

import pytest
from product import run

from tokenswarm.simulator.faults import FAULTS
from tokenswarm.simulator.process import EngineProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
RARE = {"stall_first_token": 0.002, "stall_mid_stream": 0.002}
QUICK = ("--set", "itl_ms=2", "base_ms=2", "prefill_ms_per_token=0", "max_batch=256",
         "fault_slow_ms=150", "check_model=false")  # fmt: skip
# A client's time-outs, far above what the engine needs on a busy machine.
TIMEOUTS = {"first_token": "6s", "stall": "6s"}


def probabilities():
    """Nearly every request has a fault, each about as often as the others."""
    share = (0.95 - sum(RARE.values())) / (len(FAULTS) - len(RARE))
    return {name: RARE.get(name, share) for name in FAULTS}


def played(tmp_path, kind, requests, **sections):
    """The rows of a run against an engine with all faults, and the engine's log, by index."""
    faults = [f"faults.{name}={p:.6f}" for name, p in probabilities().items()]
    with EngineProcess("--seed", "3", *QUICK, "--set", *faults) as engine:
        finished = run(
            tmp_path, engine.url, "--workers", "1",
            backend={"kind": kind},
            prompts={"probe": False, "output_tokens": 12},
            load={"users": 48, "requests": requests, "drain": "30s"},
            timeouts=TIMEOUTS, slo={"error_ratio": "<100%"}, **sections,
        )  # fmt: skip
        log = engine.log()
    assert finished.code in (0, 3), finished.said
    ours = {row["index"]: row for row in finished.rows}
    theirs = {int(line["request_id"].split("-")[1]): line for line in log if line["request_id"]}
    assert len(ours) == len(finished.rows) == requests
    assert set(ours) == set(theirs)
    assert finished.summary["requests"]["by_outcome"] == dict(
        Counter(row["outcome"] for row in finished.rows)
    )
    return finished, ours, theirs


def differences(ours, theirs):
    """(fault, theirs, ours, error) of every request that we saw otherwise than the engine."""
    return [
        (theirs[i]["fault"], theirs[i]["outcome"], row["outcome"], row["error"])
        for i, row in ours.items()
        if row["outcome"] != theirs[i]["outcome"]
    ]


def test_five_thousand_requests_with_every_fault(tmp_path):
    finished, ours, theirs = played(tmp_path, "openai-completions", 5000)
    assert differences(ours, theirs) == []
    seen = Counter(line["fault"] for line in theirs.values())
    assert not {
        n for n, f in FAULTS.items() if f.only is None or "openai-completions" in f.only
    } - set(seen)
    # what failed is told, in words, and what did not fail is not
    assert all((row["error"] is None) == (row["outcome"] == "ok") for row in ours.values())
    ok = [i for i, row in ours.items() if row["outcome"] == "ok"]
    assert [ours[i]["output_tokens"] for i in ok] == [theirs[i]["tokens_sent"] for i in ok]
    # texts of errors are samples: few, whatever their number
    assert sum(e["count"] for e in finished.summary["errors"]) == sum(
        row["outcome"] not in ("ok", "cancelled") for row in ours.values()
    )
    assert len(finished.summary["errors"]) < 200


@pytest.mark.parametrize("kind", ["tgi", "triton", "sglang", "llamacpp"])
def test_the_same_in_the_other_protocols(tmp_path, kind):
    _, ours, theirs = played(tmp_path, kind, 300)
    assert differences(ours, theirs) == []


def test_the_same_in_chat_with_reasoning_and_tool_calls(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    tokenizer = {"chat_template": str(template)}
    _, ours, theirs = played(tmp_path, "openai-chat", 600, tokenizer=tokenizer)
    assert differences(ours, theirs) == []


def test_a_protocol_without_streams(tmp_path):
    _, ours, theirs = played(tmp_path, "mii", 150)
    assert differences(ours, theirs) == []


DESCRIBED = {
    "path": "/completion",
    "body": {"prompt": "{{prompt}}", "n_predict": "{{max_tokens}}", "ignore_eos": True,
             "stream": True},
    "text": "content", "usage_prompt": "tokens_evaluated", "usage_output": "tokens_predicted",
    "finish": "stop_type",
}  # fmt: skip


def test_an_engine_that_only_the_workload_knows(tmp_path):
    with EngineProcess("--engine", "fast") as engine:
        finished = run(
            tmp_path, engine.url, "--workers", "0",
            backend={"kind": "template", "options": DESCRIBED},
        )  # fmt: skip
    assert finished.code == 0, finished.said
    summary = finished.summary
    assert summary["requests"]["by_outcome"] == {"ok": 40}
    assert (summary["prompts"]["exact"], summary["prompts"]["compared"]) == (40, 40)
    assert {row["output_tokens"] for row in finished.rows} == {8}
    assert {row["output_tokens_source"] for row in finished.rows} == {"usage"}
    assert summary["server"]["tokens"]["output_tokens"]["difference"] == 0
