import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import run_folder

from exporters import study_points, study_report
from tokenswarm.records import BadInput


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return run_folder.write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def points(folders):
    return study_points.read(folders)


@pytest.fixture(scope="module")
def html(folders):
    return study_report.build(folders, answer_limit_s=25.6)


def test_a_run_is_a_point(points):
    p = points[2]
    assert (p.label, p.lengths, p.load, p.load_kind) == (
        "vllm@1xH100-SXM", (1000, 100), 16.0, "users",
    )  # fmt: skip
    assert p.prices["total"] == pytest.approx(3.9 / (p.total_rate * 3600 * 0.7) * 1e6)
    assert p.prices["output"] == pytest.approx(3.9 / (p.output_rate * 3600 * 0.7) * 1e6)
    assert 1 / p.prices["input"] + 1 / p.prices["output"] == pytest.approx(1 / p.prices["total"])
    assert p.answer_s == pytest.approx(p.ttft_p50 + 511 * p.tpot_p50)


def test_utilization_is_worked_out_where_the_model_is_described(points):
    p = points[2]
    hardware, model, context = p.roof
    assert (hardware.bandwidth, model.parameters) == (3350e9, 8e9)
    assert context == pytest.approx(1050, rel=0.01)
    assert 12 < p.batch < 17
    cache = p.batch * context * 131_072
    assert p.mbu == pytest.approx((16e9 + cache) / p.tpot_p50 / 3350e9, rel=0.01)


def test_capacity_is_the_highest_load_that_meets_the_slos(points):
    capacity = {(c.label, c.lengths): c.capacity.load for c in study_points.curves(points)}
    assert capacity[("vllm@1xH100-SXM", (1000, 100))] == 64
    assert capacity[("llamacpp@1xL4", (1000, 100))] == 16


def test_an_answer_limit_is_one_slo_more(points):
    limited = study_points.curves(points, answer_limit_s=8.0)
    assert {c.capacity.load for c in limited if c.label.startswith("vllm")} == {16}
    assert {c.capacity for c in study_points.curves(points, answer_limit_s=0.1)} == {None}


def test_an_invalid_run_is_on_no_curve_and_is_named(folders, tmp_path):
    folder = tmp_path / "bad"
    run_folder.write(folder, run_folder.rows(n=50), valid=False)
    found = study_points.curves(study_points.read([*folders[:4], folder]))
    assert [len(c.points) for c in found] == [4]
    assert "bad is invalid and on no curve" in study_report.build([*folders[:4], folder])


def test_the_page_names_the_quadrants_of_all_configurations(html):
    rows = re.findall(r"<th scope=row>(\S+?)<td class=n>(\d+) users.*?<td>(\w+)", html)
    assert rows[:3] == [
        ("vllm@1xH100-SXM", "64", "leader"),
        ("tgi@1xH100-SXM", "64", "challenger"),
        ("llamacpp@1xL4", "16", "follower"),
    ]


def test_it_has_a_picture_of_everything(html):
    ids = set(re.findall(r'<figure id="([^"]+)"', html))
    per_lengths = {"throughput", "ttft", "speed", "latency", "price", "quadrants"}
    wanted = {f"{p}-{x}" for p in per_lengths for x in ("1000-100", "3000-300")}
    assert ids == wanted | {f"roofline-{k}" for k in range(6)}


def test_a_baseline_and_a_split_can_be_chosen(folders):
    html = study_report.build(folders, baseline="tgi", split=(0.06, 40.0))
    assert "of tgi@1xH100-SXM" in html
    assert "Borders (given): $0.06 and 40 tokens/s" in html
    assert re.search(r"tgi@1xH100-SXM<td class=n>64 users.*?<td class=n>100 %", html)


def test_labels_name_configurations(folders):
    names = {folder.name: "A" for folder in folders[:4]}
    assert {p.configuration for p in study_points.read(folders[:4], names)} == {"A"}


def test_runs_without_a_price_have_curves_and_no_quadrants(tmp_path):
    folder = run_folder.write(tmp_path / "a", run_folder.rows(n=100))
    ids = set(re.findall(r'<figure id="([a-z]+)-', study_report.build([folder])))
    assert ids == {"throughput", "ttft", "speed", "latency"}


def test_all_bad_folders_are_named_at_once(tmp_path):
    with pytest.raises(BadInput) as caught:
        study_report.build([tmp_path / "x", tmp_path / "y"])
    assert len(caught.value.problems) == 2


def test_load_levels_of_stages_leave_warm_up_out():
    flat = {
        "load.stages.0.users": 99, "load.stages.0.warmup": True,
        "load.stages.1.users": 8, "load.stages.1.warmup": False,
    }  # fmt: skip
    assert study_points.load_level(flat) == (8.0, "users")
    assert study_points.load_level({"load.rate_per_s": 2.5}) == (2.5, "requests/s")
    assert study_points.load_level({}) == (0.0, "users")


def test_text_from_outside_stays_text(tmp_path):
    folder = run_folder.write(tmp_path / "a", run_folder.rows(n=60))
    summary = json.loads((folder / "summary.json").read_text())
    summary["run"]["name"] = "<script>alert(1)</script>"
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "<script>alert" not in study_report.build([folder])
