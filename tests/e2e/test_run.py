"""A whole run on a Locust master and two workers: every count agrees, every time is true."""

import json
import shutil
import statistics
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter

import pytest
from product import free_port, run, run_command, running, workload, written

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
TOOLS = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="Debian's prometheus package is not installed (make debian-tools)",
)
STAGES = [
    {"name": "warm", "duration": "1s", "users": 3, "warmup": True},
    {"name": "main", "duration": "2s", "users": 6},
]
LATE_S = 0.002  # how far client and engine may differ


def fetch(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


class Prometheus:
    """A real Prometheus that scrapes one target twice a second."""

    def __init__(self, folder, target):
        folder.mkdir()
        job = {"job_name": "t", "static_configs": [{"targets": [target]}]}
        config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", "--log.level=error",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                fetch(self.url + "/-/ready")
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
            else:
                return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self._log.close()

    def last(self, series):
        """Labels (as sorted pairs) and the last value that was scraped of each series."""
        query = urllib.parse.urlencode({"query": f"last_over_time({series}[5m])"})
        result = json.loads(fetch(f"{self.url}/api/v1/query?{query}"))["data"]["result"]
        return [(row["metric"], float(row["value"][1])) for row in result]

    def total(self, series):
        return sum(value for _, value in self.last(series))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """One run, and all that anybody saw of it."""
    tmp = tmp_path_factory.mktemp("run")
    port = free_port()
    target = f"127.0.0.1:{port}"
    file = written(tmp, workload(load={"stages": STAGES}, slo={"ttft": "<10s"}))
    with (
        EngineProcess("--set", "base_ms=20", "itl_ms=5") as engine,
        Prometheus(tmp / "prometheus", target) as prometheus,
    ):
        command = run_command(file, engine.url, tmp / "out", "--workers", "2",
                              "--export", f"prometheus={target}")  # fmt: skip
        with running(command, tmp / "out") as going:
            going.wait_for(lambda: going.recorded() > 20, "records")
            going.metrics = fetch(f"http://{target}/metrics")
            finished = going.finish()
        finished.metrics = going.metrics
        finished.engine = engine.log()
        finished.prometheus = {
            name: prometheus.last("tokenswarm_" + name)
            for name in ("requests_total", "prompt_tokens_total", "output_tokens_total",
                         "time_to_first_token_seconds_count", "slo_met_total",
                         "inter_token_latency_seconds_count", "run_state",
                         "time_to_first_token_seconds_sum", "coalesced_reads_total")
        }  # fmt: skip
    return finished


@pytest.fixture
def finished(seen):
    assert seen.code == 0, seen.said
    return seen


@pytest.fixture
def answered(finished):
    """The engine's log without the probe, which is in no count of the run."""
    probe, *rest = finished.engine
    assert probe["output_tokens"] == 1
    return rest


@TOOLS
def test_every_count_agrees(finished, answered):
    summary, rows = finished.summary, finished.rows
    n = len(answered)
    assert n > 50
    assert {line["outcome"] for line in answered} == {"ok"}
    counts = summary["requests"]
    assert [counts[k] for k in ("due", "sent", "ok")] == [n, n, n]
    assert [counts[k] for k in ("failed", "dropped", "lost")] == [0, 0, 0]
    assert counts["by_outcome"] == {"ok": n}
    workers = Counter(row["worker"] for row in rows)
    assert len(workers) == 2
    assert sum(workers.values()) == n
    assert len({row["index"] for row in rows}) == n
    assert sum(stage["requests"]["sent"] for stage in summary["stages"]) == n
    scraped = finished.prometheus["requests_total"]
    assert {labels["outcome"]: v for labels, v in scraped if v} == {"ok": n}


@TOOLS
def test_every_token_count_agrees(finished, answered):
    summary, rows = finished.summary, finished.rows
    prompt = sum(line["prompt_tokens"] for line in answered)
    output = sum(line["tokens_sent"] for line in answered)
    assert (prompt, output) == (64 * len(answered), 8 * len(answered))
    assert summary["tokens"] == {"prompt": prompt, "output": output}
    assert sum(row["prompt_tokens"] for row in rows) == prompt
    assert sum(row["output_tokens"] for row in rows) == output
    assert sum(row["events"] for row in rows) == output
    assert sum(v for _, v in finished.prometheus["prompt_tokens_total"]) == prompt
    assert sum(v for _, v in finished.prometheus["output_tokens_total"]) == output
    assert summary["prompts"] == {"exact": len(rows), "compared": len(rows), "difference": {}}


@TOOLS
def test_histograms_hold_every_request_and_every_gap(finished, answered):
    summary, rows = finished.summary, finished.rows
    stages = Counter(row["stage"] for row in rows)
    scraped = finished.prometheus["time_to_first_token_seconds_count"]
    assert {labels["stage"]: v for labels, v in scraped} == stages
    gaps = sum(v for _, v in finished.prometheus["inter_token_latency_seconds_count"])
    assert gaps == 7 * len(rows)
    total = sum(v for _, v in finished.prometheus["time_to_first_token_seconds_sum"])
    assert total == pytest.approx(sum(row["ttft_s"] for row in rows), rel=1e-6)
    assert sum(v for _, v in finished.prometheus["slo_met_total"]) == len(rows)
    assert summary["metrics"]["itl_s"]["count"] == 7 * stages["main"]


def test_warm_up_is_in_the_counts_and_not_in_the_metrics(finished):
    summary, rows = finished.summary, finished.rows
    main = [row for row in rows if row["stage"] == "main"]
    assert 0 < len(main) < len(rows)
    assert {row["warmup"] for row in main} == {False}
    assert {row["warmup"] for row in rows if row["stage"] == "warm"} == {True}
    assert summary["metrics"]["ttft_s"]["count"] == len(main)
    assert summary["metrics"]["ttft_s"]["max"] == max(row["ttft_s"] for row in main)
    assert summary["requests"]["due"] == len(rows)
    assert summary["window"]["seconds"] == pytest.approx(2)


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, round(q * (len(values) - 1)))]


