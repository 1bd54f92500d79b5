from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hand_made import record, run, worker

from exporters import summary
from exporters.formats import FORMATS, export
from exporters.request_log import line
from tokenswarm.records import BadInput, Outcome

RECORDS = [
    record(0, stage=0, due_s=1.0),
    *[record(10 + k, due_s=10 + k * 0.18, ttft_ms=100 + k) for k in range(100)],
    record(200, Outcome.HTTP_ERROR, error='=cmd "x", \n y', retries=2),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path)


def made(out: Path, itl: bool = True) -> Path:
    (out / "requests.jsonl").write_bytes(
        b"".join(line(r, "w0", ["warmup", "main"], "m", itl) for r in RECORDS)
    )
    found = run(worker(0, *RECORDS), out=out)
    (out / "summary.json").write_bytes(summary.to_json(summary.build(found)))
    return out


def exported(folder: Path, name: str) -> str:
    out = io.BytesIO()
    export(folder, name, out)
    return out.getvalue().decode()


def test_csv_has_a_row_a_request(folder: Path) -> None:
    table = list(csv.DictReader(io.StringIO(exported(folder, "csv"))))
    assert len(table) == len(RECORDS)
    assert table[1]["ttft_s"] == "0.1"
    assert (table[1]["outcome"], table[1]["stage"], table[1]["error"]) == ("ok", "main", "")
    assert "itl_s" not in table[0]
    assert [row["retries"] for row in table[-2:]] == ["", "2"]


def test_csv_gives_no_formula_to_a_spreadsheet(folder: Path) -> None:
    table = list(csv.DictReader(io.StringIO(exported(folder, "csv"))))
    assert table[-1]["error"] == '\'=cmd "x", \n y'


def test_vllm_bench_json_has_its_keys_and_our_figures(folder: Path) -> None:
    got: dict[str, Any] = json.loads(exported(folder, "vllm-bench"))
    ours = json.loads((folder / "summary.json").read_text())
    assert (got["num_prompts"], got["completed"], got["failed"]) == (101, 100, 1)
    assert (got["model_id"], got["backend"], got["max_concurrency"], got["request_rate"]) == (
        "m", "openai-completions", 4, "inf",
    )  # fmt: skip
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (10_000, 1_100)
    assert got["output_throughput"] == ours["throughput"]["output_tokens_per_s"]
    assert got["mean_ttft_ms"] == pytest.approx(149.5)
    assert got["median_ttft_ms"] == ours["metrics"]["ttft_s"]["p50"] * 1e3
    assert got["p99_e2el_ms"] == ours["metrics"]["e2e_s"]["p99"] * 1e3
    assert got["std_ttft_ms"] == pytest.approx(28.866, rel=1e-4)
    assert got["mean_itl_ms"] == pytest.approx(20)
    assert [len(got[k]) for k in ("input_lens", "output_lens", "ttfts", "itls", "errors")] == (
        [101] * 5
    )
    assert got["ttfts"][:2] == [0.1, 0.101]
    assert got["itls"][0] == [0.02] * 10
    assert (got["ttfts"][-1], got["errors"][-1]) == (0.0, '=cmd "x", \n y')


def samples(text: str) -> dict[str, list[tuple[float, float]]]:
    """(time, value) of every series; prometheus_client 0.26 loses samples with time stamps."""
    found: dict[str, list[tuple[float, float]]] = {}
    for text_line in text.splitlines():
        if not text_line.startswith("#"):
            series, value, at = text_line.rsplit(" ", 2)
            found.setdefault(series, []).append((float(at), float(value)))
    return found


def test_openmetrics_ends_at_the_totals(folder: Path) -> None:
    text = exported(folder, "openmetrics")
    assert text.endswith("\n# EOF\n")
    found = samples(text)
    ok = found['tokenswarm_requests_total{outcome="ok"}']
    assert (ok[0][1], ok[-1][1]) == (0, 101)
    assert found['tokenswarm_requests_total{outcome="http_error"}'][-1][1] == 1
    assert found["tokenswarm_output_tokens_total"][-1][1] == 1111
    labels = 'workload="hand-made",stage="main"'
    assert found[f"tokenswarm_time_to_first_token_seconds_count{{{labels}}}"][-1][1] == 100
    assert found[f"tokenswarm_inter_token_latency_seconds_count{{{labels}}}"][-1][1] == 1000
    # of 100, 101, ... 199 ms
    under = found[f'tokenswarm_time_to_first_token_seconds_bucket{{{labels},le="0.125"}}']
    assert under[-1][1] == 26
    for series in found.values():
        assert series == sorted(series)
        assert [value for _, value in series] == sorted(value for _, value in series)
        assert [at % 15 for at, _ in series] == [0.0] * len(series)


def test_gaps_that_were_not_recorded_are_no_series(tmp_path: Path) -> None:
    text = exported(made(tmp_path, itl=False), "openmetrics")
    assert "tokenswarm_inter_token_latency_seconds_count" not in text
    assert "tokenswarm_time_to_first_token_seconds_count" in text


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_makes_blocks_of_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "om.txt").write_text(exported(folder, "openmetrics"))
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "om.txt", "tsdb"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "tsdb").iterdir())) >= 1


def test_an_unknown_format_names_the_known_ones(folder: Path) -> None:
    with pytest.raises(BadInput, match="Expected one of: csv, vllm-bench, openmetrics"):
        export(folder, "xls", io.BytesIO())


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_without_requests_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"(not there|cannot be read)"):
        export(tmp_path, name, io.BytesIO())
