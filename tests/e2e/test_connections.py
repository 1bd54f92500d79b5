"""Several servers, new connections, throttling, retries: what a run counts, engines count too."""

import pytest
from product import run, run_command, start, workload, written

from tokenswarm.simulator.process import EngineProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]
QUICK = ("--engine", "fast", "--set", "check_model=false")


def requests_of(engine):
    """What the engine logged of requests of a run; the probe has no name."""
    return [line for line in engine.log() if line["request_id"]]


@pytest.mark.parametrize("balance", ["round-robin", "least-loaded"])
def test_several_servers_share_a_run_and_have_their_own_figures(tmp_path, balance):
    with EngineProcess(*QUICK) as one, EngineProcess(*QUICK) as two:
        finished = run(
            tmp_path, one.url, "--workers", "2",
            backend={"urls": [one.url, two.url], "balance": balance},
        )  # fmt: skip
        logs = {engine.url: requests_of(engine) for engine in (one, two)}
    assert finished.code == 0, finished.said
    urls = finished.summary["urls"]
    assert {url: len(log) for url, log in logs.items()} == {
        url: figures["requests"] for url, figures in urls.items()
    }
    assert sum(figures["ok"] for figures in urls.values()) == 40
    assert all(figures["requests"] >= 8 for figures in urls.values())
    if balance == "round-robin":
        assert {figures["requests"] for figures in urls.values()} == {20}
    for url, log in logs.items():
        rows = [row for row in finished.rows if row["url"] == url]
        assert {int(line["request_id"].split("-")[1]) for line in log} == {
            row["index"] for row in rows
        }
        assert urls[url]["output_tokens"] == sum(row["output_tokens"] for row in rows)
        assert urls[url]["ttft_mean_s"] == pytest.approx(
            sum(row["ttft_s"] for row in rows) / len(rows)
        )
    # both engines' own metrics are read, and added up
    server = finished.summary["server"]
    assert len(server["urls"]) == 2
    assert server["tokens"]["output_tokens"] == {"client": 320, "server": 320, "difference": 0}


def test_a_new_connection_for_every_request(tmp_path):
    with EngineProcess(*QUICK) as engine:
        finished = run(
            tmp_path, engine.url, "--workers", "0",
            backend={"connection": "new"}, server={"off": True}, prompts={"probe": False},
        )  # fmt: skip
        ports = {line["peer_port"] for line in requests_of(engine)}
    assert finished.code == 0, finished.said
    assert len(ports) == 40
    assert all(row["connect_s"] > 0 for row in finished.rows)
    assert finished.summary["metrics"]["connect_s"]["count"] == 40


def test_a_throttled_request_is_retried_and_its_waiting_counts(tmp_path):
    faults = ("faults.http_429_retry_after=0.4", "retry_after_s=1")
    with EngineProcess(*QUICK, *faults, "--seed", "5") as engine:
        finished = run(
            tmp_path, engine.url, "--workers", "1",
            prompts={"probe": False}, load={"users": 8, "requests": 24},
            retry={"max": 20},
        )  # fmt: skip
        log = requests_of(engine)
    assert finished.code == 0, finished.said
    rows = finished.rows
    assert {row["outcome"] for row in rows} == {"ok"}
    retries = {row["index"]: row.get("retries", 0) for row in rows}
    assert sum(retries.values()) > 3
    assert len(log) == len(rows) + sum(retries.values())
    assert all(
        line["outcome"] == "throttled"
        for line in log
        if int((line["request_id"] + "-0").split("-")[2]) < retries[
            int(line["request_id"].split("-")[1])
        ]
    )  # fmt: skip
    for row in rows:
        waited_s = row["ttft_due_s"] - row["ttft_s"]
        assert waited_s >= retries[row["index"]] * 0.99
    [warning] = [w for w in finished.summary["warnings"] if "retries, which waited" in w]
    assert warning.startswith(f"{sum(retries.values())} retries")


def test_without_a_retry_policy_throttling_is_an_outcome(tmp_path):
    with EngineProcess(*QUICK, "faults.http_429=1.0") as engine:
        finished = run(
            tmp_path, engine.url, "--workers", "0",
            prompts={"probe": False}, load={"users": 2, "requests": 4},
        )  # fmt: skip
    assert finished.code == 1, finished.said
    assert finished.summary["requests"]["by_outcome"] == {"throttled": 4}


def test_waiting_to_retry_does_not_hold_the_end_of_a_run_up(tmp_path):
    faults = ("faults.http_429_retry_after=1.0", "retry_after_s=60")
    with EngineProcess(*QUICK, *faults) as engine:
        finished = run(
            tmp_path, engine.url, "--workers", "1",
            prompts={"probe": False}, load={"users": 3, "duration": "1s", "drain": "1s"},
            retry={"max": 5},
        )  # fmt: skip
    assert finished.summary["requests"]["by_outcome"] == {"cancelled": 3}
    assert "cut_short" in finished.codes


def test_more_in_flight_than_files_is_refused_before_the_load(tmp_path):
    out = tmp_path / "out"
    file = written(tmp_path, workload(load={"users": 350, "requests": 700}))
    with EngineProcess(*QUICK) as engine:
        command = run_command(file, engine.url, out, "--workers", "0")
        limited = ["bash", "-c", 'ulimit -n 400; exec "$@"', "limited", *command]
        finished = start(limited, out).finish()
        log = requests_of(engine)
    assert finished.code == 2, finished.said
    assert "a process may have 400 open files here: use more --workers" in finished.err
    assert log == []
