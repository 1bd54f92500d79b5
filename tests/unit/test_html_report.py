import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import run_folder

from exporters import html_report, report_pictures, report_samples, report_server
from exporters.report_view import look
from tokenswarm import economics

VOID = {"meta", "br", "link", "img", "hr", "input"}
OPTIONAL = {"tr", "td", "th", "thead", "tbody", "li", "p"}  # HTML lets these end by themselves


class Page(HTMLParser):
    """The page's text and elements, and whether its elements are nested well."""

    def __init__(self, html):
        super().__init__()
        self.open, self.wrong, self.found, self.words = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open[-1] != tag and self.open[-1] in OPTIONAL:
            self.open.pop()
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def ids(self, tag):
        return [attrs.get("id") for name, attrs in self.found if name == tag]


def build(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return html_report.build(summary, folder / "requests.jsonl", folder / "timeline.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_folder.write(
        tmp_path_factory.mktemp("run"), run_folder.rows(n=1500, burst=True, itl=True)
    )


@pytest.fixture(scope="module")
def html(folder):
    return build(folder)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_every_element_is_closed(page):
    assert page.wrong == []
    assert page.open == []


def test_it_needs_nothing_from_the_network(page, html):
    for tag, attrs in page.found:
        assert "src" not in attrs, tag
        assert not re.match(r"\w+:|//", attrs.get("href") or ""), attrs
    assert tag_with(page, "link") is None
    assert "@import" not in html
    assert "url(" not in html
    policy = next(a["content"] for t, a in page.found if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def tag_with(page, tag):
    return next((attrs for name, attrs in page.found if name == tag), None)


def test_the_verdict_comes_first_and_names_the_slo_that_failed(page, folder):
    summary = json.loads((folder / "summary.json").read_text())
    ratio = summary["requests"]["failed"] / summary["requests"]["due"]
    start = page.text[: page.text.index("Key figures")]
    assert "Valid run, but it fails 1 of 3 SLOs" in start
    assert f"error_ratio {html_report.show(ratio, 'share')}, wanted <1%" in start


def test_figures_are_those_of_the_summary(page, folder):
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        row = page.text[page.text.index(f" {name} ", page.text.index("Metric")) :][:200]
        for key in ("mean", "p50", "p99", "max"):
            assert html_report.show(metrics[name][key], "s") in row, (name, key)


def test_it_has_every_picture(page):
    assert set(page.ids("figure")) == {
        "percentiles", "time-ttft_s", "time-itl_s", "time-tpot_s", "time-e2e_s",
        "histogram-ttft_s", "histogram-itl_s", "histogram-tpot_s", "histogram-e2e_s",
        "histogram-longest_gap_s", "histogram-send_delay_s", "throughput", "completions",
        "in-flight", "rates", "send-delay", "errors", "stalls", "lengths-prompt_tokens",
        "lengths-output_tokens", "against-prompt_tokens-ttft_s", "against-output_tokens-e2e_s",
        "worker-cpu", "worker-lag",
    }  # fmt: skip


def test_every_link_leads_somewhere_on_the_page(page):
    ids = {attrs["id"] for _, attrs in page.found if "id" in attrs}
    links = {attrs["href"] for tag, attrs in page.found if tag == "a"}
    assert links
    assert {link[1:] for link in links} <= ids


def test_every_metric_leads_to_its_definition(html, page):
    titles = re.findall(r"<h3>(.*?)</h3>", html)
    assert len(titles) == 24
    assert [t for t in titles if not t.startswith('<a href="#word-')] == []
    for section in ("slos", "stages"):
        table = html[html.index(f"<section id={section}>") :].partition("</table>")[0]
        cells = re.findall(r"<th class=n>(.*?)(?=<)", table.partition("</thead>")[0])
        if section == "stages":
            assert cells == [""] * 9  # links all
        else:
            assert table.count("<td class=wrap><a href=") == 3
    metrics = re.findall(r'<th scope=row title="([^"]+)"><a href="#word-(\w+)">', html)
    assert {"ttft_s", "itl_s", "tpot_s", "e2e_s", "longest_gap_s"} <= {name for _, name in metrics}
    assert page.text.count("What the words mean") == 1


@pytest.mark.parametrize(
    ("key", "metric", "word"),
    [
        ("p99(ttft)", "ttft_due_s", "ttft_due_s"),
        ("p99(ttft)", "", "ttft_s"),
        ("main: p50(tpot)", "tpot_s", "tpot_s"),
        ("error_ratio", "error_ratio", "error ratio"),
        ("main: output_tokens_per_s", "", "throughput"),
        ("attainment", "", "goodput"),
        ("nobody knows", "", ""),
    ],
)
def test_slos_lead_to_the_definition_of_their_metric(key, metric, word):
    assert html_report.slo_word(key, metric) == word


def test_text_from_outside_stays_text(tmp_path):
    evil = "<script>alert(1)</script>"
    rows = [dict(r, stage=evil, worker=evil) for r in run_folder.rows(n=60)]
    found = run_folder.write(tmp_path, rows)
    summary = json.loads((found / "summary.json").read_text())
    summary["run"]["name"] = summary["run"]["model"] = evil
    summary["warnings"] = [evil]
    summary["valid"] = False
    summary["invalid_reasons"] = [{"code": evil, "detail": evil}]
    summary["server"] = {evil: evil, "series" + evil: [[1, 2], [2, 3]]}
    for worker in summary["generator"]["workers"]:
        worker["id"] = evil
    html = html_report.build(summary, found / "requests.jsonl", found / "timeline.jsonl")
    assert evil not in html
    assert "&lt;script&gt;alert(1)" in html
    assert Page(html).wrong == []


def test_secrets_are_not_shown(html):
    assert "hunter2" not in html
    assert "sk-secret" not in html
    assert "api_key: (not shown)" in html


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid": False, "invalid_reasons": [{"code": "worker_lost", "detail": "w1 died"}]},
         ("Invalid run: its numbers must not be used", "worker_lost w1 died")),
        ({"slo": {"passed": True, "checks": []}}, ("Valid run, no SLOs were checked",)),
        ({"slo": {"passed": True, "checks": [{"key": "p99(ttft)", "text": "p99(ttft) <2s",
          "actual": 1.0, "passed": True}]}}, ("Valid run, all SLOs met", "PASS p99(ttft) <2s 1 s")),
        ({"slo": {"passed": None, "checks": [{"key": "p99(ttft)", "text": "p99(ttft) <2s",
          "actual": None, "passed": None, "detail": "3 values are too few"}]}},
         ("Valid run, but not every SLO could be judged", "NOT JUDGED", "3 values are too few")),
    ],
)  # fmt: skip
def test_verdicts(tmp_path, changes, words):
    folder = run_folder.write(tmp_path, run_folder.rows(n=60), with_timeline=False, **changes)
    text = Page(build(folder)).text
    for word in words:
        assert word in text