@pytest.mark.parametrize("q", [0.5, 0.99])
def test_ttft_and_tpot_are_the_engines(finished, answered, q):
    rows = finished.rows
    true_ttft = [line["first_sent"] - line["received"] for line in answered]
    assert quantile([row["ttft_s"] for row in rows], q) == pytest.approx(
        quantile(true_ttft, q), abs=LATE_S
    )
    true_tpot = [(line["last_sent"] - line["first_sent"]) / 7 for line in answered]
    assert quantile([row["tpot_s"] for row in rows], q) == pytest.approx(
        quantile(true_tpot, q), abs=LATE_S
    )


def test_stamps_are_the_engines_instants(finished, answered):
    """Client and engine share a clock here: the n-th first token came when the n-th was sent."""
    came = sorted(row["first_token"] for row in finished.rows)
    sent = sorted(line["first_sent"] for line in answered)
    late = [c - s for c, s in zip(came, sent, strict=True)]
    assert -0.0001 < statistics.median(late) < LATE_S


def test_a_request_is_due_when_the_one_before_ended(finished):
    """Closed loop: at no time more in flight than users, and nearly always as many."""
    rows = finished.rows
    edges = sorted([(r["sent"], 1) for r in rows] + [(r["end"], -1) for r in rows],
                   key=lambda edge: (edge[0], edge[1]))  # fmt: skip
    going = most = 0
    for _, step in edges:
        going += step
        most = max(most, going)
    assert most == 6
    for row in rows:
        assert row["due"] <= row["sent"] <= row["first_token"] <= row["last_token"] <= row["end"]


@TOOLS
def test_promtool_finds_nothing_to_say(finished):
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=finished.metrics, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@TOOLS
def test_prometheus_saw_the_run_end(finished):
    states = {labels["state"]: value for labels, value in finished.prometheus["run_state"]}
    assert states["done"] == 1
    assert sum(states.values()) == 1


def test_the_folder_of_the_run(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert names == {"summary.json", "requests.jsonl", "timeline.jsonl", "workload.yaml",
                     "workers.json", "report.html", "junit.xml"}  # fmt: skip
    workers = json.loads((finished.folder / "workers.json").read_text())
    assert [w["index"] for w in workers] == [0, 1]
    assert {w["id"] for w in workers} == {row["worker"] for row in finished.rows}
    assert "VALID RUN" in finished.out


def test_a_missed_slo_is_exit_code_1_and_in_the_junit_file(tmp_path):
    with EngineProcess("--engine", "fast") as engine:
        finished = run(tmp_path, engine.url, "--workers", "0", load={"users": 2, "requests": 120},
                       slo={"p50(ttft)": "<1us", "p90(e2e)": "<60s"})  # fmt: skip
    assert finished.code == 1, finished.said
    assert finished.summary["valid"] is True
    assert finished.summary["slo"]["passed"] is False
    junit = (finished.folder / "junit.xml").read_text()
    assert junit.count("<failure") == 1
    assert "FAIL p50(ttft)" in finished.out
