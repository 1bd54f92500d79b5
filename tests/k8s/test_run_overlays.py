"""Overlays executed as local processes: what their Jobs end as, and why."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from manifests import one
from run_rendered import JobStatus, Rendered, edited

pytestmark = pytest.mark.e2e

SIMULATE = ["tokenswarm", "simulate", "--host", "0.0.0.0", "--port", "8000"]
COMPLETE = JobStatus(complete=True)
REFUSED = JobStatus(complete=False, reason="PodFailurePolicy")
# What a user would edit in run.yaml to run an overlay's own machinery on other things.
HERE = {
    "WORKERS": "2",
    "WORKLOAD": "edited.yaml",
    "MODEL": "demo",
    "TOKENIZER_SOURCE": "tiktoken",
    "TOKENIZER": "cl100k_base",
    "WAIT_READY": "60",
    "LINGER": "0",
}
Text = Callable[..., str]


@contextmanager
def running(
    overlay: str,
    folder: Path,
    cache: Path,
    workload: str,
    numbers: Mapping[str, str] | None = None,
    engine: Sequence[str] = (),
    wrap: Sequence[str] = (),
) -> Iterator[Rendered]:
    """An overlay with its engine ready and its generators started."""
    objects = edited(overlay, folder / "source", {**HERE, **(numbers or {})}, workload)
    log = folder / "engine.jsonl"
    with Rendered(
        objects,
        folder / "run",
        replace={"engine": [*SIMULATE, "--log", str(log), *engine]},
        wrap=wrap,
        cache=cache,
    ) as rendered:
        rendered.start("engine")
        rendered.wait_ready("engine", 60)
        rendered.start("worker", "master")
        yield rendered


def summary(rendered: Rendered) -> dict[str, Any]:
    file = rendered.results() / "summary.json"
    assert file.exists(), rendered.logs()
    return json.loads(file.read_text())


def wait_for_requests(rendered: Rendered, number: int = 5) -> None:
    """Until requests have ended and their records reached the master's disk."""
    file = rendered.results() / "requests.jsonl"

    def enough() -> bool:
        assert rendered.pods["master"][0].exit_code is None, rendered.logs()
        return file.exists() and file.read_bytes().count(b"\n") >= number

    rendered.wait(enough, 60, f"{number} requests")


@pytest.mark.parametrize("overlay", ["smoke-cpu", "headless"])
def test_a_run_completes(overlay: str, tmp_path: Path, cache: Path, workload: Text) -> None:
    load = {"mode": "closed", "users": 4, "requests": 40}
    with running(overlay, tmp_path, cache, workload(load)) as rendered:
        status = rendered.finish(90)
        found = summary(rendered)
        assert found["invalid_reasons"] == [], rendered.logs()
        assert status == {"master": COMPLETE, "worker": COMPLETE}, rendered.logs()
        assert rendered.pods["master"][0].exit_code == 0
        assert found["requests"]["ok"] == found["requests"]["sent"] == 40
        assert found["run"]["workers"] == 2
        assert found["prompts"]["exact"] == found["prompts"]["compared"] == 40
        names = {path.name for path in rendered.results().iterdir()}
        assert {"summary.json", "requests.jsonl", "timeline.jsonl", "workload.yaml"} <= names
        assert {"workers.json", "junit.xml"} <= names
    # The engine's own account: the run, and before it the requests for one token each that wait
    # for the engine and probe it.
    done = [json.loads(line) for line in (tmp_path / "engine.jsonl").read_text().splitlines()]
    sent = Counter(entry["tokens_sent"] for entry in done)
    assert sent.pop(1) >= 1
    assert sent == {16: 40}


def test_a_run_writes_only_to_its_volumes(tmp_path: Path, workload: Text) -> None:
    """readOnlyRootFilesystem for real: everything but the pods' own folders is read-only."""
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind / && exec "$@"'
    wrap = ["unshare", "--mount", "sh", "-c", script, str(tmp_path)]
    outside = tmp_path.parent / "outside"
    if subprocess.run([*wrap, "touch", str(tmp_path / "inside")], check=False).returncode != 0:
        pytest.skip("needs root and unshare to make the file system read-only")
    assert subprocess.run([*wrap, "touch", str(outside)], check=False).returncode != 0
    load = {"mode": "closed", "users": 4, "requests": 40}
    cache = tmp_path / "cache"
    cache.mkdir()
    with running("headless", tmp_path, cache, workload(load), wrap=wrap) as rendered:
        assert rendered.finish(90)["master"] == COMPLETE, rendered.logs()
        assert summary(rendered)["requests"]["ok"] == 40
        assert (rendered.results() / "locust.json").is_file()
        assert "Traceback" not in rendered.logs()
        assert "ead-only file system" not in rendered.logs()


def test_a_missed_slo_fails_the_job_with_1(tmp_path: Path, cache: Path, workload: Text) -> None:
    load = {"mode": "closed", "users": 4, "requests": 40}
    text = workload(load, slo={"p50(ttft)": "<10us", "error_ratio": "<1%"})
    with running("headless", tmp_path, cache, text) as rendered:
        status = rendered.finish(90)
        assert rendered.pods["master"][0].exit_code == 1, rendered.logs()
        assert status == {"master": REFUSED, "worker": COMPLETE}
        found = summary(rendered)
        assert found["valid"] is True
        assert found["slo"]["passed"] is False
        assert 'failures="1"' in (rendered.results() / "junit.xml").read_text()


