"""Runs that end before their time: every request accounted for, the right exit code, no orphans.

All of them run once, some at a time, before the first test that wants to see one.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from product import free_port, locust_command, run, run_command, running, start, workload, written

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
# An answer takes 0.6 s, so that there is always something in flight.
SLOW = ("--set", "base_ms=100", "itl_ms=10")
LONG = {"users": 6, "duration": "60s"}
SHORT = {"users": 6, "duration": "4s"}
PROMPTS = {"output_tokens": 50}
AT_ONCE = 3  # on a machine of two cores


class Case:
    """A run that is under way with a record of every worker, and its processes."""

    def __init__(self, name, folder, engine, workers, load):
        self.name, self._engine = name, engine
        load = dict(load)
        prompts = {"output_tokens": load.pop("output_tokens", PROMPTS["output_tokens"])}
        content = workload(load=load, prompts=prompts, backend={"model": name})
        command = run_command(written(folder, content), engine.url, folder / "out",
                              "--workers", str(workers))  # fmt: skip
        self.running = start(command, folder / "out")
        self.family = []
        try:
            self.running.wait_for(self._under_way, "a record of every worker")
        except BaseException:
            self.clear()
            raise
        self.family = psutil.Process(self.running.process.pid).children(recursive=True)

    def _under_way(self):
        self.workers = self.running.workers()
        file = self.running.folder / "requests.jsonl"
        return self.workers and all(w["id"] in file.read_text() for w in self.workers)

    def interrupt(self):
        """Ctrl-C: what the terminal sends to the processes in front."""
        os.killpg(self.running.process.pid, signal.SIGINT)

    def kill(self, worker, number=signal.SIGKILL):
        os.kill(self.workers[worker]["pid"], number)

    def end(self):
        """Wait for the end of the run and of every process that it had."""
        self.finished = self.running.finish()
        _, self.orphans = psutil.wait_procs(self.family, timeout=20)

    def clear(self):
        for process in [*self.family, self.running.process]:
            try:
                process.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        self.running.finish()

    def served(self):
        """The engine's log of this run, without the probe."""
        return [line for line in self._engine.log() if line["model"] == self.name][1:]

    def rows_of(self, worker):
        return [r for r in self.finished.rows if r["worker"] == self.workers[worker]["id"]]


def ctrl_c_twice(case):
    case.interrupt()
    case.running.wait_for(lambda: "ending the run in order" in case.running.said, "its first word")
    time.sleep(0.4)  # two within 0.3 s are one
    case.interrupt()
    case.interrupted = time.monotonic()
    case.running.process.wait(60)
    case.took_s = time.monotonic() - case.interrupted


def kill_one(case):
    time.sleep(0.1)  # its report follows its records
    case.kill(1)


def kill_all(case):
    for worker in range(len(case.workers)):
        case.kill(worker)


# name: workers, load, what happens when the run is under way
SCENARIOS = {
    "ctrl-c": (2, LONG, Case.interrupt),
    "ctrl-c, one process": (0, LONG, Case.interrupt),
    "ctrl-c twice": (2, {**LONG, "output_tokens": 250}, ctrl_c_twice),
    "SIGTERM": (2, LONG, lambda case: case.running.process.terminate()),
    "SIGTERM, one process": (0, LONG, lambda case: case.running.process.terminate()),
    "a worker killed": (2, SHORT, kill_one),
    "a worker told to go": (2, SHORT, lambda case: case.kill(1, signal.SIGTERM)),
    "all workers killed": (2, LONG, kill_all),
    "the command killed": (2, LONG, lambda case: case.running.process.kill()),
}


@pytest.fixture(scope="module")
def engine():
    with EngineProcess(*SLOW) as process:
        yield process


