"""Studies: what a file means, every mistake with its line, and points that are run once."""

import csv
import io
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tokenswarm import study, study_model, study_point, study_server, workload
from tokenswarm.records import BadInput
from tokenswarm.simulator.settings import Settings
from tokenswarm.study_point import Point, Result

WORKLOAD = """
backend: {model: demo}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 64, output_tokens: 8}
load: {users: 2, requests: 20}
"""


@pytest.fixture
def files(tmp_path):
    """A maker of study files beside a workload."""
    (tmp_path / "chat.yaml").write_text(WORKLOAD)

    def make(text, name="grid.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def problems(path, simulated=True):
    with pytest.raises(BadInput) as caught:
        study_model.load(path, simulated)
    return [p.replace(str(path), "grid.yaml") for p in caught.value.problems]


def test_a_grid_is_targets_by_lengths_by_load_by_anything(files):
    _, plans = study_model.load(files("""
workload: chat.yaml
targets:
  - {label: a, host: http://a:8000, hardware: {gpu: H100-SXM, count: 2}, usd_per_hour: 6}
  - {label: b, host: http://b:8000}
lengths: [[1000, 100], [3000, 300]]
load: {users: [1, 8, 64]}
vary: {backend.extra_body.temperature: [0, 0.8]}
repeats: 2
"""))  # fmt: skip
    assert len(plans) == 2 * 2 * 3 * 2 * 2
    first, last = plans[0], plans[-1]
    assert first.name == "a lengths=1000x100 load.users=1 backend.extra_body.temperature=0"
    assert first.workload.load.users == 1
    assert first.workload.prompts.draw(1, 0) == (1000, 100)
    assert (first.workload.hardware.count, first.workload.hardware.usd_per_hour) == (2, 6.0)
    assert (last.host, last.repeat) == ("http://b:8000", 1)
    assert last.workload.backend.extra_body == {"temperature": 0.8}
    assert last.workload.hardware is None
    assert [p.target.label for p in plans] == ["a"] * 24 + ["b"] * 24  # a server is started once


def test_settings_with_several_values_are_several_targets(files):
    _, plans = study_model.load(files("""
workload: chat.yaml
targets:
  - label: vllm
    host: http://127.0.0.1:8{tp}00
    settings: {tp: [1, 2], dtype: bf16}
    start: >-
      serve -tp {tp} --dtype {dtype} ${HOME} '{"a": 1}'
"""))  # fmt: skip
    assert [p.label for p in plans] == ["vllm tp=1", "vllm tp=2"]
    assert [p.host for p in plans] == ["http://127.0.0.1:8100", "http://127.0.0.1:8200"]
    filled = study_model.filled(plans[1].target.start, plans[1].settings)
    assert filled == """serve -tp 2 --dtype bf16 ${HOME} '{"a": 1}'"""


def test_in_a_workload_with_stages_every_stage_gets_the_level(files, tmp_path):
    stages = "[{duration: 1s, users: 3, warmup: true}, {duration: 2s, users: 9}]"
    (tmp_path / "chat.yaml").write_text(
        WORKLOAD.replace("{users: 2, requests: 20}", f"{{stages: {stages}}}")
    )
    _, plans = study_model.load(
        files("workload: chat.yaml\ntargets: [{label: a, host: http://a}]\nload: {users: [5]}\n")
    )
    assert [s.users for s in plans[0].workload.load.stages] == [5, 5]


def test_a_warmup_with_a_shape_keeps_it(files, tmp_path):
    stages = (
        "[{duration: 1s, shape: {ramp: {from: 1, to: 9}}, warmup: true}, {duration: 2s, users: 9}]"
    )
    (tmp_path / "chat.yaml").write_text(
        WORKLOAD.replace("{users: 2, requests: 20}", f"{{stages: {stages}}}")
    )
    _, plans = study_model.load(
        files("workload: chat.yaml\ntargets: [{label: a, host: http://a}]\nload: {users: [5]}\n")
    )
    assert [s.users for s in plans[0].workload.load.stages] == [None, 5]


def test_every_mistake_is_told_with_its_line_and_all_at_once(files):
    assert problems(files("""
workload: chat.yaml
targets:
  - {label: a, hots: http://a, engine: {max_bacht: 3}}
  - {label: a, start: x, overlay: k8s}
lengths: [[1000]]
repeats: 0
"""), simulated=False) == [
        "grid.yaml:4: targets.0.engine: unknown key 'max_bacht'. Did you mean 'max_batch'? "
        f"Allowed: {', '.join(sorted(Settings.model_fields))}",
        "grid.yaml:4: targets.0.hots: unknown key 'hots'. Expected one of: engine, hardware, "
        "host, label, overlay, ready, set, settings, start, stop, usd_per_hour. "
        "Did you mean 'host'?",
        "grid.yaml:5: targets.1.label: 'a' is the label of another target",
        "grid.yaml:5: targets.1.overlay: cannot stand beside start or stop: it says how both "
        "are done",
        "grid.yaml:6: lengths.0: must be a pair such as [1000, 100], got a list",
        "grid.yaml:7: repeats: must be a whole number of at least 1, got 0",
    ]  # fmt: skip


def test_a_host_is_needed_unless_simulated(files):
    path = files("workload: chat.yaml\ntargets: [{label: a}]\n")
    assert problems(path, simulated=False) == [
        "grid.yaml:2: targets.0: needs a host: the base URL of the server (or run it with "
        "--simulated)"
    ]
    assert len(study_model.load(path, simulated=True)[1]) == 1


def test_what_a_point_cannot_be_is_said_where_the_study_says_it(files):
    assert problems(files("""
workload: chat.yaml
targets: [{label: a, host: http://a}]
load: {users: [1, many]}
vary: {prompts.input_tokns: [5]}
""")) == [
        "grid.yaml:5: vary.prompts.input_tokns: prompts.input_tokns: unknown key 'input_tokns'. "
        + problems_tail("input_tokns"),
        "grid.yaml:4: load.users: load.users: must be a whole number of at least 1, got 'many'",
    ]  # fmt: skip


def problems_tail(key):
    with pytest.raises(BadInput) as caught:
        workload.parse(WORKLOAD, sets=[f"prompts.{key}=5"])
    return caught.value.problems[0].partition(f"unknown key '{key}'. ")[2]


def test_a_missing_workload_and_an_empty_study_are_refused(files):
    path = files("workload: nowhere.yaml\ntargets: [{label: a, host: http://a}]\n")
    assert problems(path) == ["grid.yaml:1: workload: no such file: 'nowhere.yaml'"]
    assert problems(files("workload: chat.yaml\ntargets: []\n")) == [
        "grid.yaml:2: targets: must have at least one target"
    ]


# -- points ------------------------------------------------------------------------------------


def point(tmp_path, **changes):
    work = workload.parse(WORKLOAD, sets=changes.pop("sets", ()))
    return Point(tmp_path, "a users=2", work, "http://127.0.0.1:1", "server", **changes)


def finish(one, exit_code=0, **summary):
    """The files that a finished run leaves."""
    one.folder.mkdir(parents=True)
    (one.folder / "summary.json").write_text(json.dumps({"metrics": {}, "valid": True, **summary}))
    said = {"exit_code": exit_code, "seconds": 3.0}
    (one.folder / "point.json").write_text(json.dumps(said))


def test_a_finished_point_is_read_and_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(study_point, "call", None)  # running anything would raise
    one = point(tmp_path)
    finish(one, exit_code=1, throughput={"output_tokens_per_s": 5})
    found = study_point.run(one, print)
    assert (found.exit_code, found.reused, found.valid) == (1, True, True)
    assert found.figure("output_tokens_per_s") == 5.0


@pytest.mark.parametrize(
    "changes",
    [{"sets": ["load.users=3"]}, {"workers": 2}, {"repeat": 1}, {"sets": ["seed=9"]}],
)
def test_another_setting_is_another_folder(tmp_path, changes):
    assert point(tmp_path, **changes).folder != point(tmp_path).folder
    assert point(tmp_path).folder == point(tmp_path).folder


def test_half_a_point_is_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(study_point, "wait_fit", lambda *_: None)
    one = point(tmp_path)
    finish(one)
    (one.folder / "point.json").unlink()  # interrupted: cut short, but with a summary
    (one.folder / "requests.jsonl").touch()
    called = []

    def call(command, log):
        called.append(command)
        assert not (one.folder / "requests.jsonl").exists()
        (one.folder / "summary.json").write_text('{"metrics": {}, "valid": true}')
        return 0

    monkeypatch.setattr(study_point, "call", call)
    found = study_point.run(one, print)
    assert len(called) == 1
    assert (found.state, found.reused) == ("done", False)
    assert study_point.result(one.folder).exit_code == 0


@pytest.mark.parametrize(("gpu", "asked"), [(None, []), ("nvml", ["--gpu", "nvml"])])
def test_gpus_are_sampled_where_asked_and_change_no_folder(tmp_path, monkeypatch, gpu, asked):
    monkeypatch.setattr(study_point, "wait_fit", lambda *_: None)
    one = point(tmp_path, gpu=gpu)
    assert one.folder == point(tmp_path).folder
    called = []
    monkeypatch.setattr(study_point, "call", lambda command, log: called.append(command) or 4)
    study_point.run(one, print)
    command = called[0]
    assert command[command.index("prometheus=off") + 1 :] == asked


def test_a_point_that_could_not_run_is_told_in_its_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(study_point, "wait_fit", lambda *_: None)

    def call(command, log):
        log.write(b"noise\ntokenswarm: --host: no answer\n")
        return 2

    monkeypatch.setattr(study_point, "call", call)
    one = point(tmp_path)
    found = study_point.run(one, print)
    assert (found.state, found.exit_code, found.error) == ("failed", 2, "--host: no answer")
    assert study_point.result(one.folder) is None  # so it is tried again


# -- servers -----------------------------------------------------------------------------------


class Server:
    """A server with a health page and metrics that are lists of answers."""

    def __init__(self, health, pages):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                left = health if self.path == "/health" else pages
                status, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def gauge(running, waiting=0):
    name = 'vllm:num_requests_{}{{engine="0"}} {}\n'
    return 200, "# HELP x y\n" + name.format("running", running) + name.format("waiting", waiting)


WORK = workload.parse(WORKLOAD)


def test_a_server_is_fit_when_it_is_healthy_and_idle():
    with Server([(503, ""), (200, "")], [gauge(3), gauge(0, 2), gauge(0)]) as server:
        study_server.wait_fit(WORK, server.url, 20, print)


def test_a_server_without_health_and_metrics_is_fit_when_it_answers():
    with Server([(404, "")], [(404, "")]) as server:
        study_server.check(WORK, server.url)


@pytest.mark.parametrize(
    ("health", "page", "why"),
    [
        ((500, ""), gauge(0), "/health answers 500"),
        ((200, ""), gauge(3, 1), "4 requests are still running or waiting there (after 0.1 s)"),
    ],
)
def test_a_server_that_is_not_fit_says_why(health, page, why):
    with Server([health], [page]) as server, pytest.raises(study_server.Unfit) as caught:
        study_server.wait_fit(WORK, server.url, 0.1, print)
    assert str(caught.value).startswith(server.url)
    assert why in str(caught.value)


def test_a_server_that_is_not_there_is_not_fit():
    with pytest.raises(study_server.Unfit, match="refused"):
        study_server.check(WORK, "http://127.0.0.1:9")


# -- the grid ----------------------------------------------------------------------------------

GRID = """
workload: chat.yaml
targets:
  - {label: a, host: http://a, start: "echo up >> LOG", stop: "echo down >> LOG"}
  - {label: b, host: http://b, settings: {tp: 2}, usd_per_hour: 3}
load: {users: [1, 4]}
"""


@pytest.fixture
def grid(files, tmp_path, monkeypatch):
    """A sweep whose runs are formulas; what was run, and the servers' log."""
    path = files(GRID.replace("LOG", str(tmp_path / "log")))
    monkeypatch.setattr(study, "wait_fit", lambda *_: None)
    ran = []

    def run(one, say):
        ran.append(one.name)
        assert one.gpu == "nvml"
        users = one.workload.load.users
        if users == 4 and one.host == "http://b":
            raise study_server.Unfit("still busy")
        finish(one, throughput={"output_tokens_per_s": 10 * users}, makespan_s=2.5)
        found = study_point.result(one.folder)
        found.reused = False
        return found

    monkeypatch.setattr(study, "run", run)
    return path, ran


def test_a_sweep_runs_every_point_once_and_goes_on_where_it_was(grid, tmp_path):
    path, ran = grid
    said = []
    folder, code, rows = study.sweep(str(path), str(tmp_path / "out"), False, said.append, "nvml")
    assert ran == ["a load.users=1", "a load.users=4", "b load.users=1", "b load.users=4"]
    assert (tmp_path / "log").read_text() == "up\ndown\n"
    assert code == 3  # one point has no result
    assert [r["state"] for r in rows] == ["done", "done", "done", "failed"]
    assert rows[3]["error"] == "still busy"
    assert said[-1] == "[4/4] b load.users=4: FAILED: still busy"

    saved = json.loads((folder / "study.json").read_text())
    assert saved["points"] == rows
    table = list(csv.DictReader(io.StringIO((folder / "study.csv").read_text())))
    assert [(r["target"], r["load.users"], r["output_tokens_per_s"]) for r in table] == [
        ("a", "1", "10"), ("a", "4", "40"), ("b", "1", "10"), ("b", "4", ""),
    ]  # fmt: skip
    assert (table[2]["tp"], table[2]["usd_per_hour"], table[2]["makespan_s"]) == ("2", "3.0", "2.5")

    ran.clear()
    _, _, again = study.sweep(str(path), str(folder), False, said.append, "nvml")
    assert ran == ["b load.users=4"]  # the others are there, and server a is not started
    assert (tmp_path / "log").read_text() == "up\ndown\n"
    assert again == rows


def test_an_interrupted_sweep_stops_its_servers_and_says_how_to_go_on(grid, tmp_path, monkeypatch):
    path, ran = grid

    def interrupt(one, say):
        ran.append(one.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", interrupt)
    said = []
    folder, code, rows = study.sweep(str(path), str(tmp_path / "out"), False, said.append, "nvml")
    assert code == 130
    assert ran == ["a load.users=1"]
    assert (tmp_path / "log").read_text() == "up\ndown\n"
    assert {r["state"] for r in rows} == {"pending"}
    assert f"--out {folder} goes on" in said[-1]


def test_a_start_command_that_fails_fails_its_points_only(files, tmp_path, grid):
    path, ran = grid
    path.write_text(path.read_text().replace("echo up", "false; exit 7; echo up"))
    _, code, rows = study.sweep(str(path), str(tmp_path / "out"), False, lambda _: None, "nvml")
    assert code == 3
    assert [r["state"] for r in rows] == ["failed", "failed", "done", "failed"]
    assert "start command ended with 7" in rows[0]["error"]
    assert "b load.users=1" in ran


def test_words_for_results():
    assert study.words(Result(Path("x"), "failed", error="no")) == "FAILED: no"
    summary = {"valid": False, "invalid_reasons": [{"code": "cut_short"}]}
    assert study.words(Result(Path("x"), summary=summary)) == "INVALID (cut_short), 0 s"


def test_the_example_in_the_package_is_a_study():
    example = Path(__file__).resolve().parents[2] / "workloads" / "studies" / "three-targets.yaml"
    said = yaml.safe_load(example.read_text())
    _, plans = study_model.load(example, simulated=True)
    targets, lengths, users = said["targets"], said["lengths"], said["load"]["users"]
    assert len(plans) == len(targets) * len(lengths) * len(users)
