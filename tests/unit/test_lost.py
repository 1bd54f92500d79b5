"""Workers that are gone: who can be known to be, and what exactly they leave undone."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hand_made import record, worker
from hand_made import run as hand_made_run

from tokenswarm import arrivals, validity, workload
from tokenswarm.run import StageWindow
from tokenswarm.snapshot import Snapshot

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed import processes
    from tokenswarm.distributed.accounts import account_for_the_lost, count_stripe

WORK = workload.parse("""
seed: 4
backend: {model: m}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 8, output_tokens: 2}
load:
  mode: open
  stages: [{duration: 2s, rate_per_s: 10, warmup: true}, {duration: 6s, rate_per_s: 20}]
""")
PLAN = list(arrivals.schedule(WORK.load, WORK.seed))


def made(*workers):
    run = hand_made_run(*workers)
    run.workload = WORK
    run.stages = [StageWindow("warmup", True, 0.0, 2.0), StageWindow("main", False, 2.0, 8.0)]
    return run


def gone(k, ended=0, in_flight=0, dropped=0):
    """A worker that was last heard of with these counts in the measured stage."""
    made_worker = worker(k, *(record(i) for i in range(ended)))
    stats = made_worker.snapshot.stage(1)
    stats.started, stats.dropped = ended + in_flight, dropped
    made_worker.final = False
    return made_worker


def share(k, n, stage):
    return sum(1 for a in PLAN[k::n] if a.stage == stage)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 2), (2, 3)])
def test_a_stripe_is_counted_by_stage(k, n):
    assert count_stripe(WORK, k, n, None) == {0: share(k, n, 0), 1: share(k, n, 1)}
    upto = PLAN[30].due_ns
    assert sum(count_stripe(WORK, k, n, upto).values()) == len(range(k, 31, n))


def test_what_was_due_and_not_reported_is_lost_to_the_request():
    here, away = worker(0), gone(1, ended=7, in_flight=3, dropped=2)
    here.final = True
    run = made(here, away)
    account_for_the_lost(run, None)
    warmup, main = away.snapshot.stages
    assert (warmup.started, warmup.lost) == (0, share(1, 2, 0))
    assert (main.started, main.ended, main.dropped) == (7, 7, 2)
    assert main.lost == main.outcomes["lost"] == share(1, 2, 1) - 9
    assert warmup.due + main.due == len(PLAN[1::2])
    assert away.state == "lost"
    assert here.snapshot.total().lost == 0


def test_what_a_lost_worker_did_is_in_the_throughput():
    away = gone(0, ended=12)
    away.snapshot = Snapshot.from_wire(away.snapshot.to_wire())  # times come with the last report
    stats, series = away.snapshot.stage(1), away.snapshot.series
    assert not series.tokens
    run = made(away)
    run.start_ns = time.time_ns() - 10 * 10**9
    away.reported_s = time.monotonic() - 4.5  # 5.5 s after the start
    account_for_the_lost(run, None)
    assert series.between("requests", 2.0, 6.0) == stats.ok == 12
    assert series.between("requests", 2.0, 4.0) == 6
    assert series.between("tokens", 2.0, 8.0) == stats.output_tokens
    assert series.between("chars", 0.0, 8.0) == stats.output_chars
    assert "spread evenly" in run.warnings[0]


@pytest.mark.parametrize(("received", "more"), [(7, 0), (9, 2), (3, 0)])
def test_records_whose_report_never_came_are_told_of(received, more):
    away = gone(0, ended=7)
    away.records_received = received
    run = made(away)
    account_for_the_lost(run, None)
    assert [w.split(":")[1].split()[0] for w in run.warnings] == [str(more)] * bool(more)


def test_in_a_run_that_was_stopped_only_what_was_due_by_then_is_lost():
    away = gone(0, ended=1)
    account_for_the_lost(made(away), PLAN[40].due_ns)
    assert away.snapshot.total().due == 41


def test_in_a_closed_loop_what_was_in_flight_is_lost():
    away = gone(0, ended=4, in_flight=3)
    run = hand_made_run(away)
    account_for_the_lost(run, None)
    total = away.snapshot.total()
    assert (total.started, total.lost, total.due) == (4, 3, 7)


def test_a_worker_without_a_share_loses_nothing():
    spare = gone(None, in_flight=2)
    account_for_the_lost(made(spare), None)
    assert spare.snapshot.total().lost == 0


@pytest.mark.parametrize(
    ("seconds", "late", "told"), [(0.4, False, False), (1.5, False, True), (3.5, True, False)]
)
def test_a_worker_that_stood_still_makes_the_run_invalid(seconds, late, told):
    one = worker(0, *(record(i) for i in range(20)))
    one.final = True
    one.snapshot.health.lag.record(round(seconds * 1e9))
    found = validity.judge(hand_made_run(one))
    details = [detail for code, detail in found.reasons if code == "worker_late"]
    assert bool(details) is late
    assert any("paused for 1.5 s" in warning for warning in found.warnings) is told
    if late:
        assert f"worker {one.id}" in details[0]
        assert "stood still for 3.5 s" in details[0]


# -- processes ---------------------------------------------------------------------------------


def test_a_process_is_gone_when_it_ended_even_as_a_zombie():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    where = processes.here()
    assert not processes.ended(child.pid, where)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, nobody took it
    assert processes.ended(child.pid, where)
    child.communicate()
    assert processes.ended(child.pid, where)


def test_a_process_of_another_namespace_is_never_called_gone():
    unused = int(Path("/proc/sys/kernel/pid_max").read_text()) - 1
    assert processes.ended(unused, processes.here())
    assert not processes.ended(unused, "another-host pid:[1]")
    assert not processes.ended(unused, "")
    assert not processes.ended(None, processes.here())


def test_a_process_says_who_it_is():
    assert processes.own() == {
        "pid": os.getpid(), "host": socket.gethostname(), "where": processes.here(),
    }  # fmt: skip
