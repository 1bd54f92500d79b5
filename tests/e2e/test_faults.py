"""Workers that die, stand still, come back or come late, and a master that dies: exact accounts.

All on stock `locust --master/--worker`, an open loop with a plan that the test makes for itself.
"""

import itertools
import os
import signal
import time

import pytest
from product import free_port, locust_command, start, workload, written

from tokenswarm import arrivals
from tokenswarm.cli import main as tokenswarm
from tokenswarm.simulator.process import EngineProcess
from tokenswarm.workload import load

pytestmark = pytest.mark.e2e
_MODELS = itertools.count()
FREEZE_S = 4.0


@pytest.fixture(scope="module")
def engine():
    with EngineProcess("--set", "base_ms=30", "itl_ms=10") as process:
        yield process


class Swarm:
    """A master and two workers as plain locust processes, in a run that is under way."""

    def __init__(self, tmp, engine, **load_):
        self.model, self.engine = f"faults-{next(_MODELS)}", engine
        self.open = {"mode": "open", "rate_per_s": 40, "duration": "7s", **load_}
        content = workload(load=self.open, backend={"model": self.model})
        self.file, self.out = written(tmp, content), tmp / "out"
        self.port = str(free_port())
        self.master = start(
            locust_command(
                "--headless", "--only-summary", "--workload", str(self.file), "--host", engine.url,
                "--out", str(self.out), "--export", "prometheus=off", "--master",
                "--master-bind-host", "127.0.0.1", "--master-bind-port", self.port,
                "--expect-workers", "2",
            ),
            self.out,
        )  # fmt: skip
        self.workers = [self.add_worker(), self.add_worker()]
        self.master.wait_for(lambda: self.master.recorded() >= 20, "20 records")
        self.about = self.master.wait_for(self.master.workers, "workers.json")

    def add_worker(self):
        command = locust_command("--worker", "--master-host", "127.0.0.1", "--master-port",
                                 self.port)  # fmt: skip
        return start(command, self.out)

    @property
    def plan(self):
        work = load(self.file)
        return list(arrivals.schedule(work.load, work.seed))

    def victim(self):
        """The second worker: its row of workers.json (k: its stripe) and its process."""
        row = self.about[1]
        return row, next(w for w in self.workers if w.process.pid == row["pid"])

    def kill(self, worker):
        worker.process.send_signal(signal.SIGKILL)

    def served(self):
        """What the engine did for this run, without the probe."""
        return [line for line in self.engine.log() if line["model"] == self.model][1:]

    def end(self):
        for process in [self.master, *self.workers]:
            if process.process.poll() is None:
                os.killpg(process.process.pid, signal.SIGKILL)
            process.finish()


@pytest.fixture
def swarm(engine, tmp_path):
    made = []

    def make(**load_):
        made.append(Swarm(tmp_path, engine, **load_))
        return made[-1]

    yield make
    for one in made:
        one.end()


def assert_every_arrival_is_accounted_for(one, finished):
    """due = sent + dropped + lost = planned; every sent one has an outcome and a record."""
    counts = finished.summary["requests"]
    assert counts["due"] == counts["sent"] + counts["dropped"] + counts["lost"] == len(one.plan)
    outcomes = dict(counts["by_outcome"])
    assert outcomes.pop("lost", 0) == counts["lost"]
    assert sum(outcomes.values()) == counts["sent"]
    indices = [row["index"] for row in finished.rows]
    assert len(set(indices)) == len(indices)
    return counts


def details(finished, code):
    reasons = finished.summary["invalid_reasons"]
    return [reason["detail"] for reason in reasons if reason["code"] == code]


