"""The runner itself, without the product: containers, ports, mounts, exit codes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from manifests import Object, of_kind, one, render
from run_rendered import (
    LOOPBACK,
    JobStatus,
    Rendered,
    edited,
    fails_at_once,
    job_status,
    main,
)

SERVE = """\
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
END = "import sys; sys.exit(int(sys.argv[1]))"
STAY = "import time\nwhile True: time.sleep(0.05)"
ENGINE = ["python", "-c", SERVE, "--port", "8000"]


def fake(folder: Path, overlay: str, **replace: Sequence[str]) -> Rendered:
    commands: Mapping[str, Sequence[str]] = {"engine": ENGINE, **replace}
    return Rendered(edited(overlay, folder / "source", {}), folder / "run", replace=commands)


def job(overlay: str, name: str) -> Object:
    return one(render(overlay), "Job", name)


def test_arguments_become_local(tmp_path: Path) -> None:
    with fake(tmp_path, "smoke-cpu") as rendered:
        master, worker = rendered.pods["master"][0], rendered.pods["worker"][0]
        args = dict(zip(master.argv, master.argv[1:], strict=False))
        assert master.argv[0] == str(Path(sys.executable).parent / "locust")
        assert Path(args["-f"]).read_bytes() == (
            (
                Path(args["-f"]).parents[2].parent / "source" / "locustfiles" / "stream.py"
            ).read_bytes()
        )
        assert Path(args["--workload"]).name == "smoke.yaml"
        assert Path(args["--workload"]).is_file()
        assert args["--host"] == f"http://{LOOPBACK}:{rendered.port(8000)}"
        assert args["--export"] == f"prometheus={LOOPBACK}:{rendered.port(9646)}"
        assert args["--master-bind-host"] == LOOPBACK
        assert args["--master-bind-port"] == str(rendered.port(5557))
        assert args["--expect-workers"] == "2"
        assert rendered.results() == tmp_path / "run" / "pods" / "master-0" / "results" / "master-0"
        assert len(rendered.pods["worker"]) == 2
        args = dict(zip(worker.argv, worker.argv[1:], strict=False))
        assert args["--master-host"] == LOOPBACK
        assert args["--master-port"] == str(rendered.port(5557))
        assert [p.environment["JOB_COMPLETION_INDEX"] for p in rendered.pods["worker"]] == [
            "0",
            "1",
        ]
        assert "HF_TOKEN" not in master.environment
        assert Path(master.environment["HOME"]) == tmp_path / "run" / "pods" / "master-0" / "tmp"
        for text in (*master.argv, *worker.argv):
            assert "$(" not in text
            assert "engine:" not in text


def test_numbers_of_the_run_reach_everything(tmp_path: Path) -> None:
    objects = edited(
        "headless", tmp_path, {"WORKERS": "3", "MODEL": "tiny"}, workload="name: mine\n"
    )
    assert (
        one(objects, "ConfigMap", "tokenswarm-workloads")["data"]["edited.yaml"] == "name: mine\n"
    )
    with Rendered(objects, tmp_path / "run", replace={"engine": ENGINE}) as rendered:
        assert len(rendered.pods["worker"]) == 3
        assert "backend.model=tiny" in rendered.pods["master"][0].argv


@pytest.mark.parametrize(
    ("name", "codes", "status"),
    [
        ("master", [0], JobStatus(complete=True)),
        ("master", [1], JobStatus(complete=False, reason="PodFailurePolicy")),
        ("master", [3], JobStatus(complete=False, reason="PodFailurePolicy")),
        ("master", [137], JobStatus(complete=False, reason="BackoffLimitExceeded")),
        ("workers", [0, 0], JobStatus(complete=True)),
        ("workers", [0, 137], JobStatus(complete=False, reason="BackoffLimitExceeded")),
    ],
)
def test_status_of_a_job(name: str, codes: list[int], status: JobStatus) -> None:
    assert job_status(job("headless", name), codes) == status


def test_a_soak_goes_on_without_a_dead_worker() -> None:
    assert fails_at_once(job("headless", "workers"))
    assert not fails_at_once(job("soak", "workers"))
    failed = job_status(job("soak", "workers"), [0, 137])
    assert failed == JobStatus(complete=False, reason="FailedIndexes")


def test_jobs_run_to_their_end(tmp_path: Path) -> None:
    commands = {"master": ["python", "-c", END, "1"], "worker": ["python", "-c", END, "0"]}
    with fake(tmp_path, "smoke-cpu", **commands) as rendered:
        status = rendered.run(20)
        assert status["master"] == JobStatus(complete=False, reason="PodFailurePolicy")
        assert status["worker"] == JobStatus(complete=True)
        engine = rendered.pods["engine"][0]
        assert engine.exit_code is None
    assert engine.exit_code == 128 + signal.SIGTERM


def test_a_killed_worker_takes_its_job_with_it(tmp_path: Path) -> None:
    commands = {"master": ["python", "-c", END, "3"], "worker": ["python", "-c", STAY]}
    with fake(tmp_path, "smoke-cpu", **commands) as rendered:
        rendered.start("worker", "master")
        victim, other = rendered.pods["worker"]
        time.sleep(0.2)
        victim.signal(signal.SIGKILL)
        status = rendered.finish(20)
        assert victim.exit_code == 128 + signal.SIGKILL
        assert other.exit_code == 128 + signal.SIGTERM
        assert status["worker"] == JobStatus(complete=False, reason="BackoffLimitExceeded")


def test_nothing_is_left_running(tmp_path: Path) -> None:
    with fake(tmp_path, "smoke-cpu", worker=["python", "-c", STAY]) as rendered:
        rendered.start("worker")
        processes = [pod.process for pod in rendered.pods["worker"]]
    for process in processes:
        assert process is not None
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_every_port_is_its_own() -> None:
    """Pods share 127.0.0.1 here, so the overlays must not use a container port twice."""
    for overlay in ("smoke-cpu", "headless", "webui", "soak"):
        used = [
            port["containerPort"]
            for workload in of_kind(render(overlay), "Job", "Deployment")
            for container in workload["spec"]["template"]["spec"]["containers"]
            for port in container.get("ports", ())
        ]
        assert len(used) == len(set(used))


def test_a_folder_that_holds_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["smoke-cpu", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert f"--out {tmp_path}: is not empty; name a new folder" in capsys.readouterr().err
