"""Searches whose runs are formulas: verdicts from summaries, lengths of probes, what is said."""

import json

import pytest

from tokenswarm import cli, study_point, study_search, workload
from tokenswarm.records import BadInput
from tokenswarm.study_search import Options

WORKLOAD = """
backend: {model: demo}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 64, output_tokens: 8}
load: {LOAD}
slo: {p90(ttft): <100ms}
"""
CLOSED = "{users: 1, duration: 2s}"
OPEN = "{mode: open, rate_per_s: 1, duration: 5s}"


def check(passed=True, key="p90(ttft)", bound=0.1, stage=None):
    return {"key": key, "text": f"{key} <100ms", "detail": "x", "passed": passed,
            "metric": "ttft_s", "bound": bound, "stage": stage}  # fmt: skip


# -- whole searches ----------------------------------------------------------------------------


class Runs:
    """study_search.run, by a formula: a server of a capacity, with 0.2 s a request."""

    def __init__(self, capacity, invalid=()):
        self.capacity, self.invalid = capacity, dict(invalid)
        self.points = []

    def level(self, point):
        load = point.workload.load
        return load.users if load.mode == "closed" else load.rate_per_s

    def __call__(self, point, say):
        self.points.append(point)
        level = self.level(point)
        load = point.workload.load
        over = max(0.0, level / self.capacity - 1)
        rate = min(level, self.capacity) * (5 if load.mode == "closed" else 1)
        queue = 0.3 * (over > 0) if load.mode == "closed" else over * load.duration / 2
        ttft = 0.05 + queue
        codes = self.invalid.get(len(self.points), [])
        point.folder.mkdir(parents=True, exist_ok=True)
        if load.mode == "open":
            rows = [{"due_offset_s": i / level, "e2e_due_s": 0.2 + over * i / level}
                    for i in range(int(level * load.duration))]  # fmt: skip
            (point.folder / "requests.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows)
            )
        return study_point.Result(point.folder, exit_code=3 if codes else 0, summary={
            "run": {"name": "w"}, "valid": not codes,
            "invalid_reasons": [{"code": code} for code in codes],
            "requests": {"ok": rate * load.duration},
            "throughput": {"requests_per_s": rate, "output_tokens_per_s": 8 * rate},
            "metrics": {"e2e_s": {"p50": 0.2 + over, "mean": 0.2 + over}, "ttft_s": {}},
            "slo": {"passed": ttft < 0.1, "checks": [check(ttft < 0.1)]},
        })  # fmt: skip


@pytest.fixture
def searched(tmp_path, monkeypatch):
    def make(runs, load=CLOSED, vary="users", **options):
        monkeypatch.setattr(study_search, "run", runs)
        path = tmp_path / "w.yaml"
        path.write_text(WORKLOAD.replace("{LOAD}", load))
        said = []
        found = study_search.search(
            Options(str(path), vary, "http://x", out=str(tmp_path / "out"), **options), said.append
        )
        return found, said

    return make


@pytest.mark.parametrize("capacity", [3, 16, 250])
def test_users_are_found(searched, capacity):
    runs = Runs(capacity)
    found, _ = searched(runs)
    assert (found.code, found.capacity) == (0, pytest.approx(capacity, rel=0.03, abs=0.9))
    assert len(runs.points) < 12


@pytest.mark.parametrize("capacity", [0.7, 31.0, 480.0])
def test_rates_are_found_within_the_precision(searched, capacity):
    runs = Runs(capacity)
    found, _ = searched(runs, OPEN, "rate_per_s")
    assert found.code == 0
    assert 0.97 * capacity <= found.capacity <= 1.03 * capacity
    assert len(runs.points) < 12


def test_probes_are_as_long_as_their_percentile_needs(searched):
    runs = Runs(31.0)
    searched(runs, OPEN, "rate_per_s")
    for point in runs.points:
        load = point.workload.load
        assert load.rate_per_s * load.duration >= 20
    last = runs.points[-1].workload.load  # near the answer: ten beyond the 90th percentile
    assert last.rate_per_s * last.duration >= 100


def test_a_server_that_falls_behind_fails_whatever_its_slos(searched):
    runs = Runs(10.0)
    found, said = searched(runs, OPEN, "rate_per_s", slos=["p90(ttft)<100s"])
    assert found.capacity == pytest.approx(10.0, rel=0.06)
    assert any("the server fell behind by" in line for line in said)
    assert runs.points[0].workload.slo["p90(ttft)"] == "<100s"


