"""Run folders that look like real ones, made from a seed: for tests of what people look at.

Latencies follow a simple picture of an engine: TTFT grows with the prompt and with the load,
gaps between tokens grow with the load, some answers stall. The summary is computed with a sorted
list and nothing else, so it is an oracle as well as an input.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

KEYS = ("p1", "p10", "p50", "p90", "p95", "p99", "p999")
SHARES = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999)
START = 1_790_000_000.0
FIRST = ("connect_error", "timeout_first_token")


def rows(
    n=600,
    seed=1,
    speed=1.0,
    error_share=0.02,
    lengths=(300, 1200),
    itl=False,
    seconds=90.0,
    burst=False,
    stages=("warm-up", "16 users", "64 users"),
    index=0,
    memory=0.0,
    plan=None,
):
    """Lines of requests.jsonl as dicts; speed 1.2 = everything takes 1.2 times as long.

    memory: how much of a slow wave of load (its spread is 0.2) a request hands on to the next.
    plan: seed of times and lengths where they are to be the same in several runs.
    """
    rng = np.random.default_rng(seed if plan is None else plan)
    due = np.sort(rng.uniform(0, seconds, n))
    bounds = np.linspace(0, seconds, len(stages) + 1)
    stage = np.clip(np.searchsorted(bounds, due, side="right") - 1, 0, len(stages) - 1)
    load = 1 + 0.8 * stage
    prompt = rng.integers(lengths[0], lengths[1] + 1, n)
    answer = rng.integers(90, 131, n)
    if plan is not None:
        rng = np.random.default_rng(seed)
    load = load * np.exp(_wave(n, memory, rng))
    ttft = speed * (0.04 + 0.00012 * prompt) * load * rng.lognormal(0, 0.35, n)
    gap = speed * 0.012 * load * rng.lognormal(0, 0.12, n)
    late = rng.exponential(0.0004, n)
    stall = np.where(rng.random(n) < 0.01, rng.uniform(0.3, 2.5, n), 0)
    bad = rng.random(n)
    for k in range(n):
        outcome = "ok"
        near = burst and 0.55 < due[k] / seconds < 0.62
        if bad[k] < (0.5 if near else error_share):
            outcome = ("throttled", "connection_lost", "timeout_first_token", "http_error")[k % 4]
        yield _row(
            index + k, float(START + due[k]), float(due[k]), stages[stage[k]], stage[k] == 0,
            float(late[k]), float(ttft[k]), float(gap[k]), float(stall[k]), int(prompt[k]),
            int(answer[k]), outcome, k % 2, rng if itl else None,
        )  # fmt: skip


def _wave(n, memory, rng):
    """A series with spread 0.2 in which neighbours correlate by `memory`."""
    wave = np.zeros(n)
    if memory:
        steps = rng.normal(0, 0.2 * (1 - memory**2) ** 0.5, n)
        wave[0] = rng.normal(0, 0.2)
        for k in range(1, n):
            wave[k] = memory * wave[k - 1] + steps[k]
    return wave


def _row(index, due, offset, stage, warm, late, ttft, gap, stall, prompt, answer, outcome, worker,
         rng):  # fmt: skip
    sent = due + late
    ok = outcome == "ok"
    gaps = None
    longest = max(gap * 1.6, stall)
    if ok and rng is not None:
        gaps = (gap * rng.lognormal(0, 0.2, answer - 1)).tolist()
        gaps[-1] += stall
        longest = max(gaps)
    decode = sum(gaps) if gaps else gap * (answer - 1) + stall
    first, last = sent + ttft, sent + ttft + decode
    shown = lambda value: round(value, 9) if ok else None  # noqa: E731
    row = {
        "index": index, "worker": f"w{worker}", "stage": stage, "outcome": outcome,
        "error": None if ok else "503 <busy> & gone" if outcome == "http_error" else outcome,
        "http_status": 200 if ok else 503, "due": due, "sent": sent,
        "first_token": shown(first), "last_token": shown(last),
        "end": last + 0.0005 if ok else sent + 1.0, "due_offset_s": offset,
        "ttft_s": shown(ttft), "ttft_due_s": shown(ttft + late),
        "tpot_s": shown(decode / (answer - 1)), "e2e_s": shown(ttft + decode),
        "e2e_due_s": shown(ttft + decode + late), "send_delay_s": late,
        "connect_s": 0.0003 if index < 64 else None, "longest_gap_s": shown(longest),
        "prompt_tokens": prompt, "output_tokens": answer if ok else None,
        "prompt_tokens_source": "usage", "output_tokens_source": "usage",
        "output_chars": answer * 4, "prompt_tokens_expected": prompt,
        "output_tokens_expected": answer, "events": answer if ok else 0,
        "reads": answer if ok else 0, "finish_reason": "length" if ok else None,
        "session": None, "turn": None, "model": "demo", "warmup": bool(warm),
    }  # fmt: skip
    if gaps is not None:
        row["itl_s"] = [round(g, 6) for g in gaps]
    return row


def figures(values):
    """The figures of one metric, from a sorted list."""
    found = np.sort([v for v in values if v is not None])
    if not len(found):
        return {"count": 0}
    known = {k: float(np.quantile(found, s)) if len(found) * (1 - s) >= 1 else None
             for k, s in zip(KEYS, SHARES, strict=True)}  # fmt: skip
    mean, error = float(found.mean()), 1.96 * float(found.std()) / len(found) ** 0.5
    return {"count": len(found), "mean": mean, "min": float(found[0]), "max": float(found[-1]),
            **known, "ci95": {"mean": [mean - error, mean + error]}}  # fmt: skip


def short(values):
    """The figures of an interval of the timeline."""
    if not values:
        return {"count": 0, "p50": None, "p90": None, "p99": None}
    q = np.quantile(values, [0.5, 0.9, 0.99])
    return {"count": len(values), "p50": q[0], "p90": q[1], "p99": q[2]}


def part(mine, seconds):
    """What the summary says of some requests."""
    ok = [r for r in mine if r["outcome"] == "ok"]
    names = ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "send_delay_s", "connect_s",
             "longest_gap_s", "output_tokens", "prompt_tokens")  # fmt: skip
    metrics = {name: figures([r[name] for r in ok]) for name in names}
    metrics["itl_s"] = figures([g for r in ok for g in r.get("itl_s") or [r["tpot_s"]]])
    metrics["tokens_per_s_per_user"] = figures([1 / r["tpot_s"] for r in ok])
    tokens = sum(r["output_tokens"] for r in ok)
    prompts = sum(r["prompt_tokens"] for r in ok)
    outcomes: dict[str, int] = {}
    for r in mine:
        outcomes[r["outcome"]] = outcomes.get(r["outcome"], 0) + 1
    return {
        "requests": {"due": len(mine), "sent": len(mine), "ok": len(ok),
                     "failed": len(mine) - len(ok), "dropped": 0, "lost": 0,
                     "by_outcome": outcomes},
        "tokens": {"prompt": prompts, "output": tokens},
        "throughput": {"requests_per_s": len(ok) / seconds,
                       "output_tokens_per_s": tokens / seconds,
                       "total_tokens_per_s": (tokens + prompts) / seconds,
                       "output_tokens_per_s_per_gpu": tokens / seconds / 8,
                       "output_chars_per_s": 4 * tokens / seconds},
        "metrics": metrics,
    }  # fmt: skip


def summary(found, seconds=90.0, **changes):
    """summary.json of these requests."""
    measured = [r for r in found if not r["warmup"]]
    whole, core = part(found, seconds), part(measured, seconds * 2 / 3)
    p99 = core["metrics"]["ttft_s"].get("p99")
    share = whole["requests"]["failed"] / len(found)
    checks = [
        {"key": "p99(ttft)", "text": "p99(ttft) <2s", "actual": p99,
         "passed": p99 is not None and p99 < 2,
         "detail": "", "stage": None, "per_request": False},
        {"key": "error_ratio", "text": "error_ratio <1%", "actual": share, "passed": share < 0.01,
         "detail": "", "stage": None, "per_request": False},
        {"key": "p99.9(e2e)", "text": "p99.9(e2e) <20s", "actual": None, "passed": None,
         "detail": "937 values are too few for p999", "stage": None, "per_request": False},
    ]  # fmt: skip
    names = list(dict.fromkeys(r["stage"] for r in found))
    return {
        "schema": 1,
        "run": {"id": "20260921-101500-demo", "name": "demo", "started": START,
                "ended": START + seconds, "host": "http://user:hunter2@127.0.0.1:8000",
                "backend": "openai-completions", "model": "demo",
                "tokenizer": "tiktoken:cl100k_base", "seed": 7, "nonce": "k3", "load": "closed",
                "workers": 2, "versions": {"tokenswarm": "0.1.0", "locust": "2.47"}},
        "valid": True, "invalid_reasons": [],
        "warnings": ["p999 of ttft_s rests on less than 10 samples"],
        "window": {"start": START + seconds / 3, "end": START + seconds,
                   "seconds": seconds * 2 / 3},
        "makespan_s": seconds + 1.2,
        **{**whole, "metrics": core["metrics"], "throughput": core["throughput"]},
        "slo": {"passed": all(c["passed"] is not False for c in checks), "goodput_per_s": None,
                "attainment": 0.97, "checks": checks},
        "probe": None, "prompts": {"exact": len(found), "compared": len(found), "difference": {}},
        "generator": {"workers": [
            {"id": f"w{k}", "cpu": 0.21 + 0.05 * k, "loop_lag_p99_s": 0.0007,
             "coalesced_share": 0.0004, "kernel_stamp_share": 1.0, "lost": False}
            for k in (0, 1)]},
        "stages": [{"name": n, "warmup": n == names[0],
                    **part([r for r in found if r["stage"] == n], seconds / len(names))}
                   for n in names],
        "cost": {"usd_per_hour": 98.0, "usd_per_million_output_tokens": 3.21,
                 "usd_per_million_input_tokens": 0.42, "usd_per_million_total_tokens": 0.37},
        "errors": [{"outcome": "http_error", "error": "503 <busy> & gone", "count": 3}],
        "utilization": None,
        **changes,
    }  # fmt: skip


def timeline(found, seconds=90.0):
    """Lines of timeline.jsonl, one a second."""
    for t in range(int(seconds)):
        ok = [r for r in found if r["outcome"] == "ok"]
        now = [r for r in ok if t <= r["e2e_s"] + r["due_offset_s"] < t + 1]
        begun = [r["stage"] for r in found if r["due_offset_s"] <= t + 1] or ["warm-up"]
        yield {
            "t": START + t + 1, "offset_s": t + 1.0, "stage": begun[-1], "state": "running",
            "in_flight": sum(r["due_offset_s"] <= t + 1 < r["end"] - START for r in found),
            "users": 16, "planned_rate": 7.0, "achieved_rate": 6.9,
            "seconds": 1.0, "requests_per_s": float(len(now)),
            "failed_by_outcome": {"http_error": 1} if t % 30 == 9 else {},
            "ok": len(now), "output_tokens_per_s": sum(r["output_tokens"] for r in now),
            **{name: short([r[key] for r in now]) for name, key in (("ttft_s", "ttft_s"),
               ("itl_s", "tpot_s"), ("tpot_s", "tpot_s"), ("e2e_s", "e2e_s"),
               ("send_delay_s", "send_delay_s"))},
            "workers": [{"id": f"w{k}", "state": "running", "in_flight": 8,
                         "cpu": 0.2 + 0.1 * k + 0.05 * np.sin(t / 9),
                         "loop_lag_p99_s": 0.0006 + 0.0003 * ((t * (k + 3)) % 5)}
                        for k in (0, 1)],
        }  # fmt: skip


def write(folder: Path, found=None, with_timeline=True, **changes):
    """A whole run folder; gives its path."""
    found = list(rows()) if found is None else list(found)
    seconds = max(r["due_offset_s"] for r in found) + 0.5 if found else 1.0
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(r) + "\n" for r in found)
    (folder / "requests.jsonl").write_text(lines)
    if with_timeline:
        text = "".join(json.dumps(r) + "\n" for r in timeline(found, seconds))
        (folder / "timeline.jsonl").write_text(text)
    (folder / "summary.json").write_text(json.dumps(summary(found, seconds, **changes)))
    (folder / "workload.yaml").write_text(
        "name: demo\nseed: 7\nbackend:\n  kind: openai-completions\n  model: demo\n"
        "  api_key: sk-secret\n"
    )
    return folder


STUDY = {  # configuration: (GPU, count, $ an hour, speed factor)
    "vllm": ("H100-SXM", 1, 3.9, 0.5),
    "tgi": ("H100-SXM", 1, 3.9, 0.62),
    "llamacpp": ("L4", 1, 0.8, 1.6),
}
USERS = (1, 4, 16, 64)


def write_study(folder: Path, lengths=((1000, 100), (3000, 300))):
    """Run folders of three targets x length pairs x four batch sizes; gives their paths."""
    found = []
    for name, (gpu, count, price, speed) in STUDY.items():
        for prompt, answer in lengths:
            for users in USERS:
                out = folder / f"{name}-{prompt}-{answer}-{users}"
                found.append(
                    _one_of_study(out, name, gpu, count, price, speed, prompt, answer, users)
                )
    return found


def _one_of_study(out, name, gpu, count, price, speed, prompt, answer, users):
    """A closed loop: speed falls with the number of users, throughput grows ever less."""
    slower = speed * (1 + users / 24)
    rate = users / (slower * (0.05 + 0.0001 * prompt + 0.012 * answer))
    n = 240
    seconds = n / rate
    rng = np.random.default_rng(users * 7 + prompt)
    made = []
    for k in range(n):
        offset = k / rate
        ttft = slower * (0.05 + 0.0001 * prompt) * float(rng.lognormal(0, 0.2))
        gap = slower * 0.012 * float(rng.lognormal(0, 0.05))
        made.append(_row(k, START + offset, offset, "main", False, 0.0002, ttft, gap, 0.0, prompt,
                         answer, "ok", k % 2, None))  # fmt: skip
    write(out, made, with_timeline=False)
    figures_ = summary(made, seconds)
    figures_["run"]["name"] = name
    core = part(made, seconds)
    figures_["throughput"], figures_["metrics"] = core["throughput"], core["metrics"]
    figures_["window"] = {"start": START, "end": START + seconds, "seconds": seconds}
    passed = core["metrics"]["tpot_s"]["p50"] < 0.05
    figures_["slo"] = {"passed": passed, "checks": [], "attainment": None, "goodput_per_s": None}
    (out / "summary.json").write_text(json.dumps(figures_))
    (out / "workload.yaml").write_text(
        f"name: {name}\nseed: 1\nprompts: {{input_tokens: {prompt}, output_tokens: {answer}}}\n"
        f"load: {{mode: closed, users: {users}}}\n"
        f"hardware: {{gpu: {gpu}, count: {count}, usd_per_hour: {price}, utilization: 0.7, "
        "model: {parameters: 8.0e+9, kv_bytes_per_token: 131072}}\n"
    )
    return out
