"""Results of a run that never came to its end, from what is on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hand_made import T0, S, record, run, worker

from exporters import summary
from exporters.rebuild import rebuild
from exporters.request_log import line
from tokenswarm import workload
from tokenswarm.records import BadInput, Outcome, Record

WORKLOAD = """
name: hand-made
backend: {kind: openai-completions, model: m}
prompts: {source: random, input_tokens: 100, output_tokens: 11}
tokenizer: {source: tiktoken, path: cl100k_base}
load:
  mode: closed
  stages:
    - {name: warmup, warmup: true, duration: 10s, users: 2}
    - {name: main, duration: 20s, users: 4}
slo: {"p90(ttft)": "<2s", "ttft": "<150ms"}
record: {itl: %s}
"""


def crashed(
    out: Path,
    handed_in: list[Record],
    kept: Sequence[Record] = (),
    itl: bool = False,
) -> Path:
    """A folder as it is when master and workers died: no summary."""
    work = workload.parse(WORKLOAD % str(itl).lower())
    (out / "workload.yaml").write_text(workload.dump(work))
    stages = ["warmup", "main"]
    (out / "requests.jsonl").write_bytes(
        b"".join(line(r, f"w{r.index % 2}", stages, "m", itl) for r in handed_in)
    )
    (out / "workers.json").write_text(
        json.dumps([{"id": f"w{k}", "pid": 1, "index": k, "host": "h", "k": k} for k in range(2)])
    )
    if kept:
        (out / "workers").mkdir()
        (out / "workers" / "w1.jsonl").write_bytes(
            b"".join(line(r, f"w{r.index % 2}", stages, "m", itl) for r in kept)
        )
    return out


def requests(n: int = 100) -> list[Record]:
    warm = [record(k, stage=0, due_s=k) for k in range(10)]
    return warm + [record(10 + k, due_s=10 + k * 0.18, ttft_ms=100 + k) for k in range(n)]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_crashed_run_is_counted_again_and_is_invalid(tmp_path: Path) -> None:
    rs = requests()
    rs.append(record(200, Outcome.HTTP_ERROR, error="500"))
    made = rebuild(crashed(tmp_path, rs))
    assert made == read(tmp_path / "summary.json")
    assert made["valid"] is False
    assert made["exit_code"] == 3
    assert [r["code"] for r in made["invalid_reasons"]] == ["cut_short"]
    assert "111 requests recorded" in made["invalid_reasons"][0]["detail"]
    assert made["requests"] == {
        "due": 111, "sent": 111, "ok": 110, "failed": 1, "dropped": 0, "lost": 0,
        "by_outcome": {"http_error": 1, "ok": 110},
    }  # fmt: skip
    assert made["run"]["workers"] == 2
    assert made["slo"]["attainment"] == pytest.approx(50 / 101)
    assert (tmp_path / "junit.xml").is_file()
    assert "cut_short" in (tmp_path / "report.html").read_text()


def test_figures_are_those_the_run_would_have_had(tmp_path: Path) -> None:
    rs = requests()
    whole = summary.build(run(worker(0, *rs[::2]), worker(1, *rs[1::2]), out=tmp_path))
    made = rebuild(crashed(tmp_path, rs, itl=True))
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "send_delay_s", "output_tokens"):
        expected = {k: v for k, v in whole["metrics"][name].items() if k != "ci95"}
        assert {k: v for k, v in made["metrics"][name].items() if k != "ci95"} == expected
    assert made["tokens"] == whole["tokens"]
    assert made["window"]["start"] == T0 / S + 10
    assert made["stages"][0]["requests"] == whole["stages"][0]["requests"]
    assert made["metrics"]["ttft_s"]["ci95"]["mean"][0] < made["metrics"]["ttft_s"]["mean"]


def test_gaps_that_were_not_recorded_are_not_made_up(tmp_path: Path) -> None:
    made = rebuild(crashed(tmp_path, requests()))
    itl = made["metrics"]["itl_s"]
    assert (itl["count"], itl["mean"]) == (1000, 0.02)
    assert {itl[p] for p in ("min", "max", "p1", "p50", "p99", "p999")} == {None}
    assert made["stages"][0]["metrics"]["itl_s"]["count"] == 100
    assert "itl_s has no percentiles: record.itl was false" in made["warnings"]


def test_records_that_workers_kept_are_taken_once(tmp_path: Path) -> None:
    rs = requests()
    made = rebuild(crashed(tmp_path, rs[:60], kept=rs[40:]))
    assert made["requests"]["sent"] == 110


def test_only_what_workers_kept_is_enough(tmp_path: Path) -> None:
    out = crashed(tmp_path, [], kept=requests())
    (out / "requests.jsonl").unlink()
    assert rebuild(out)["requests"]["sent"] == 110


def test_a_torn_line_and_missing_workers_file_do_no_harm(tmp_path: Path) -> None:
    out = crashed(tmp_path, requests())
    raw = (out / "requests.jsonl").read_bytes()
    (out / "requests.jsonl").write_bytes(raw[:-50])
    (out / "workers.json").write_text("[{")
    made = rebuild(out)
    assert made["requests"]["sent"] == 109
    assert made["warnings"][0] == "1 lines of the records could not be read (torn?)"
    assert made["run"]["workers"] == 2


def test_windows_end_where_the_records_end(tmp_path: Path) -> None:
    rs = [r for r in requests() if r.due_offset_ns < 15 * S]
    made = rebuild(crashed(tmp_path, rs))
    last = max(r.end_ns or 0 for r in rs) / S
    assert made["window"]["end"] == pytest.approx(last, abs=1e-5)
    assert made["run"]["ended"] == pytest.approx(last, abs=1e-5)


def test_a_run_that_goes_on_can_be_looked_at_again_and_again(tmp_path: Path) -> None:
    rs = requests()
    crashed(tmp_path, rs[:50])
    assert rebuild(tmp_path)["requests"]["sent"] == 50
    crashed(tmp_path, rs[:80])
    assert rebuild(tmp_path)["requests"]["sent"] == 80


def test_a_stage_that_the_workload_has_no_more_is_shown_all_the_same(tmp_path: Path) -> None:
    out = crashed(tmp_path, requests())
    text = (out / "requests.jsonl").read_text()
    (out / "requests.jsonl").write_text(text.replace('"stage":"main"', '"stage":"old"'))
    made = rebuild(out)
    assert [s["name"] for s in made["stages"]] == ["warmup", "main", "old"]
    assert made["stages"][2]["requests"]["ok"] == 100


def test_a_finished_run_keeps_its_summary_and_gets_its_report(tmp_path: Path) -> None:
    rs = requests()
    out = crashed(tmp_path, rs)
    whole = summary.build(run(worker(0, *rs)))
    (out / "summary.json").write_bytes(summary.to_json(whole))
    assert rebuild(out)["valid"] is True
    assert read(out / "summary.json") == json.loads(summary.to_json(whole))
    assert (out / "junit.xml").is_file()
    assert (out / "report.html").is_file()


def test_a_summary_that_is_torn_is_made_again(tmp_path: Path) -> None:
    out = crashed(tmp_path, requests())
    (out / "summary.json").write_text('{"schema": 1, "run": {')
    assert rebuild(str(out))["requests"]["sent"] == 110


def test_a_crash_before_the_first_record(tmp_path: Path) -> None:
    made = rebuild(crashed(tmp_path, []))
    assert made["requests"]["due"] == 0
    assert made["valid"] is False


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no run: expected summary\.json, or workload\.yaml"):
        rebuild(tmp_path)
    with pytest.raises(BadInput, match="no such folder"):
        rebuild(tmp_path / "gone")