def test_what_was_found_is_written_down(searched):
    found, _ = searched(Runs(16))
    saved = json.loads((found.folder / "study.json").read_text())
    assert (saved["kind"], saved["vary"], saved["finished"]) == ("search", "users", True)
    assert (saved["capacity"], saved["fails"], saved["exit_code"]) == (16, 17, 0)
    levels = [p["axes"]["load.users"] for p in saved["points"]]
    assert saved["knee"] in levels
    assert len((found.folder / "study.csv").read_text().splitlines()) == 1 + len(levels)


def test_no_load_meets_the_slos(searched):
    found, _ = searched(Runs(0.5))
    assert (found.code, found.capacity, found.fails) == (1, None, 1)


def test_the_limits_are_kept(searched):
    runs = Runs(1000)
    found, _ = searched(runs, low=4, high=40)
    assert (found.code, found.capacity, found.fails) == (0, 40, None)
    assert {runs.level(p) for p in runs.points} == {4, 16, 40}


def test_an_overloaded_run_that_was_cut_short_is_a_failure_not_an_error(searched):
    found, _ = searched(Runs(16, {3: ["cut_short", "arrivals_dropped"]}))
    assert found.capacity == 15 or found.capacity == 16
    assert found.code == 0


def test_a_spoilt_run_is_done_once_more(searched):
    runs = Runs(16, {2: ["clock_step"]})
    found, said = searched(runs)
    assert (found.code, found.capacity) == (0, 16)
    assert any("once more" in line for line in said)
    assert runs.points[1].folder != runs.points[2].folder


def test_a_generator_at_its_limit_ends_the_search(searched):
    found, _ = searched(Runs(16, {2: ["generator_saturated"], 3: ["generator_saturated"]}))
    assert (found.code, found.capacity) == (3, 1)
    assert "the generator's limit, not the server's" in found.why


def test_a_warm_start_begins_near_the_earlier_answer(searched, tmp_path):
    found, _ = searched(Runs(50))
    (tmp_path / "out").rename(tmp_path / "before")
    runs = Runs(52)
    found, _ = searched(runs, warm_start=str(tmp_path / "before"))
    assert runs.level(runs.points[0]) == 50
    assert found.capacity == pytest.approx(52, abs=1.6)
    assert len(runs.points) <= 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vary": "rate_per_s"}, "--vary rate_per_s: needs an open loop, {} is load.mode: closed"),
        ({"slos": ["p99(ttft)"]}, "--slo p99(ttft): must be like 'p99(ttft)<2s'"),
        ({"low": 9, "high": 3}, "--low 9: is above --high 3"),
        ({"precision": 2}, "--precision: must be between 0 and 1, got 2"),
        ({"warm_start": "/nowhere"}, "--warm-start /nowhere: holds no search"),
    ],
)
def test_what_cannot_be_searched_is_refused(searched, tmp_path, options, said):
    with pytest.raises(BadInput) as caught:
        searched(Runs(1), **options)
    assert caught.value.problems == (said.format(tmp_path / "w.yaml"),)
    assert not (tmp_path / "out").exists()


def test_an_slo_of_the_command_line_is_checked_like_the_files(searched):
    with pytest.raises(BadInput) as caught:
        searched(Runs(1), slos=["p99(tftt)<2s"])
    assert "tftt" in caught.value.problems[0]


def test_the_command_prints_the_answer(searched, tmp_path, monkeypatch, capsys):
    runs = Runs(16)
    monkeypatch.setattr(study_search, "run", runs)
    monkeypatch.setattr(cli.cli_study, "report", lambda *_: None)
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD.replace("{LOAD}", CLOSED))
    out = tmp_path / "found"
    code = cli.main(["search", str(path), "--vary", "users", "--host", "http://x", "--out",
                     str(out), "--gpu", "nvml"])  # fmt: skip
    said = capsys.readouterr().out.splitlines()
    assert code == 0
    assert "highest users that meets the SLOs: 16 (17 does not)" in said
    assert said[-1].endswith(f"probes, files in {out}")
    assert {one.gpu for one in runs.points} == {"nvml"}
    assert said[0].startswith("warning: --gpu nvml: ")  # no machine for tests has any
    assert workload.load(path).load.users == 1