@pytest.fixture(scope="module")
def ended(engine, tmp_path_factory):
    """A function that gives the case of a scenario, ended."""

    def play(name):
        workers, load, act = SCENARIOS[name]
        case = Case(name, folders[name], engine, workers, load)
        try:
            act(case)
            case.end()
        finally:
            case.clear()
        return case

    folders = {name: tmp_path_factory.mktemp("ends") for name in SCENARIOS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        cases = {name: pool.submit(play, name) for name in SCENARIOS}
        yield lambda name: cases[name].result()


def assert_accounted_for(finished):
    """Conservation: due = sent + dropped + lost, and every sent one has an outcome and a line."""
    counts = finished.summary["requests"]
    assert counts["due"] == counts["sent"] + counts["dropped"] + counts["lost"]
    outcomes = dict(counts["by_outcome"])
    assert outcomes.pop("lost", 0) == counts["lost"]
    assert sum(outcomes.values()) == counts["sent"] == len(finished.rows)
    return counts


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_process_is_left(ended, name):
    assert ended(name).orphans == []
    assert "Traceback" not in ended(name).finished.said


IN_ORDER = ["ctrl-c", "ctrl-c, one process", "SIGTERM", "SIGTERM, one process"]


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_run_that_is_interrupted_ends_in_order_and_keeps_its_results(ended, name):
    case = ended(name)
    assert case.finished.code == 3
    assert case.finished.codes == ["cut_short"]
    assert_accounted_for(case.finished)
    assert len(case.served()) == len(case.finished.rows)
    assert "INVALID RUN" in case.finished.out


@pytest.mark.parametrize("name", IN_ORDER[:2])
def test_after_ctrl_c_what_is_in_flight_may_finish(ended, name):
    case = ended(name)
    counts = case.finished.summary["requests"]
    assert counts["ok"] == counts["due"]
    assert {line["outcome"] for line in case.served()} == {"ok"}
    assert "ending the run in order; Ctrl-C again ends at once" in case.finished.err


def test_ctrl_c_twice_ends_at_once(ended):
    case = ended("ctrl-c twice")
    assert case.finished.code == 130
    assert case.took_s < 10
    assert len(case.finished.rows) >= 2  # what was there stays


def test_a_worker_that_is_killed_is_lost_and_the_rest_goes_on(ended):
    case = ended("a worker killed")
    finished = case.finished
    assert finished.code == 3
    assert "worker_lost" in finished.codes
    counts = assert_accounted_for(finished)
    assert 0 < counts["lost"] <= 3  # in flight at its last report
    assert len(case.rows_of(0)) > len(case.rows_of(1)) > 0
    reasons = finished.summary["invalid_reasons"]
    assert any(case.workers[1]["id"] in reason["detail"] for reason in reasons)
    # the engine served what was reported, and at most a round of the victim's slots beside it
    served = [line for line in case.served() if line["outcome"] == "ok"]
    assert counts["ok"] <= len(served) <= counts["ok"] + counts["lost"] + 6


def test_a_worker_that_is_told_to_go_hands_in_what_it_has(ended):
    case = ended("a worker told to go")
    assert case.finished.code == 3
    counts = assert_accounted_for(case.finished)
    assert counts["lost"] == 0
    assert counts["due"] == len(case.served())


def test_a_run_without_workers_ends(ended):
    finished = ended("all workers killed").finished
    assert finished.code == 3
    assert finished.codes.count("worker_lost") == 2
    assert_accounted_for(finished)


def test_a_worker_that_joins_late_has_no_share_and_is_said(engine, tmp_path):
    port = str(free_port())
    file = written(tmp_path, workload(load={"users": 2, "duration": "60s"}, prompts=PROMPTS))
    master = locust_command(
        "--headless", "--only-summary", "--workload", str(file), "--host", engine.url, "--out",
        str(tmp_path / "out"), "--export", "prometheus=off", "--master", "--master-bind-port", port,
        "--expect-workers", "1",
    )  # fmt: skip
    worker = locust_command("--worker", "--master-port", port)
    with running(master, tmp_path / "out") as head, running(worker, tmp_path / "out"):
        head.wait_for(lambda: head.recorded() >= 1, "a record")
        with running(worker, tmp_path / "out"):
            head.wait_for(lambda: len(head.workers()) == 2, "the second worker")
            head.process.send_signal(signal.SIGINT)
            finished = head.finish()
    assert finished.code == 3
    assert finished.codes == ["worker_late", "cut_short"]
    assert len({row["worker"] for row in finished.rows}) == 1
    assert_accounted_for(finished)


def test_requests_that_do_not_finish_within_the_drain_are_cancelled(engine, tmp_path):
    load = {"users": 3, "duration": "1s", "drain": "100ms"}
    finished = run(tmp_path, engine.url, load=load, prompts={"output_tokens": 300})
    assert finished.code == 3
    assert "cut_short" in finished.codes
    assert assert_accounted_for(finished)["by_outcome"] == {"cancelled": 3}
    assert [row["outcome"] for row in finished.rows] == ["cancelled"] * 3
    assert {row["e2e_s"] for row in finished.rows} == {None}