def test_a_run_without_a_request_log_is_drawn_from_its_timeline(folder):
    summary = json.loads((folder / "summary.json").read_text())
    page = Page(html_report.build(summary, None, folder / "timeline.jsonl"))
    assert set(page.ids("figure")) == {
        "percentiles", "time-ttft_s", "time-itl_s", "time-tpot_s", "time-e2e_s", "throughput",
        "completions", "in-flight", "rates", "time-send_delay_s", "errors", "worker-cpu",
        "worker-lag",
    }  # fmt: skip


def test_the_servers_own_view_is_drawn_and_listed(folder, tmp_path):
    summary = json.loads((folder / "summary.json").read_text())
    summary["server"] = {
        "engine": "vllm", "urls": ["http://user:hunter2@127.0.0.1:8000/metrics?key=abc"],
        "latencies": {"ttft_s": {"count": 12, "mean": 0.25, "p99": None}},
        "prefix_cache_hit_ratio": 0.015, "counts": {"prompt_tokens": 5120}, "seconds": 26.5,
        "gauges": {"running": {"mean": 3.5, "max": 8.0}},
    }  # fmt: skip
    rows = [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]
    for k, row in enumerate(rows):
        row["server"] = {"running": k % 5, "output_tokens_per_s": 100.0 + k} if k else None
    timeline = tmp_path / "timeline.jsonl"
    timeline.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = Page(html_report.build(summary, folder / "requests.jsonl", timeline))
    assert {"server-running-0", "server-output-tokens-per-s-1"} <= set(page.ids("figure"))
    assert page.text.count("Output tokens per second") == 2  # ours and the server's
    for words in ("Engine vllm", "Read from http://127.0.0.1:8000/metrics?…",
                  "Latencies by the server's clock count mean p99 TTFT 12 250 ms –",
                  "Share of prompt tokens found in the prefix cache 1.5 %",
                  "State of the server when it was looked at mean max Requests running 3.5 8",
                  "Counted by the server: prompt tokens 5,120", "Watched for 26.5 s",
                  "buckets of the server's histogram, which are coarse"):  # fmt: skip
        assert words in page.text


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("kv_use",), 0.0625, "6.25 %"), (("gpus", "0", "use", "mean"), 0.5, "50 %"),
        (("gpus", "0", "power_w", "max"), 412.0, "412 W"),
        (("gpu_memory_bytes",), 8e9, "8 GB"), (("gpu_temperature_c",), 71.0, "71 °C"),
        (("prompt_tokens_per_s",), 1500.0, "1,500"), (("requests_per_s",), 2.5, "2.5 /s"),
        (("latencies", "ttft_s", "p90"), 0.058, "58 ms"), (("looks",), 7, "7"),
        (("house_number",), 12.0, "12"),
    ],
)  # fmt: skip
def test_figures_of_the_server_have_units(path, value, text):
    assert report_server._scalar(path, value) == text


