"""The capacity of an embedded engine is known; a search finds it. And a sweep, end to end."""

import csv
import io
import json

import pytest
import yaml
from product import workload, written

from tokenswarm import cli
from tokenswarm.simulator import settings
from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
PLACES, TOKENS = 8, 11
ENGINE = {"base_ms": 50, "prefill_ms_per_token": 0, "itl_ms": 20, "max_batch": PLACES}
# 8 places / (50 ms + 10 x 20 ms) = 32 requests/s
CAPACITY = settings.capacity_per_s(settings.load("default", **ENGINE), 32, TOKENS)


@pytest.fixture(scope="module")
def engine():
    sets = [f"{key}={value}" for key, value in ENGINE.items()]
    with EngineProcess("--set", *sets) as process:
        yield process


def search(tmp_path, engine, load, *options):
    file = written(tmp_path, workload(
        load=load, prompts={"input_tokens": 32, "output_tokens": TOKENS},
        slo={"p90(ttft)": "<100ms"},
    ))  # fmt: skip
    out = tmp_path / "out"
    code = cli.main(["search", str(file), "--host", engine.url, "--workers", "0", "--out",
                     str(out), *options])  # fmt: skip
    return code, json.loads((out / "study.json").read_text())


def test_the_highest_rate_is_found_within_five_percent_in_fewer_than_twelve_probes(
    engine, tmp_path, capsys
):
    load = {"mode": "open", "arrivals": "constant", "rate_per_s": 1, "duration": "4s"}
    code, found = search(tmp_path, engine, load, "--vary", "rate_per_s", "--start", "20")
    assert code == 0, capsys.readouterr().out
    assert pytest.approx(CAPACITY) == 32.0
    assert found["capacity"] == pytest.approx(CAPACITY, rel=0.05)
    assert len(found["points"]) < 12
    assert "highest rate_per_s that meets the SLOs" in capsys.readouterr().out
    assert (tmp_path / "out" / "study.html").stat().st_size > 10_000

    # the same command again reads what is there
    again_code, again = search(tmp_path, engine, load, "--vary", "rate_per_s", "--start", "20")
    assert (again_code, again["capacity"]) == (code, found["capacity"])
    assert "from disk" in capsys.readouterr().out


def test_the_most_users_are_the_places_of_the_batch(engine, tmp_path, capsys):
    load = {"users": 1, "duration": "3s"}
    code, found = search(tmp_path, engine, load, "--vary", "users", "--start", "6")
    assert code == 0, capsys.readouterr().out
    assert (found["capacity"], found["fails"]) == (PLACES, PLACES + 1)
    assert len(found["points"]) < 12
    assert found["knee"] in [p["axes"]["load.users"] for p in found["points"]]


def test_a_simulated_sweep_from_the_command_line(tmp_path, capsys):
    written(tmp_path, workload(load={"users": 1, "requests": 24}, prompts={"output_tokens": 6}))
    file, out = tmp_path / "grid.yaml", tmp_path / "out"
    targets = [
        {"label": "quick", "engine": {"base_ms": 5, "itl_ms": 2}, "usd_per_hour": 4},
        {"label": "slow", "engine": {"engine": "slow", "base_ms": 60, "itl_ms": 10},
         "usd_per_hour": 1},
    ]  # fmt: skip
    grid = {"workload": "workload.yaml", "targets": targets, "load": {"users": [2]}}
    file.write_text(yaml.safe_dump(grid))
    assert cli.main(["sweep", str(file), "--simulated", "--out", str(out)]) == 0
    table = list(csv.DictReader(io.StringIO((out / "study.csv").read_text())))
    assert [(r["target"], r["load.users"]) for r in table] == [("quick", "2"), ("slow", "2")]
    for row in table:
        assert (row["valid"], row["requests_ok"]) == ("True", "24")
        assert (out / row["folder"] / "report.html").exists()
    # 12 requests of 15 ms, 12 of 110 ms, one after the other
    assert 0.18 < float(table[0]["makespan_s"]) < float(table[1]["makespan_s"])
    assert float(table[1]["makespan_s"]) > 1.32
    assert float(table[0]["usd_per_million_total_tokens"]) > 0
    assert (out / "study.html").exists()
    assert "2 of 2 points done, 2 of them valid" in capsys.readouterr().out

    # a half point is done again, the others are not
    (out / table[1]["folder"] / "summary.json").unlink()
    assert cli.main(["sweep", str(file), "--simulated", "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ["from disk" in line for line in said if line.startswith("[")] == [
        True, False,
    ]  # fmt: skip
