"""Locust's web UI: several runs in one sitting, each with its own results, its own table true."""

import contextlib
import json
import os
import signal
import sys
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import yaml
from product import Finished, free_port, running, workload, written

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e


class Sitting:
    """`tokenswarm run --web`, and what a browser would ask of it."""

    def __init__(self, going, port, folder, engine, workers):
        self.going, self.url, self.folder, self.engine = (
            going,
            f"http://127.0.0.1:{port}",
            folder,
            engine,
        )
        self.seen = set()
        going.wait_for(lambda: self.state() == "ready", "the web UI")
        going.wait_for(lambda: len(self.stats().get("workers", ())) == workers, "the workers")

    def _open(self, path, data=None):
        body = None if data is None else urllib.parse.urlencode(data).encode()
        with urllib.request.urlopen(self.url + path, body, timeout=30) as answer:
            return json.loads(answer.read())

    def stats(self):
        return self._open("/stats/requests")

    def state(self):
        try:
            return self.stats()["state"]
        except OSError:
            return None

    def begin(self, **form):
        """Press Start."""
        answer = self._open("/swarm", {"spawn_rate": 1, "host": self.engine.url, **form})
        assert answer["success"], answer

    def stop(self):
        """Press Stop."""
        assert self._open("/stop", {})["success"]

    def run(self):
        """The run that began last, once it is judged, and Locust's table at that time."""

        def judged():
            found = set(self.folder.glob("runs/*/summary.json")) - self.seen
            return found and self.state() == "stopped" and found

        (path,) = self.going.wait_for(judged, "a summary")
        self.seen.add(path)
        finished = Finished(0, "", "", path.parent)
        ok = finished.summary["requests"]["ok"]
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:  # Locust answers from a cache of two seconds
            table = {row["name"]: row for row in self.stats()["stats"]}
            if table["Aggregated"]["num_requests"] == ok:
                break
            time.sleep(0.1)
        return finished, table

    def under_way(self):
        """The number of records of the run that goes on."""
        files = [p for p in self.folder.glob("runs/*/requests.jsonl")
                 if p.parent / "summary.json" not in self.seen]  # fmt: skip
        return sum(p.read_bytes().count(b"\n") for p in files)


@pytest.fixture(scope="module")
def engine():
    with EngineProcess("--set", "base_ms=20", "itl_ms=5") as process:
        yield process


@contextlib.contextmanager
def seated(workers, tmp, engine, *options):
    """A web UI that is ready for its first start."""
    port = free_port()
    file = written(tmp, workload(load={"users": 2, "requests": 30}))
    command = [sys.executable, "-m", "tokenswarm.cli", "run", str(file), "--host", engine.url,
               "--workers", str(workers), f"--web={port}", "--export", "prometheus=off",
               *options]  # fmt: skip
    with running(command, tmp, cwd=tmp) as going:
        yield Sitting(going, port, tmp, engine, workers)


def sit(workers, tmp, engine):
    """Runs started and stopped one after the other: (run, table) of each."""
    runs = {}
    with seated(workers, tmp, engine) as made:
        going = made.going
        family = psutil.Process(going.process.pid).children(recursive=True)
        made.begin(user_count=3)
        runs["by requests"] = made.run()
        made.begin(user_count=5, run_time="2s")
        runs["by time"] = made.run()
        made.begin(user_count=2, run_time="")
        runs["by requests again"] = made.run()
        made.begin(user_count=4, run_time="60s")
        going.wait_for(lambda: made.under_way() > 10, "records")
        made.stop()
        runs["stopped"] = made.run()
        os.killpg(going.process.pid, signal.SIGINT)
        runs["end"] = going.finish()
        _, runs["orphans"] = psutil.wait_procs(family, timeout=20)
    return runs


@pytest.fixture(scope="module")
def sittings(engine, tmp_path_factory):
    """One process and two workers, at the same time."""
    folders = {workers: tmp_path_factory.mktemp("web") for workers in (0, 2)}
    with ThreadPoolExecutor(2) as pool:
        return {n: pool.submit(sit, n, folder, engine) for n, folder in folders.items()}


@pytest.fixture(params=[0, 2], ids=["one process", "two workers"])
def sitting(request, sittings):
    return sittings[request.param].result()


NAMES = ["by requests", "by time", "by requests again", "stopped"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_start_that_takes_its_time_is_shown_as_one_and_can_be_stopped(tmp_path, engine, workers):
    """Locust's page would take "ready" for the end of the start, and offer its form again."""
    with seated(workers, tmp_path, engine, "--wait-ready", "90") as made:
        made.begin(user_count=3, host=f"http://127.0.0.1:{free_port()}")
        made.going.wait_for(lambda: made.state() == "spawning", "the start")
        time.sleep(3)  # Locust answers from a cache of two seconds
        assert made.state() == "spawning"
        made.stop()
        made.going.wait_for(lambda: made.state() == "stopped", "the end of the start")
        made.begin(user_count=3)
        finished, table = made.run()
    assert finished.summary["requests"]["ok"] == table["Aggregated"]["num_requests"] == 30


@pytest.mark.parametrize("name", NAMES)
def test_locusts_own_table_is_right(sitting, name):
    finished, table = sitting[name]
    summary, rows = finished.summary, finished.rows
    ok = summary["requests"]["ok"]
    assert ok == len([row for row in rows if row["outcome"] == "ok"]) > 10
    assert set(table) == {"e2e openai-completions", "Aggregated"}
    for row in table.values():
        assert (row["num_requests"], row["num_failures"]) == (ok, 0)
        assert row["avg_response_time"] == pytest.approx(
            1000 * sum(r["e2e_s"] for r in rows) / ok, rel=0.02
        )


@pytest.mark.parametrize(("name", "users"), [*zip(NAMES, (3, 5, 2, 4), strict=True)])
def test_the_form_changes_the_users(sitting, name, users):
    finished, _ = sitting[name]
    used = yaml.safe_load((finished.folder / "workload.yaml").read_text())
    assert used["load"]["users"] == users


def test_the_form_changes_how_it_ends(sitting):
    assert len(sitting["by requests"][0].rows) == 30
    timed = sitting["by time"][0]
    assert timed.summary["window"]["seconds"] == pytest.approx(2)
    assert max(row["due_offset_s"] for row in timed.rows) < 2
    assert len(sitting["by requests again"][0].rows) == 30


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_run_that_came_to_its_end_is_valid(sitting, name):
    summary = sitting[name][0].summary
    assert summary["invalid_reasons"] == []
    assert summary["requests"]["due"] == summary["requests"]["ok"]


def test_a_run_that_was_stopped_is_cut_short_and_whole(sitting):
    finished, _ = sitting["stopped"]
    assert finished.codes == ["cut_short"]
    counts = finished.summary["requests"]
    assert counts["due"] == counts["sent"] == len(finished.rows)


def test_the_runs_have_nothing_in_common(sitting):
    nonces = {sitting[name][0].summary["run"]["id"] for name in NAMES}
    assert len(nonces) == 4


def test_ctrl_c_ends_the_sitting(sitting):
    assert sitting["orphans"] == []
    assert "Traceback" not in sitting["end"].said