def test_percentiles_over_time_differ_in_picture_and_legend(html):
    figure = html[html.index('<figure id="time-ttft_s"') :].partition("</figure>")[0]
    legend = re.findall(r'<li class="([^"]+)">(\w+)', figure)
    assert legend == [
        ("k-line c0", "p50"),
        ("k-line dotted c0", "p90"),
        ("k-line dashed c0", "p99"),
    ]
    assert re.findall(r'<path class="(line[^"]*)"', figure) == [
        "line c0", "line dotted c0", "line dashed c0",
    ]  # fmt: skip


def test_the_largest_send_delay_is_seen_behind_p99(html):
    figure = html[html.index('<figure id="send-delay"') :].partition("</figure>")[0]
    assert re.findall(r'<path class="(line[^"]*)"', figure) == [
        "line wide c3",
        "line c5",
        "line c4",
    ]


def test_why_more_requests_are_counted_than_measured():
    def stage(ok, warmup):
        return {"name": "s", "warmup": warmup, "requests": {"ok": ok}}

    summary = {"requests": {"ok": 280}, "stages": [stage(32, True), stage(248, False)]}
    assert html_report.scope(summary).startswith(
        "Requests are counted over the whole run: 32 of the 280 ok were warm-up."
    )
    assert html_report.scope({**summary, "stages": [stage(280, False)]}) == ""


def test_workers_have_short_names_and_are_finished_when_the_run_is():
    workers = [
        {"id": "vm_55dc64e6a8b847dd9f999bfc6772e067", "state": "running"},
        {"id": "w1", "state": "missing"}, {"id": "w2", "state": "running", "lost": True},
    ]  # fmt: skip
    rows = html_report.worker_rows({"generator": {"workers": workers}})
    assert [(row[0], row[5]) for row in rows] == [
        ("vm_55dc64…e067", "finished"), ("w1", "missing"), ("w2", "lost"),
    ]  # fmt: skip
    assert rows[0][6] == "vm_55dc64e6a8b847dd9f999bfc6772e067"


