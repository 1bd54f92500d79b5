"""Sessions stay together: at one of several servers, on one connection."""

import json
from collections import defaultdict

import pytest
from product import CORPUS, run

from tokenswarm.simulator.process import EngineProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]
QUICK = ("--engine", "fast", "--set", "check_model=false")
PROMPTS = {
    "source": "conversations", "path": str(CORPUS), "input_tokens": 16, "output_tokens": 4,
    "options": {"min_turns": 2, "max_turns": 3},
}  # fmt: skip
CLOSED = {"users": 4, "requests": 48}
OPEN = {"mode": "open", "arrivals": "constant", "rate_per_s": 100, "requests": 48}


def places(rows, key):
    """Where the turns of each session of several turns went."""
    found = defaultdict(list)
    for row in rows:
        found[row["session"]].append(row[key])
    assert sum(map(len, found.values())) == 48
    return [where for where in found.values() if len(where) > 1]


@pytest.mark.parametrize("balance", ["round-robin", "least-loaded"])
@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
def test_all_turns_of_a_session_go_to_one_server(tmp_path, balance, load):
    with EngineProcess(*QUICK) as one, EngineProcess(*QUICK) as two:
        done = run(
            tmp_path, one.url, "--workers", "2", load=load, prompts=PROMPTS,
            backend={"urls": [one.url, two.url], "balance": balance},
        )  # fmt: skip
        urls = {one.url, two.url}
    assert done.code == 0, done.said
    went = places(done.rows, "url")
    assert len(went) >= 12
    assert all(len(set(turns)) == 1 for turns in went)
    assert {turns[0] for turns in went} == urls  # and the sessions are shared out


def test_without_it_turns_are_shared_out_like_any_requests(tmp_path):
    with EngineProcess(*QUICK) as one, EngineProcess(*QUICK) as two:
        done = run(
            tmp_path, one.url, "--workers", "0", prompts=PROMPTS, load={"users": 1, "requests": 48},
            backend={"urls": [one.url, two.url], "sticky_sessions": False},
        )  # fmt: skip
    assert done.code == 0, done.said
    assert all(len(set(turns)) == 2 for turns in places(done.rows, "url"))


def test_all_turns_of_a_session_use_one_connection_and_the_next_session_another(tmp_path):
    with EngineProcess(*QUICK) as engine:
        done = run(
            tmp_path, engine.url, "--workers", "2", prompts=PROMPTS,
            load={**CLOSED, "sticky_connection": True, "think_time": "20ms"},
        )  # fmt: skip
        log = {int(line["request_id"].split("-")[1]): line["peer_port"]
               for line in engine.log() if line["request_id"]}  # fmt: skip
    assert done.code == 0, done.said
    assert len(log) == 48
    rows = [{**row, "port": log[row["index"]]} for row in done.rows]
    ports = places(rows, "port")
    assert all(len(set(turns)) == 1 for turns in ports)
    assert len({turns[0] for turns in ports}) == len(ports)
    sessions = len({row["session"] for row in rows})
    assert len(set(log.values())) == sessions


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"load": {"users": 1, "requests": 1, "sticky_connection": True}},
         "load.sticky_connection: keeps the connections of sessions"),
        ({"load": {**OPEN, "sticky_connection": True}, "prompts": PROMPTS},
         "load.sticky_connection: is for a closed loop"),
        ({"load": {**CLOSED, "sticky_connection": True}, "prompts": PROMPTS,
          "backend": {"connection": "new"}},
         "load.sticky_connection: cannot stand beside backend.connection: new"),
        ({"load": {**CLOSED, "sticky_connection": True}, "prompts": PROMPTS,
          "backend": {"urls": ["http://127.0.0.1:1", "http://127.0.0.1:2"],
                      "sticky_sessions": False}},
         "load.sticky_connection: cannot stand beside backend.sticky_sessions: false"),
        ({"backend": {"sticky_sessions": "maybe"}}, "backend.sticky_sessions: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_bad_input(tmp_path, sections, said):
    done = run(tmp_path, "http://127.0.0.1:9", **json.loads(json.dumps(sections)))
    assert done.code == 2
    assert said in done.said
