"""The dashboard as Grafana would read it: complete, up to date, speaking only of what exists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from expressions import METRICS, VLLM_METRICS, names

from exporters.grafana import build


def panels() -> list[dict[str, Any]]:
    return json.loads(build.FILE.read_text())["panels"]


def drawn() -> list[dict[str, Any]]:
    return [panel for panel in panels() if panel["type"] != "row"]


def test_the_file_is_what_the_table_builds() -> None:
    assert build.FILE.read_text() == build.text()


def test_identity() -> None:
    board = json.loads(build.FILE.read_text())
    assert board["uid"] == "tokenswarm-soak"
    assert board["id"] is None
    assert 36 <= board["schemaVersion"] <= 41
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert {"datasource", "workload", "stage"} <= set(variables)
    assert variables["datasource"]["type"] == "datasource"
    assert variables["slo_ttft"]["query"] == "2"


def test_panels_do_not_overlap_and_have_their_own_numbers() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in panels()]
    assert numbers == sorted(set(numbers))
    titles = [panel["title"] for panel in drawn()]
    assert len(titles) == len(set(titles))


def test_every_panel_is_complete() -> None:
    for panel in drawn():
        assert panel["type"] in ("timeseries", "stat", "heatmap")
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert (target["format"] == "heatmap") == (panel["type"] == "heatmap")


def test_rates_use_the_scrape_interval() -> None:
    """A fixed or too short window shows nothing when the scrape interval is longer."""
    for panel in drawn():
        for target in panel["targets"]:
            windows = set(re.findall(r"\[([^]]+)\]", target["expr"]))
            allowed = {"1h"} if "hour" in panel["title"] else {"$__rate_interval"}
            assert windows <= allowed, panel["title"]


def test_latencies_have_three_quantiles_a_limit_and_a_heatmap() -> None:
    by_title = {panel["title"]: panel for panel in drawn()}
    for title, metric, variable in (
        ("Time to first token (TTFT)", "time_to_first_token", "slo_ttft"),
        ("Inter-token latency (ITL)", "inter_token_latency", "slo_itl"),
        ("Time per output token (TPOT)", "time_per_output_token", "slo_tpot"),
        ("Request duration (E2E)", "request_duration", "slo_e2e"),
    ):
        lines = {t["legendFormat"]: t["expr"] for t in by_title[title]["targets"]}
        assert list(lines) == ["p50", "p90", "p99", "SLO"]
        for legend, q in (("p50", "0.5"), ("p90", "0.9"), ("p99", "0.99")):
            assert lines[legend].startswith(f"histogram_quantile({q}, sum by (le) (rate(")
            assert f"tokenswarm_{metric}_seconds_bucket{{" in lines[legend]
        assert lines["SLO"] == f"vector(${variable})"
        (overlay,) = by_title[title]["fieldConfig"]["overrides"]
        assert overlay["matcher"]["options"] == "SLO"
        heat = by_title[f"{title}: heatmap"]["targets"][0]["expr"]
        assert heat.startswith(f"sum by (le) (increase(tokenswarm_{metric}_seconds_bucket{{")


def test_every_metric_of_ours_is_shown() -> None:
    shown = {name for panel in drawn() for t in panel["targets"] for name in names(t["expr"])}
    ours = {name for name in shown if name.startswith("tokenswarm_")}
    histograms = {re.sub(r"_(bucket|count|sum)$", "", name) for name in ours}
    assert histograms == set(METRICS)
    assert {name for name in shown if name.startswith("vllm:")} <= VLLM_METRICS


@pytest.mark.parametrize("name", ["datasources", "dashboards"])
def test_provisioning(name: str) -> None:
    file = build.FILE.parents[1] / "provisioning" / name / "tokenswarm.yaml"
    content = yaml.safe_load(file.read_text())
    assert content["apiVersion"] == 1
    if name == "datasources":
        (source,) = content["datasources"]
        assert source["type"] == "prometheus"
        assert source["uid"] == "prometheus"
        assert source["jsonData"]["timeInterval"] == "5s"
    else:
        (provider,) = content["providers"]
        assert provider["type"] == "file"
        assert provider["options"]["path"].startswith("/")
