"""The recorded study of the README: three servers, two pairs of lengths, four batch sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from benchmarks.choosing_hardware import recorded
from exporters import study_points
from exporters.study_points import Point
from tokenswarm import study_model
from tokenswarm.simulator.settings import load

HERE = Path(recorded.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def points(folder: Path) -> list[Point]:
    found = recorded.unpack(folder)
    return study_points.read(list(found), {f.name: target for f, target in found.items()})


def test_it_is_the_grid_of_the_study_file_and_all_of_it_is_valid(points: list[Point]) -> None:
    study = yaml.safe_load((HERE / "study.yaml").read_text("utf-8"))
    wanted = {
        (target["label"], lengths[0], lengths[1], users)
        for target in study["targets"]
        for lengths in study["lengths"]
        for users in study["load"]["users"]
    }
    assert len(wanted) == 24
    assert {(p.configuration, *p.lengths, p.load) for p in points} == wanted
    assert [p.folder for p in points if not p.valid] == []


def test_its_files_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, plans = study_model.load(HERE / "study.yaml", simulated=True)
    corpus = (HERE.parent.parent / "workloads" / "sample_sharegpt.json").resolve()
    assert {Path(plan.workload.prompts.path).resolve() for plan in plans} == {corpus}


def test_figures_are_those_of_the_engines(points: list[Point]) -> None:
    for p in points:
        engine = load(p.configuration)
        planned_s = (engine.itl_ms + engine.itl_ms_per_running * p.load) / 1000
        assert p.tpot_p50 == pytest.approx(planned_s, rel=0.1), p.folder
        assert p.prices["total"] is not None
        assert p.total_rate is not None


def test_prices_follow_from_the_hourly_price_and_the_throughput(points: list[Point]) -> None:
    hourly = {"h100-like": 2.5, "a100-like": 1.6, "l4-like": 0.7}
    for p in points:
        assert p.total_rate is not None
        wanted = hourly[p.configuration] / (p.total_rate * 3600 * 0.7) * 1e6
        assert p.prices["total"] == pytest.approx(wanted)


def test_the_page_has_table_prices_curves_and_quadrants(tmp_path: Path) -> None:
    html = recorded.page(tmp_path)
    ids = set(re.findall(r'<figure id="([^"]+)"', html))
    for lengths in ("512-32", "128-64"):
        kinds = ("throughput", "latency", "price", "quadrants")
        assert {f"{kind}-{lengths}" for kind in kinds} <= ids
    assert len(re.findall(r"<th scope=row>[\w-]+-like@1x[\w-]+<td class=n>\d+ users", html)) >= 24
    words = set(re.findall(r"<td>(leader|challenger|follower|laggard)", html))
    assert len(words) >= 2


def test_the_pictures_of_the_readme_are_drawn_from_it() -> None:
    for name, svg in recorded.pictures().items():
        assert (HERE / name).read_text("utf-8") == svg, f"draw {name} again"
        assert len(svg) < 150_000