def test_utilization_is_shown_with_its_formula_and_inputs(folder):
    summary = json.loads((folder / "summary.json").read_text())
    hardware = economics.Hardware("H100-SXM", 4, 3350e9, 989e12, 2)
    summary["utilization"] = economics.utilization(
        summary, hardware, economics.Model(8e9, 2.0, 131_072),
        {"sequences": 20.0, "context_tokens": 20_000.0},
    )  # fmt: skip
    text = Page(html_report.build(summary, None, None)).text
    use, tpot = summary["utilization"], summary["metrics"]["tpot_s"]["p50"]
    assert use["mbu"] == pytest.approx((16e9 + 10_000 * 131_072) / tpot / 6700e9)
    shown = html_report.show(use["mbu"], "share")
    assert (f"{shown} = (16 GB of parameters + 1.31 GB of KV cache) / TPOT p50 "
            f"{html_report.show(tpot, 's')} / 6.7 TB/s") in text  # fmt: skip
    assert f"{html_report.show(use['mfu'], 'share')} = 2 x 8 billion parameters" in text
    assert "10 sequences (time average), 131,072 bytes of KV cache a token" in text
    assert f"MBU {shown}" in text[text.index("Key figures") :]


def with_model(folder, model, running):
    """The folder's summary, had its hardware and model been described."""
    summary = json.loads((folder / "summary.json").read_text())
    hardware = economics.Hardware("H100-SXM", 4, 3350e9, 989e12, 2, 80e9)
    summary["utilization"] = economics.utilization(summary, hardware, model, running)
    return json.loads(json.dumps(summary))


RUNNING = {"sequences": 20.0, "context_tokens": 20_000.0}


def test_a_described_model_has_a_roofline_with_formula_and_inputs(folder):
    summary = with_model(folder, economics.Model(8e9, 2.0, 131_072), RUNNING)
    html = html_report.build(summary, None, None)
    page = Page(html)
    assert page.ids("figure")[-1] == "roofline"
    assert '<a href="#word-utilization">Roofline of decoding</a>' in html
    rate = summary["throughput"]["output_tokens_per_s"] / 2  # of one replica
    roof = 10 * 6700e9 / (16e9 + 10 * 1000 * 131_072)
    note = page.text[page.text.index("Measured: ") :]
    assert note.startswith(
        f"Measured: {html_report.show(rate, '')} tokens/s at 10 sequences, "
        f"{html_report.show(rate / roof, 'share')} of the bandwidth roof. "
        "Bandwidth roof: batch x B / (W + batch x C x K). Compute roof: F / (2 x P). "
        "B = 6.7 TB/s, F = 1,978 TFLOPS: peaks of a replica (2 x H100-SXM). "
        "W = 16 GB, parameters read a step; P = 8 billion, parameters at work for a token. "
        "C = 1,000 tokens, context of a sequence (time average); K = 131 kB, KV cache of a token."
    )


def test_the_run_is_a_point_under_the_roofs(folder):
    model = economics.Model(8e9, 2.0, 131_072)
    html = html_report.build(with_model(folder, model, RUNNING), None, None)
    figure = html[html.index('<figure id="roofline"') :].partition("</figure>")[0]
    data = json.loads(re.search(r"<script type=application/json>(.*?)</script>", figure)[1])
    hardware = economics.Hardware("H100-SXM", 4, 3350e9, 989e12, 2, 80e9)
    roofs = economics.roofline(hardware, model, 1000, [1 / 1.05, 64 * 1.05])
    series = dict(data["s"])
    for k, roof in ((0, roofs[0]), (-1, roofs[1])):
        assert series["bandwidth"][k] == html_report.show(roof.by_bandwidth, "")
        assert series["compute"][k] == html_report.show(1978e12 / 16e9, "")
    left, top = map(float, re.search(r'class="point large c0" d="M(\S+) ([^a]+)a', figure).groups())
    line = re.search(r'class="line c1" d="M(.*?)"', figure)[1].split("L")
    places = [tuple(map(float, place.split())) for place in line]
    assert data["x"][0] < left + 5 < data["x"][-1]
    above = [y for x, y in places if abs(x - left - 5) < 6]
    assert above
    assert all(y < top for y in above)


def test_a_roofline_of_experts_says_which_parameters_are_read(folder):
    model = economics.Model(47e9, 2.0, 131_072, 0.96, 8, 2)
    page = Page(html_report.build(with_model(folder, model, RUNNING), None, None))
    read = html_report.size(model.bytes_read(10))
    assert f"W = {read}, parameters read a step (of experts, those that 10 sequences" in page.text