def test_the_share_of_a_killed_worker_is_lost_to_the_request(swarm):
    """A new one in its place gets no share of this run, and that is said."""
    one = swarm()
    row, victim = one.victim()
    one.kill(victim)
    victim.finish()
    one.workers.append(one.add_worker())
    finished = one.master.finish()
    assert finished.code == 3
    counts = assert_every_arrival_is_accounted_for(one, finished)
    stripe = one.plan[row["k"] :: 2]
    others = [r for r in finished.rows if r["worker"] != row["id"]]
    assert len(others) == len(one.plan) - len(stripe)  # the other one did all of its own
    handed_in = counts["sent"] - len(others)
    assert counts["lost"] == len(stripe) - handed_in > 0
    assert 0 < handed_in <= len(finished.rows) - len(others)
    (detail,) = details(finished, "worker_lost")
    assert row["id"] in detail
    assert "joined during the run" in details(finished, "worker_late")[0]
    assert len({r["worker"] for r in finished.rows}) == 2
    state = {w["id"]: w["lost"] for w in finished.summary["generator"]["workers"]}
    assert sorted(state.values()) == [False, False, True]
    assert state[row["id"]]
    by_stage = finished.summary["stages"][0]["requests"]
    assert by_stage["lost"] == counts["lost"]


def test_a_worker_that_stood_still_sends_late_and_is_counted_once(swarm):
    one = swarm()
    row, victim = one.victim()
    victim.process.send_signal(signal.SIGSTOP)
    time.sleep(FREEZE_S)  # the fault itself
    victim.process.send_signal(signal.SIGCONT)
    finished = one.master.finish()
    assert finished.code == 3
    counts = assert_every_arrival_is_accounted_for(one, finished)
    assert counts["lost"] == counts["dropped"] == 0
    assert counts["sent"] == len(finished.rows) == len(one.served())
    late = [r["send_delay_s"] for r in finished.rows if r["worker"] == row["id"]]
    assert FREEZE_S - 1.0 < max(late) < FREEZE_S + 1.5
    others = [r["send_delay_s"] for r in finished.rows if r["worker"] != row["id"]]
    assert max(others) < 1.0
    (detail,) = details(finished, "worker_late")
    assert row["id"] in detail
    assert "stood still" in detail
    assert "worker_lost" not in finished.codes


def test_a_worker_that_never_wakes_is_lost_with_its_share(swarm):
    """20 s of silence are the end of waiting, and the run does not wait for its plan's drain."""
    one = swarm(duration="5s")
    row, victim = one.victim()
    victim.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    finished = one.master.finish()
    assert time.monotonic() - began < 45
    assert finished.code == 3
    counts = assert_every_arrival_is_accounted_for(one, finished)
    stripe = one.plan[row["k"] :: 2]
    assert len(stripe) - 20 <= counts["lost"] <= len(stripe)
    (detail,) = details(finished, "worker_lost")
    assert row["id"] in detail


def test_a_run_that_loses_all_workers_ends_and_knows_what_is_missing(swarm):
    one = swarm(duration="60s")
    for worker in one.workers:
        one.kill(worker)
    began = time.monotonic()
    finished = one.master.finish()
    assert time.monotonic() - began < 30  # not at the end of the plan
    assert finished.code == 3
    counts = assert_every_arrival_is_accounted_for(one, finished)
    assert counts["lost"] == len(one.plan) - counts["sent"] > 2000


def test_without_a_master_workers_finish_keep_their_records_and_say_so(swarm):
    one = swarm(duration="60s")
    one.kill(one.master)
    one.master.finish()
    ended = [worker.finish() for worker in one.workers]
    assert [e.code for e in ended] == [3, 3]
    files = sorted((one.out / "workers").glob("*.jsonl"))
    assert len(files) == 2
    for e in ended:
        assert "the master is gone" in e.err
        assert any(str(f) in e.err for f in files)
        assert "Traceback" not in e.said
    served = one.served()
    assert {line["outcome"] for line in served} == {"ok"}  # what was in flight could finish

    assert tokenswarm(["report", str(one.out)]) == 0
    rebuilt = type(ended[0])(0, "", "", one.out).summary
    assert rebuilt["valid"] is False
    assert [r["code"] for r in rebuilt["invalid_reasons"]] == ["cut_short"]
    assert rebuilt["requests"]["ok"] == rebuilt["requests"]["sent"] == len(served)
    assert (one.out / "report.html").exists()
