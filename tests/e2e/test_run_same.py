"""However it is started and on however many workers: the same requests, at the planned instants."""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from product import free_port, locust_command, run, start, workload, written

import tokenswarm.workload
from tokenswarm import arrivals
from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e

LENGTHS = {"input_tokens": {"uniform": [40, 80]}, "output_tokens": {"uniform": [4, 12]}}
CLOSED = {"users": 5, "requests": 43}
OPEN = {"mode": "open", "rate_per_s": 40, "duration": "2s"}
AT_ONCE = 3  # runs, on a machine of two cores


@pytest.fixture(scope="module")
def engine():
    with EngineProcess("--set", "base_ms=10", "itl_ms=2") as process:
        yield process


def plain(tmp, engine, *options):
    """Plain locust, one process or the master of some."""
    file = written(tmp, workload(backend={"model": tmp.name}, prompts=LENGTHS, load=CLOSED))
    return locust_command(
        "--headless", "--only-summary", "--workload", str(file), "--host", engine.url,
        "--out", str(tmp / "out"), "--export", "prometheus=off", *options,
    )  # fmt: skip


def by_tokenswarm(workers):
    def runs(tmp, engine):
        return run(tmp, engine.url, "--workers", str(workers), backend={"model": tmp.name},
                   prompts=LENGTHS, load=CLOSED)  # fmt: skip

    return runs


def by_plain_locust(tmp, engine):
    return start(plain(tmp, engine), tmp / "out").finish()


def by_processes(tmp, engine):
    port = str(free_port())
    return start(plain(tmp, engine, "--processes", "2", "--master-bind-port", port,
                       "--master-port", port), tmp / "out").finish()  # fmt: skip


def by_master_and_workers(tmp, engine):
    port = str(free_port())
    master = start(plain(tmp, engine, "--master", "--master-bind-port", port, "--expect-workers",
                         "2"), tmp / "out")  # fmt: skip
    command = locust_command("--worker", "--master-port", port)
    workers = [start(command, tmp / "out") for _ in range(2)]
    finished = master.finish()
    assert [worker.finish().code for worker in workers] == [0, 0]
    return finished


WAYS = {
    "run with no worker": by_tokenswarm(0),
    "run with one worker": by_tokenswarm(1),
    "run with three workers": by_tokenswarm(3),
    "plain locust": by_plain_locust,
    "processes": by_processes,
    "master and workers": by_master_and_workers,
}
WORKERS = dict(zip(WAYS, (1, 1, 3, 1, 2, 2), strict=True))


@pytest.fixture(scope="module")
def runs(engine, tmp_path_factory):
    """A closed loop by requests, run in every way."""
    folders = {way: tmp_path_factory.mktemp(way.replace(" ", "-")) for way in WAYS}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        going = {way: pool.submit(WAYS[way], folders[way], engine) for way in WAYS}
    return {way: (folders[way].name, done.result()) for way, done in going.items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_started_this_way_is_whole(runs, engine, way):
    model, finished = runs[way]
    assert finished.code == 0, finished.said
    summary = finished.summary
    assert summary["valid"], summary["invalid_reasons"]
    assert summary["requests"]["by_outcome"] == {"ok": 43}
    assert summary["run"]["workers"] == WORKERS[way]
    assert sorted(row["index"] for row in finished.rows) == list(range(43))
    assert "VALID RUN" in finished.out
    served = [line for line in engine.log() if line["model"] == model][1:]
    assert Counter((line["prompt_tokens"], line["tokens_sent"]) for line in served) == Counter(
        (row["prompt_tokens"], row["output_tokens"]) for row in finished.rows
    )


@pytest.mark.parametrize("way", list(WAYS)[1:])
def test_the_requests_are_the_same_as_those_of_one_process(runs, way):
    def sent(way):
        return sorted((row["index"], row["prompt_tokens"], row["output_tokens"])
                      for row in runs[way][1].rows)  # fmt: skip

    assert sent(way) == sent("run with no worker")


# -- open loop ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_runs(engine, tmp_path_factory):
    """The open loop, by process of arrivals and number of workers."""
    cases = list(itertools.product(("constant", "poisson"), (1, 2)))
    folders = {case: tmp_path_factory.mktemp(f"{case[0]}-{case[1]}-") for case in cases}

    def runs(case):
        process, workers = case
        return run(folders[case], engine.url, "--workers", str(workers),
                   load={**OPEN, "arrivals": process})  # fmt: skip

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(cases, pool.map(runs, cases), strict=True))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_open_loop_follows_the_plan(open_runs, process, workers):
    finished = open_runs[process, workers]
    assert finished.code == 0, finished.said
    work = tokenswarm.workload.load(finished.folder / "workload.yaml")
    plan = {a.index: a.due_ns / 1e9 for a in arrivals.schedule(work.load, work.seed)}
    assert {row["index"]: row["due_offset_s"] for row in finished.rows} == plan
    counts = finished.summary["requests"]
    assert (counts["due"], counts["ok"], counts["dropped"]) == (len(plan), len(plan), 0)
    for row in finished.rows:
        assert row["sent"] >= row["due"]
        assert row["ttft_due_s"] >= row["ttft_s"]
    # one instant of the plan's start, whatever the workers
    starts = [row["due"] - row["due_offset_s"] for row in finished.rows]
    assert max(starts) - min(starts) < 1e-5


def test_constant_arrivals_are_evenly_spaced(open_runs):
    offsets = sorted(row["due_offset_s"] for row in open_runs["constant", 2].rows)
    assert len(offsets) == 80
    gaps = [b - a for a, b in itertools.pairwise(offsets)]
    assert gaps == pytest.approx([0.025] * 79, abs=1e-6)


# -- stages ------------------------------------------------------------------------------------


def test_stages_by_requests_and_by_time_follow_each_other(engine, tmp_path):
    stages = [
        {"name": "few", "requests": 12, "users": 3, "warmup": True},
        {"name": "timed", "duration": "1s", "users": 4},
        {"name": "one", "requests": 5, "users": 1},  # fewer users than workers
        {"name": "many", "requests": 30, "users": 6},
    ]
    finished = run(tmp_path, engine.url, "--workers", "2", load={"stages": stages})
    assert finished.code == 0, finished.said
    rows, summary = finished.rows, finished.summary
    count = Counter(row["stage"] for row in rows)
    assert (count["few"], count["one"], count["many"]) == (12, 5, 30)
    assert count["timed"] > 20
    assert len({row["index"] for row in rows}) == len(rows)
    assert len({row["worker"] for row in rows if row["stage"] == "one"}) == 1
    assert summary["requests"]["due"] == summary["requests"]["ok"] == len(rows)
    assert [s["requests"]["ok"] for s in summary["stages"]] == [12, count["timed"], 5, 30]
    # a stage begins when the last share of the one before is sent, not before
    spans = {name: [r["due_offset_s"] for r in rows if r["stage"] == name] for name in count}
    order = ["few", "timed", "one", "many"]
    for before, after in itertools.pairwise(order):
        assert max(spans[before]) <= min(spans[after])
    assert max(spans["timed"]) - min(spans["timed"]) < 1


def test_more_workers_than_users(engine, tmp_path):
    finished = run(tmp_path, engine.url, "--workers", "2", load={"users": 1, "duration": "1s"})
    assert finished.code == 0, finished.said
    assert len({row["worker"] for row in finished.rows}) == 1
    assert finished.summary["run"]["workers"] == 2