def test_a_point_above_the_roof_is_doubted(folder):
    model = economics.Model(9e14, 2.0, 131_072)
    text = Page(html_report.build(with_model(folder, model, RUNNING), None, None)).text
    assert "More than is possible: hardware or model are not those described." in text


@pytest.mark.parametrize("lack", ["utilization", "inputs", "replica", "batch", "throughput"])
def test_without_what_it_is_made_of_there_is_no_roofline(folder, lack):
    summary = with_model(folder, economics.Model(8e9, 2.0, 131_072), RUNNING)
    use = summary["utilization"]
    if lack == "utilization":
        summary["utilization"] = None
    elif lack == "inputs":
        use["inputs"] = None
    elif lack == "replica":  # a summary written before this picture was
        del use["inputs"]["gpus_per_replica"]
    elif lack == "batch":
        use["inputs"]["batch"] = 0.0
    else:
        summary["throughput"]["output_tokens_per_s"] = None
    page = Page(html_report.build(summary, None, None))
    assert "roofline" not in page.ids("figure")
    assert "Hardware" not in page.text


def test_a_run_with_nothing_but_a_summary_has_a_page():
    page = Page(html_report.build({"valid": False, "metrics": {}, "run": {}}, None, None))
    assert "Invalid run" in page.text
    assert "there are no latency figures" in page.text
    assert page.ids("figure") == []


def test_a_run_in_which_everything_failed_has_a_page(tmp_path):
    folder = run_folder.write(tmp_path, run_folder.rows(n=80, error_share=1.0))
    page = Page(build(folder))
    assert "errors" in page.ids("figure")
    assert "histogram-ttft_s" not in page.ids("figure")


def test_one_request_is_enough(tmp_path):
    folder = run_folder.write(tmp_path, run_folder.rows(n=1, error_share=0, stages=("main",)))
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows[0]["warmup"] = False
    page = Page(build(run_folder.write(tmp_path, rows)))
    assert {"percentiles", "histogram-ttft_s", "lengths-prompt_tokens"} <= set(page.ids("figure"))


def test_a_torn_line_is_said(tmp_path):
    folder = run_folder.write(tmp_path, run_folder.rows(n=50))
    with (folder / "requests.jsonl").open("a") as file:
        file.write('{"index": 50, "outc')
    assert "1 line(s) of the request log could not be read" in Page(build(folder)).text


def test_the_log_and_the_summary_give_the_same_percentiles(folder):
    """The percentile picture is drawn from the log, the figures are the summary's: one truth."""
    summary = json.loads((folder / "summary.json").read_text())
    view = look(summary, folder / "requests.jsonl", folder / "timeline.jsonl")
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        q, values = report_samples.curve(view, name)
        for key, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            drawn = np.interp(share, q, values)
            assert drawn == pytest.approx(summary["metrics"][name][key], rel=0.03), (name, key)


def test_tokens_and_requests_are_conserved_in_the_pictures(folder):
    summary = json.loads((folder / "summary.json").read_text())
    view = look(summary, folder / "requests.jsonl", folder / "timeline.jsonl")
    assert report_samples.tokens_until(view)[-1] == pytest.approx(summary["tokens"]["output"])
    assert view.counts(view.since_start("due")).sum() == summary["requests"]["due"]
    failed = {k: int(v.sum()) for k, v in report_pictures._failures(view).items()}
    assert failed == {k: n for k, n in summary["requests"]["by_outcome"].items() if k != "ok"}


def test_stages_are_shaded_where_their_requests_were_due(folder):
    view = look(json.loads((folder / "summary.json").read_text()), folder / "requests.jsonl", None)
    assert [(s.name, s.muted) for s in view.shades] == [
        ("warm-up", True), ("16 users", False), ("64 users", False), ("drain", True),
    ]  # fmt: skip
    assert [s.start for s in view.shades] == pytest.approx([0, 30, 60, 90.5], abs=0.2)