def test_bad_input_fails_the_job_with_2_and_sends_nothing(
    tmp_path: Path, cache: Path, workload: Text
) -> None:
    text = workload({"mode": "closed", "users": 4, "requests": 40, "userz": 1})
    with running("headless", tmp_path, cache, text) as rendered:
        master = rendered.pods["master"][0]
        rendered.wait(lambda: master.exit_code is not None, 60, "the master's refusal")
        assert master.exit_code == 2, rendered.logs()
        assert "userz" in master.text()
        assert "edited.yaml:" in master.text()
    assert (tmp_path / "engine.jsonl").read_text() == ""


def test_a_killed_worker_fails_the_job_with_3(tmp_path: Path, cache: Path, workload: Text) -> None:
    load = {"mode": "closed", "users": 4, "duration": "120s"}
    with running("headless", tmp_path, cache, workload(load)) as rendered:
        wait_for_requests(rendered)
        victim, other = rendered.pods["worker"]
        victim.signal(signal.SIGKILL)
        status = rendered.finish(60)
        assert rendered.pods["master"][0].exit_code == 3, rendered.logs()
        assert status["master"] == REFUSED
        assert status["worker"] == JobStatus(complete=False, reason="BackoffLimitExceeded")
        assert victim.exit_code == 137
        assert other.exit_code is not None  # terminated with its Job
        found = summary(rendered)
        assert found["valid"] is False
        assert "worker_lost" in {reason["code"] for reason in found["invalid_reasons"]}
        assert found["requests"]["ok"] >= 5


def test_a_soak_outlives_a_killed_worker_and_says_so(
    tmp_path: Path, cache: Path, workload: Text
) -> None:
    load = {"mode": "open", "arrivals": "poisson", "rate_per_s": 20, "duration": "12s"}
    with running("soak", tmp_path, cache, workload(load)) as rendered:
        wait_for_requests(rendered)
        victim, other = rendered.pods["worker"]
        victim.signal(signal.SIGKILL)
        before = summary_lines(rendered)
        status = rendered.finish(90)
        assert rendered.pods["master"][0].exit_code == 3, rendered.logs()
        assert other.exit_code == 0, rendered.logs()
        assert status["worker"] == JobStatus(complete=False, reason="FailedIndexes")
        found = summary(rendered)
        assert "worker_lost" in {reason["code"] for reason in found["invalid_reasons"]}
        requests = found["requests"]
        assert requests["due"] == requests["sent"] + requests["dropped"] + requests["lost"]
        assert summary_lines(rendered) > before  # the other went on


def summary_lines(rendered: Rendered) -> int:
    return (rendered.results() / "requests.jsonl").read_bytes().count(b"\n")


def test_a_terminated_master_fails_the_job_with_3(
    tmp_path: Path, cache: Path, workload: Text
) -> None:
    """Eviction, node drain, `kubectl delete`: the numbers so far are kept, the run is invalid."""
    load = {"mode": "closed", "users": 4, "duration": "120s"}
    with running("headless", tmp_path, cache, workload(load)) as rendered:
        wait_for_requests(rendered)
        master = rendered.pods["master"][0]
        master.signal(signal.SIGTERM)
        status = rendered.finish(60)
        assert master.exit_code == 3, rendered.logs()
        assert status["master"] == REFUSED
        found = summary(rendered)
        assert found["valid"] is False
        assert "cut_short" in {reason["code"] for reason in found["invalid_reasons"]}
        assert found["requests"]["ok"] >= 5
        requests = found["requests"]
        assert requests["sent"] == sum(requests["by_outcome"].values())


def test_metrics_are_scraped_while_the_run_lingers(
    tmp_path: Path, cache: Path, workload: Text
) -> None:
    load = {"mode": "closed", "users": 4, "requests": 40}
    text = workload(load)
    with running("headless", tmp_path, cache, text, {"LINGER": "8"}) as rendered:
        file = rendered.results() / "summary.json"
        rendered.wait(file.exists, 90, "the summary")
        url = f"http://127.0.0.1:{rendered.port(9646)}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            page = answer.read().decode()
        assert 'tokenswarm_requests_total{outcome="ok"} 40.0' in page
        assert 'tokenswarm_run_state{state="done"} 1.0' in page
        assert rendered.pods["master"][0].exit_code is None
        assert rendered.finish(60)["master"] == COMPLETE


def test_the_web_ui_starts_and_stops_a_run(tmp_path: Path, cache: Path, workload: Text) -> None:
    load = {"mode": "closed", "users": 4, "duration": "120s"}
    with running("webui", tmp_path, cache, workload(load)) as rendered:
        rendered.wait_ready("master", 60)
        base = f"http://127.0.0.1:{rendered.port(8089)}"

        def ask(path: str, data: bytes | None = None) -> Any:
            with urllib.request.urlopen(f"{base}{path}", data=data, timeout=10) as answer:
                return json.loads(answer.read())

        rendered.wait(
            lambda: ask("/stats/requests")["worker_count"] == 2, 60, "both workers connected"
        )
        assert ask("/swarm", b"user_count=4&spawn_rate=4")["success"] is True
        rendered.wait(
            lambda: ask("/stats/requests")["stats"][-1]["num_requests"] >= 5, 60, "requests"
        )
        assert ask("/stop", b"")["success"] is True
        rendered.wait(lambda: ask("/stats/requests")["state"] == "stopped", 60, "the run's end")
        assert ask("/stats/requests")["total_fail_per_sec"] == 0
        master = rendered.pods["master"][0]
        (run,) = (master.folder / "runs").iterdir()  # the folder of results, not the root
        assert json.loads((run / "summary.json").read_text())["requests"]["ok"] >= 5
        assert one(rendered.objects, "Service", "master")["spec"]["type"] == "ClusterIP"
