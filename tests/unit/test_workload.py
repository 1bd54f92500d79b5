from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tokenswarm import check, workload
from tokenswarm.records import BadInput

HEAD = "backend: {model: m}\nprompts: {input_tokens: 10, output_tokens: 5}\n"
WORKLOADS = sorted(
    p
    for p in (Path(__file__).parents[2] / "workloads").glob("*.yaml")
    if p.name != "kustomization.yaml"
)

FULL = """\
name: chat-1000-100
seed: 7
nonce: null
backend:
  kind: openai-completions
  model: llama31-70b
  extra_body: {temperature: 0.8, top_p: 1.0, best_of: 1}
tokenizer: {source: hf, path: ./tok}
prompts:
  {source: sharegpt, path: null, input_tokens: 1000, output_tokens: 100, exact_output: true,
   shared_prefix_tokens: 0, probe: true}
load:
  mode: closed
  stages: [{duration: 30s, users: 16, warmup: true}, {duration: 2m, users: 64}]
  max_in_flight: null
  drain: 60s
timeouts: {connect: 10s, first_token: 600s, stall: 120s, total: null}
slo: {"p99(ttft)": "<2s", "p90(tpot)": "<50ms", "error_ratio": "<1%", "ttft": "<2s"}
hardware: {gpu: H100-SXM, count: 8, usd_per_hour: 98.0, utilization: 0.7}
record: {requests: true, itl: false}
"""


def parse(text: str, *sets: str) -> workload.Workload:
    return workload.parse(text, "w.yaml", sets)


def problems(text: str, *sets: str) -> tuple[str, ...]:
    with pytest.raises(BadInput) as caught:
        workload.parse(text, "w.yaml", sets)
    return caught.value.problems


def load_problems(load: str) -> tuple[str, ...]:
    return problems(f"{HEAD}load: {load}\n")


# ------------------------------------------------------------------------------ good files


def test_the_example_of_the_manual_means_what_it_says() -> None:
    w = parse(FULL)
    assert (w.name, w.seed, w.nonce) == ("chat-1000-100", 7, None)
    assert w.backend.extra_body == {"temperature": 0.8, "top_p": 1.0, "best_of": 1}
    assert w.tokenizer is not None
    assert (w.tokenizer.source, w.tokenizer.path) == ("hf", "./tok")
    assert w.prompts.draw(7, 0) == (1000, 100)
    stages = w.load.resolved_stages()
    assert [(s.name, s.duration, s.users, s.warmup) for s in stages] == [
        ("warmup", 30.0, 16, True),
        ("stage-1", 120.0, 64, False),
    ]
    assert (w.timeouts.first_token, w.timeouts.total, w.load.drain) == (600.0, None, 60.0)
    assert w.hardware is not None
    assert (w.hardware.count, w.hardware.usd_per_hour, w.hardware.utilization) == (8, 98.0, 0.7)


def test_a_tokenizer_that_is_not_given_is_guessed_and_that_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    guess = parse(HEAD)
    assert (guess.tokenizer.source, guess.tokenizer.path) == ("tiktoken", "cl100k_base")
    assert "no tokenizer: is given; prompts are cut with tiktoken cl100k_base" in guess.notes[0]
    assert workload.parse(workload.dump(guess)).notes == guess.notes
    (tmp_path / "models--me--mine").mkdir()
    own = parse(HEAD, "backend.model=me/mine")
    assert (own.tokenizer.source, own.tokenizer.path) == ("hf", "me/mine")
    given = parse(HEAD, "tokenizer={source: tiktoken, path: o200k_base}")
    assert given.notes == []
    assert parse(HEAD, "prompts={source: jsonl, path: x.jsonl}").tokenizer is None


def test_only_a_model_and_lengths_are_required() -> None:
    w = parse(HEAD)
    assert w.backend.kind == "openai-completions"
    assert (w.load.mode, w.load.users, w.load.duration) == ("closed", 1, 60.0)
    assert [stage.name for stage in w.load.resolved_stages()] == ["main"]
    assert (w.seed, w.nonce, w.hardware) == (1, None, None)
    assert (w.timeouts.connect, w.timeouts.first_token, w.timeouts.stall) == (10.0, 600.0, 120.0)
    assert (w.validity.rate_tolerance, w.validity.cpu, w.validity.loop_lag_p99_s) == (
        0.01,
        0.9,
        0.02,
    )
    assert (w.validity.coalesced_share, w.validity.clock_step_s) == (0.05, 0.005)
    assert (w.retry.max, w.retry.honour_retry_after) == (0, True)


def test_a_null_key_is_a_key_that_is_not_given() -> None:
    assert parse(f"{HEAD}load: null\nseed: null\nslo:\nhardware: ~\n") == parse(HEAD)


def test_json_is_yaml_with_tabs_and_surrogate_pairs_too() -> None:
    data = {
        "backend": {"model": "m", "extra_body": {"user": "😀"}},
        "prompts": {"input_tokens": 10, "output_tokens": 5},
        "load": {"users": 4, "requests": 1e3},
    }
    w = parse(json.dumps(data, indent="\t"))
    assert w.backend.extra_body == {"user": "😀"}
    assert w.load.requests == 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h30m", 5400.0),
        ("1h 2m 3.5s", 3723.5),
        ("250us", 0.00025),
        ("45", 45.0),
        ("0.1", 0.1),
        ("1e3", 1000.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    w = parse(f"{HEAD}load: {{duration: {text}}}\n")
    assert w.load.duration == seconds
    assert workload.parse(workload.dump(w)) == w


@pytest.mark.parametrize("text", ["-1s", "0", "5 parsecs", "s", "1:30", "''", "[1]", ".inf", "on"])
def test_what_is_no_duration(text: str) -> None:
    assert load_problems(f"{{duration: {text}}}")[0].startswith("w.yaml:3: load.duration: must be")


@pytest.mark.parametrize(
    ("word", "value"), [("yes", True), ("off", False), ("true", True), ("No", False)]
)
def test_flags_read_as_people_write_them(word: str, value: bool) -> None:
    assert parse(f"{HEAD}record: {{itl: {word}}}\n").record.itl is value


def test_text_that_looks_like_something_else_survives_a_dump() -> None:
    w = parse("backend: {model: '1e3'}\nprompts: {input_tokens: 1, output_tokens: 1}\nnonce: 'on'")
    again = workload.parse(workload.dump(w))
    assert (again.backend.model, again.nonce) == ("1e3", "on")
    assert again == w


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda p: p.stem)
def test_workloads_that_come_with_us_load_and_dump_to_themselves(path: Path) -> None:
    w = workload.load(path)
    assert w.name == path.stem
    assert path.read_text().startswith("# ")
    assert workload.parse(workload.dump(w)) == w


def test_the_demo_is_what_the_manual_promises() -> None:
    w = workload.load(next(p for p in WORKLOADS if p.stem == "demo"))
    assert w.tokenizer is not None
    assert (w.tokenizer.source, w.tokenizer.path) == ("tiktoken", "cl100k_base")
    assert (w.prompts.source, w.prompts.draw(1, 1)) == ("sharegpt", (512, 128))
    stages = w.load.resolved_stages()
    assert [(s.duration, s.users, s.warmup) for s in stages] == [(5.0, 8, True), (20.0, 16, False)]


@pytest.mark.parametrize(
    "load",
    [
        "{users: 8, requests: 100, think_time: {exponential: {mean: 500ms, max: 5s}}}",
        "{mode: open, arrivals: gamma, burstiness: 0.5, rate_per_s: 20, duration: 90s}",
        "{mode: open, stages: [{duration: 1m, shape: {ramp: {from: 0, to: 20}}}]}",
        "{mode: open, stages: [{requests: 9, rate_per_s: 3, shape: {sine: {amplitude: 2, "
        "period: 1m}}}]}",
        "{mode: open, stages: [{duration: 1m, shape: {series: {points: [[0, 1], [30s, 9]]}}}]}",
        "{stages: [{duration: 1m, users: 2, shape: {spike: {peak: 9, at: 10s, for: 5s}}}]}",
        "{stages: [{name: low, duration: 1m, shape: {steps: {levels: [1, 2, 4]}}}]}",
    ],
)
def test_every_kind_of_load_dumps_to_itself(load: str) -> None:
    w = parse(f"{HEAD}load: {load}\n")
    text = workload.dump(w)
    assert workload.parse(text) == w
    assert workload.dump(workload.parse(text)) == text


# -------------------------------------------------------------------------------- mistakes


def test_all_mistakes_at_once_each_with_its_line() -> None:
    found = problems(
        "nam: x\n"
        "seed: -1\n"
        "backend: {kind: openai-completion, model: 5}\n"
        "prompts: {input_tokens: 0, output_tokens: 5, exact_output: maybe}\n"
        "load:\n"
        "  users: many\n"
        "  duration: 5s\n"
        "  requests: 5\n"
        "timeouts:\n"
        "  stall: -1s\n"
        'slo: {"p98(ttft)": "<2s"}\n'
    )
    places = [problem.split(": ")[:2] for problem in found]
    assert places == [
        ["w.yaml:1", "nam"],
        ["w.yaml:2", "seed"],
        ["w.yaml:3", "backend.kind"],
        ["w.yaml:3", "backend.model"],
        ["w.yaml:4", "prompts.input_tokens"],
        ["w.yaml:4", "prompts.exact_output"],
        ["w.yaml:6", "load.users"],
        ["w.yaml:8", "load.requests"],
        ["w.yaml:10", "timeouts.stall"],
        ["w.yaml:11", "slo.p98(ttft)"],
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("users: many", "load.users: must be a whole number of at least 1, got 'many'"),
        ("users: '8'", "load.users: must be a whole number of at least 1, got '8'"),
        ("users: 0", "load.users: must be a whole number of at least 1, got 0"),
        ("users: 1.5", "load.users: must be a whole number of at least 1, got 1.5"),
        ("users: true", "load.users: must be a whole number of at least 1, got true"),
        (
            "mode: opne",
            "load.mode: unknown mode 'opne'. Expected one of: closed, open. Did you mean 'open'?",
        ),
        ("max_in_flight: -3", "load.max_in_flight: must be a whole number of at least 1, got -3"),
        ("drain: -1s", "load.drain: must be a duration such as 30s, 500ms or 1h30m (a number "
                       "means seconds), got '-1s'"),
        ("drain: -1", "load.drain: must be at least 0s, got -1"),
        ("rate_per_s: 5", "load.rate_per_s: belongs to open loop: add mode: open, or give users"),
        ("arrivals: poisson",
         "load.arrivals: belongs to open loop: add mode: open, or give users"),
        ("requests: 5", "load.requests: cannot stand beside duration: a load without stages ends "
                        "by one of them"),
        ("burstiness: 0.5",
         "load.burstiness: needs arrivals: gamma (1 is poisson, below 1 burstier)"),
        ("think_time: {uniform: [3s, 1s]}",
         "load.think_time.uniform.min: must not be above max, got 3 > 1"),
        ("think_time: -1", "load.think_time: must be at least 0, got -1"),
        ("userz: 5", "load.userz: unknown key 'userz'. Expected one of: arrivals, burstiness, "
                     "drain, duration, max_in_flight, mode, rate_per_s, requests, speed, stages, "
                     "steady_state, sticky_connection, think_time, trace, users. "
                     "Did you mean 'users'?"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_closed_load(text: str, problem: str) -> None:
    assert load_problems(f"{{duration: 9s, {text}}}") == (f"w.yaml:3: {problem}",)


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        ("{users: 4}", "load: a load without stages needs an end: duration: 60s or requests: 1000"),
        ("{mode: open, duration: 5s}", "load.rate_per_s: is required: the arrivals per second"),
        ("{mode: open, rate_per_s: 0, duration: 5s}",
         "load.rate_per_s: must be a number above 0, got 0"),
        ("{mode: open, rate_per_s: 1, duration: 5s, arrivals: poison}",
         "load.arrivals: unknown process 'poison'. Expected one of: constant, gamma, poisson, "
         "trace. Did you mean 'poisson'?"),
        ("{mode: open, rate_per_s: 1, duration: 5s, users: 3}",
         "load.users: belongs to closed loop: an open loop has rate_per_s"),
        ("{mode: open, rate_per_s: 1, duration: 5s, think_time: 1s}",
         "load.think_time: belongs to closed loop: open-loop arrivals wait for nobody"),
        ("{mode: open, arrivals: trace}",
         "load.trace: is required with arrivals: trace: the file with the times"),
        ("{mode: open, arrivals: trace, trace: no-such.csv}",
         "load.trace: no such file: 'no-such.csv'"),
        ("{mode: open, rate_per_s: 1, duration: 5s, speed: 2}",
         "load.speed: needs arrivals: trace"),
        ("[1]", "load: must be a mapping of keys, got a list"),
        ("{stages: []}", "load.stages: must have at least one stage"),
        ("{stages: {duration: 5s}}", "load.stages: must be a list, got a mapping of keys"),
        ("{stages: [5]}", "load.stages.0: must be a mapping of keys, got 5"),
        ("{stages: [{users: 4}]}",
         "load.stages.0: a stage needs an end: duration: 60s or requests: 1000"),
        ("{stages: [{duration: 5s}]}", "load.stages.0.users: is required: the number of users"),
        ("{stages: [{duration: 5s, users: 4, warmup: true}]}",
         "load.stages: are all warm-up: nothing would be measured"),
        ("{users: 5, stages: [{duration: 5s, users: 4}]}",
         "load.users: cannot stand beside stages: each stage says its own"),
        ("{stages: [{duration: 5s, users: 4, rate_per_s: 1}]}",
         "load.stages.0.rate_per_s: does not fit load.mode: a closed loop has users"),
        ("{stages: [{name: a, duration: 5s, users: 4}, {name: a, duration: 5s, users: 4}]}",
         "load.stages.1.name: 'a' is the name of another stage"),
        ("{stages: [{name: 'a: b', duration: 5s, users: 4}]}",
         "load.stages.0.name: must be letters, digits, '.', '_' or '-' (at most 60), got 'a: b'"),
        ("{stages: [{duration: 5s, users: 4, shape: {ramp: {from: 1, to: 2}}}]}",
         "load.stages.0.users: cannot stand beside shape.ramp, which says the levels"),
        ("{stages: [{requests: 5, shape: {ramp: {from: 1, to: 2}}}]}",
         "load.stages.0.shape.ramp.over: is required"),
        ("{mode: open, stages: [{requests: 500, shape: {ramp: {from: 9, to: 0, over: 10s}}}]}",
         "load.stages.0.requests: is never reached: the shape gives 45 arrivals in all"),
    ],
)  # fmt: skip
def test_a_load_that_no_run_could_have(load: str, problem: str) -> None:
    assert load_problems(load) == (f"w.yaml:3: {problem}",)


@pytest.mark.parametrize(
    ("prompts", "key", "problem"),
    [
        ("{output_tokens: 5}", "input_tokens",
         "is required: a number such as 1000, or {uniform: [500, 1500]}"),
        ("{input_tokens: many, output_tokens: 5}", "input_tokens",
         "must be a number, a distribution or from-dataset, got 'many'"),
        ("{input_tokens: 1.5, output_tokens: 5}", "input_tokens",
         "must be a whole number, got 1.5"),
        ("{input_tokens: {uniform: [9, 5]}, output_tokens: 5}", "input_tokens.uniform.min",
         "must not be above max, got 9 > 5"),
        ("{input_tokens: {uniform: [0, 5]}, output_tokens: 5}", "input_tokens",
         "must be at least 1, got 0"),
        ("{input_tokens: {uniform: [5]}, output_tokens: 5}", "input_tokens.uniform",
         "must be [smallest, largest], got 1 items"),
        ("{input_tokens: {unifrom: [1, 5]}, output_tokens: 5}", "input_tokens.unifrom",
         "unknown distribution 'unifrom'. Expected one of: choices, exponential, lognormal, "
         "normal, uniform. Did you mean 'uniform'?"),
        ("{input_tokens: {normal: {mean: 9}}, output_tokens: 5}", "input_tokens.normal.stddev",
         "is required"),
        ("{input_tokens: {choices: [[1, 2], [3, 4]], weights: [1]}}", "input_tokens.weights",
         "must be one a choice: 2 choices, 1 weights"),
        ("{input_tokens: {choices: [[1, 2]], weights: [0]}}", "input_tokens.weights",
         "must not all be 0"),
        ("{input_tokens: {choices: [[1, 2], [3]]}}", "input_tokens.choices.1",
         "must be a pair [input tokens, output tokens]"),
        ("{input_tokens: {choices: [[1, 2], 3]}}", "input_tokens.choices.1",
         "must be like the first: all lengths or all pairs"),
        ("{input_tokens: {choices: [[1, 2]]}, output_tokens: 5}", "output_tokens",
         "cannot stand beside pairs: they say the output length too"),
        ("{input_tokens: 5, output_tokens: {choices: [[1, 2]]}}", "output_tokens",
         "pairs say both lengths: write them under input_tokens"),
        ("{input_tokens: 5, output_tokens: 5, shared_prefix_tokens: 5}", "shared_prefix_tokens",
         "must be smaller than input_tokens (5), got 5"),
        ("{input_tokens: 5, output_tokens: 5, prefix_groups: 4}", "prefix_groups",
         "needs shared_prefix_tokens: there is no prefix to share"),
        ("{source: jsonl}", "path", "is required: the file of the source jsonl"),
        ("{source: trace}", "path",
         "is required: the file of the trace (or say load.trace)"),
        ("{input_tokens: 5, output_tokens: 5, probe: maybe}", "probe",
         "must be true, false or warn, got 'maybe'"),
        ("{source: random, input_tokens: from-dataset, output_tokens: 5}", "input_tokens",
         "the source random has no lengths of its own"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_made(prompts: str, key: str, problem: str) -> None:
    found = problems(f"backend: {{model: m}}\nprompts: {prompts}\n")
    assert found == (f"w.yaml:2: prompts.{key}: {problem}",)


@pytest.mark.parametrize(
    ("backend", "key"),
    [
        ("{model: m, api_key: sk-123}", "api_key"),
        ("{model: m, headers: {Authorization: Bearer sk-123}}", "headers.Authorization"),
        ("{model: m, headers: {api-key: sk-123}}", "headers.api-key"),
        ("{model: m, extra_body: {api_key: sk-123}}", "extra_body.api_key"),
        ("{model: m, urls: ['http://u:sk-123@host']}", "urls.0"),
        ("{model: m, api_key_env: sk-123}", "api_key_env"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(backend: str, key: str) -> None:
    found = problems(f"backend: {backend}\nprompts: {{input_tokens: 1, output_tokens: 1}}\n")
    assert len(found) == 1
    assert found[0].startswith(f"w.yaml:1: backend.{key}: ")
    assert "environment variable" in found[0]
    assert "sk-123" not in found[0]


def test_a_secret_on_the_command_line_is_not_repeated_either() -> None:
    (found,) = problems(HEAD, "backend.api_key=sk-123")
    assert found.startswith("--set backend.api_key=...: backend.api_key: a secret does not belong")


def test_fields_that_the_tool_sets_itself_are_refused() -> None:
    text = HEAD.replace("model: m", "model: m, extra_body: {stream: false, max_tokens: 5}")
    assert problems(text) == (
        "w.yaml:1: backend.extra_body.stream: is always true: latencies are read from the stream",
        "w.yaml:1: backend.extra_body.max_tokens: is set by prompts.output_tokens",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "w.yaml: is empty; a workload is a mapping of keys"),
        ("# only a comment\n", "w.yaml: is empty; a workload is a mapping of keys"),
        ("- 1\n", "w.yaml:1: must be a mapping of keys, got a list"),
        ("hello\n", "w.yaml:1: must be a mapping of keys, got one value"),
        ("a: 1\n---\nb: 2\n", "w.yaml:2: is not YAML: holds more than one document: a file is one"),
        ("a:\n\tb: 1\n", "w.yaml:2: is not YAML: found character '\\t' that cannot start any "
                         "token; indent with spaces, not tabs"),
        ("seed: 1\nname: x\nseed: 2\n", "w.yaml:3: seed: is written twice, first in line 1"),
        ("backend: {model: {{ model }}}\n",
         "w.yaml:1: backend.model: a key must be text; is this an unrendered {{ template }}?"),
        ("a: !!python/name:os.system\n", "w.yaml:1: a: the tag !!python/name:os.system is not "
                                         "allowed: write the plain value"),
        ("a: &x [*x]\n", "w.yaml:1: unfolds to too many values (over 200000, or 60 deep): are "
                         "aliases nested in aliases?"),
        ("a: " + "[" * 3000, "w.yaml: is nested too deeply for a workload"),
    ],
)  # fmt: skip
def test_text_that_is_no_workload(text: str, problem: str) -> None:
    assert problems(text)[0] == problem


def test_aliases_may_repeat_but_not_explode() -> None:
    w = parse(f"{HEAD}load: {{stages: [&a {{users: 2, duration: 5s}}, {{<<: *a, users: 4}}]}}\n")
    assert [(s.users, s.duration) for s in w.load.resolved_stages()] == [(2, 5.0), (4, 5.0)]
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
    )
    assert "unfolds to too many values" in problems(bomb)[0]


def test_an_unrendered_template_in_a_text_is_refused() -> None:
    text = HEAD.replace("{model: m}", "{model: '{{ model }}'}")
    assert problems(text) == (
        "w.yaml:1: backend.model: holds an unrendered template, '{{ model }}': fill it in first",
    )


def test_a_bound_that_yaml_takes_for_a_block_says_so() -> None:
    assert "quote what begins with '>'" in problems(f"{HEAD}slo:\n  requests_per_s: >5\n")[0]


def test_a_missing_section_is_told_with_the_file() -> None:
    assert problems("seed: 1\n") == (
        "w.yaml:1: backend: is required",
        "w.yaml:1: prompts: is required",
    )


# ------------------------------------------------------------------------------------ files


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases: list[tuple[Path, str]] = [
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a folder; a workload is one YAML file"),
        (tmp_path / "latin.yaml", "is not UTF-8 text (byte 0xe9): save it as UTF-8"),
        (tmp_path / "big.yaml", "is too large for a workload (over 4 MB)"),
    ]
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nname: caf\xe9\n")
    (tmp_path / "big.yaml").write_bytes(b"#" * 5_000_000)
    for path, text in cases:
        with pytest.raises(BadInput) as caught:
            workload.load(path)
        where = f"{path}:2" if path.stem == "latin" else f"{path}"
        assert caught.value.problems == (f"{where}: {text}",)


def test_a_byte_order_mark_is_no_mistake_and_the_name_comes_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my load.yaml"
    path.write_text("﻿" + HEAD, encoding="utf-8")
    assert workload.load(path).name == "my-load"


def test_paths_are_looked_for_beside_the_workload_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    (folder / "rates.csv").write_text("t,rate\n0,1\n30,5\n")
    (folder / "corpus.txt").write_text("hello")
    (folder / "w.yaml").write_text(
        "backend: {model: m}\n"
        "tokenizer: {source: tiktoken, path: cl100k_base}\n"
        "prompts: {source: text, path: corpus.txt, input_tokens: 5, output_tokens: 5}\n"
        "load: {mode: open, stages: [{duration: 30s, shape: {series: {file: rates.csv}}}]}\n"
    )
    w = workload.load("there/w.yaml")
    assert w.prompts.path == "there/corpus.txt"
    assert w.tokenizer is not None
    assert w.tokenizer.path == "cl100k_base"
    assert w.load.resolved_stages()[0].rate_at(15) == 3.0
    monkeypatch.chdir(folder)  # the series is in the resolved workload, its file is not needed
    (folder / "rates.csv").unlink()
    assert workload.parse(workload.dump(w)) == w


def test_a_trace_is_named_once_for_times_and_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,input_tokens,output_tokens\n0,5,6\n")
    head = f"backend: {{model: m}}\nprompts: {{source: trace, path: {trace}}}\n"
    w = parse(f"{head}load: {{mode: open, arrivals: trace}}\n")
    assert w.load.trace == str(trace)
    w = parse(
        "backend: {model: m}\nprompts: {source: trace}\n"
        f"load: {{mode: open, arrivals: trace, trace: {trace}}}\n"
    )
    assert w.prompts.path == str(trace)


# ------------------------------------------------------------------------------------- set


def test_set_changes_values_adds_sections_and_reads_yaml() -> None:
    w = parse(
        FULL,
        "load.stages.0.users=8",
        "load.stages.1={requests: 5, users: 2}",
        "hardware.count=4",
        "retry.max=3",
        "slo.p50(itl)=<20ms",
        'slo."p99.9(e2e)"=<1m'.replace("1m", "60s"),
        "slo.requests_per_s=>5/s",
        "backend.extra_body.temperature=0",
        "nonce=abc",
    )
    assert [s.users for s in w.load.resolved_stages()] == [8, 2]
    assert w.load.resolved_stages()[1].requests == 5
    assert w.hardware is not None
    assert (w.hardware.count, w.retry.max, w.nonce) == (4, 3, "abc")
    assert w.slo["p50(itl)"] == "<20ms"
    assert w.slo["p99.9(e2e)"] == "<60s"
    assert w.slo["requests_per_s"] == ">5/s"
    assert w.backend.extra_body["temperature"] == 0


def test_set_to_null_takes_a_key_away() -> None:
    text = f"{HEAD}load: {{users: 2, requests: 9}}\n"
    assert parse(text, "load.requests=null", "load.duration=5s").load.duration == 5.0
    assert parse(text, "load.requests=", "load.duration=5s").load.requests is None


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("load.userz=8", "load.userz: unknown key 'userz'. Expected one of: arrivals, "),
        ("load.users=8", "load.users: cannot stand beside stages: each stage says its own"),
        ("load.stages.0.users=0", "load.stages.0.users: must be a whole number of at least 1, "),
        ("load.stages.9.users=1", "load.stages is a list of 2 items, counted from 0: there is no"),
        ("load.stages.x=1", "load.stages is a list of 2 items, counted from 0: there is no 'x'"),
        ("seed.x=1", "seed is 7, not a section with keys"),
        ("seed", "must be key.path=value, such as load.users=8"),
        ("=1", "must be key.path=value, such as load.users=8"),
        ("seed=[1", "value:1: is not YAML: "),
        ("slo.ttft=2s", "slo.ttft: must be a comparison and a value such as '<2s', got '2s'"),
        ("backends.model=x", "backends: unknown key 'backends'. Expected one of: backend, "),
    ],
)
def test_a_mistake_in_a_setting_is_told_as_such(setting: str, problem: str) -> None:
    found = problems(FULL, setting)
    assert len(found) == 1
    assert found[0].startswith(f"--set {setting}: {problem}")


def test_later_settings_win_and_mistakes_of_the_file_are_told_beside_them() -> None:
    assert parse(FULL, "seed=1", "seed=2").seed == 2
    found = problems(FULL.replace("seed: 7", "seed: x"), "record.itl=5")
    assert [p.split(": ")[0] for p in found] == ["w.yaml:2", "--set record.itl=5"]


# ----------------------------------------------------------------------------- what it gives


def lengths_of(spec: str, n: int = 2000) -> list[tuple[int | None, int | None]]:
    prompts = parse(f"backend: {{model: m}}\nprompts: {spec}\n").prompts
    return [prompts.draw(7, index) for index in range(n)]


def test_lengths_depend_on_seed_and_index_alone() -> None:
    text = "backend: {model: m}\nprompts: {input_tokens: {uniform: [1, 99]}, output_tokens: 5}\n"
    first, again = parse(text).prompts, parse(text).prompts
    there = [first.draw(7, index) for index in range(50)]
    back = [again.draw(7, index) for index in reversed(range(50))]
    assert there == back[::-1]
    assert there != [first.draw(8, index) for index in range(50)]


def test_pairs_are_drawn_together_by_weight_under_either_name() -> None:
    pairs = "{choices: [[1000, 100], [3000, 300]], weights: [3, 1]}"
    drawn = lengths_of(f"{{lengths: {pairs}}}")
    assert set(drawn) == {(1000, 100), (3000, 300)}
    # 2,000 draws at 3/4: standard deviation 19; 5 of them are passed once in 1.7 million seeds.
    assert abs(drawn.count((1000, 100)) - 1500) < 97
    assert lengths_of(f"{{input_tokens: {pairs}}}") == drawn


def test_lengths_keep_their_limits_and_sides_are_independent() -> None:
    drawn = lengths_of(
        "{input_tokens: {normal: {mean: 100, stddev: 50, min: 80, max: 120}}, "
        "output_tokens: {lognormal: {mean: 100, stddev: 80, max: 500}}}"
    )
    inputs, outputs = [i for i, _ in drawn], [o for _, o in drawn]
    assert (min(i for i in inputs if i), max(i for i in inputs if i)) == (80, 120)
    assert all(o is not None and 1 <= o <= 500 for o in outputs)
    mean = sum(o for o in outputs if o) / len(outputs)
    assert 90 < mean < 105  # 100, less what the cut takes away; standard error 1.7
    high = [o for i, o in drawn if i is not None and i > 100 and o is not None]
    low = [o for i, o in drawn if i is not None and i <= 100 and o is not None]
    assert abs(sum(high) / len(high) - sum(low) / len(low)) < 18  # 5 standard errors


@pytest.mark.parametrize(
    ("spec", "largest"),
    [
        ("{input_tokens: 1000, output_tokens: 100}", (1000, 100)),
        ("{input_tokens: {uniform: [5, 9]}, output_tokens: from-dataset}", (9, None)),
        ("{input_tokens: {choices: [[1000, 10], [30, 300]]}}", (1000, 300)),
        ("{source: conversations}", (None, None)),
        ("{input_tokens: {normal: {mean: 9, stddev: 1, max: 12}}, output_tokens: 1}", (12, 1)),
    ],
)
def test_the_longest_lengths_are_known_beforehand(spec: str, largest: tuple[Any, Any]) -> None:
    prompts = parse(f"backend: {{model: m}}\nprompts: {spec}\n").prompts
    assert (prompts.max_input_tokens, prompts.max_output_tokens) == largest


def test_lengths_from_the_data_set_are_left_open() -> None:
    assert lengths_of("{input_tokens: 9, output_tokens: from-dataset}", 1) == [(9, None)]
    assert lengths_of("{input_tokens: 9, exact_output: false}", 1) == [(9, None)]


def test_stages_get_names_that_nobody_else_has() -> None:
    stage = "{users: 1, duration: 1s%s}"
    stages = ", ".join(
        stage % more for more in (", warmup: true", ", warmup: true", "", ", name: stage-2", "", "")
    )
    w = parse(f"{HEAD}load: {{stages: [{stages}]}}\n")
    names = [s.name for s in w.load.resolved_stages()]
    assert names == ["warmup", "warmup-2", "stage-1", "stage-2", "stage-3", "stage-4"]


def test_users_follow_the_shape_of_a_stage() -> None:
    w = parse(f"{HEAD}load: {{stages: [{{duration: 10s, shape: {{ramp: {{from: 1, to: 9}}}}}}]}}\n")
    (stage,) = w.load.resolved_stages()
    assert [stage.users_at(t) for t in (0, 2.5, 5, 10, 99)] == [1, 3, 5, 9, 9]
    assert stage.most_users == 9
    assert parse(HEAD).load.resolved_stages()[0].users_at(3) == 1


def test_think_time_is_in_seconds_and_follows_the_request() -> None:
    w = parse(f"{HEAD}load: {{duration: 9s, think_time: {{uniform: [500ms, 2s]}}}}\n")
    pauses = [w.load.think_s(7, index) for index in range(500)]
    assert all(0.5 <= pause <= 2.0 for pause in pauses)
    assert pauses[3] == w.load.think_s(7, 3) != pauses[4]
    assert parse(f"{HEAD}load: {{duration: 9s, think_time: 250ms}}\n").load.think_s(7, 1) == 0.25
    assert parse(HEAD).load.think_s(7, 1) == 0.0


def test_objectives_know_the_loop_and_the_stages() -> None:
    w = parse(
        f"{HEAD}load: {{mode: open, rate_per_s: 5, duration: 5s}}\n"
        'slo: {"main: p90(ttft)": "<1s"}\n'
    )
    assert [(o.metric, o.stage) for o in w.objectives()] == [
        ("ttft_due_s", "main"),
        ("error_ratio", None),
        ("ok_requests", None),
    ]
    (found,) = problems(FULL, 'slo."warmup: p90(ttft)"=<1s')
    assert "unknown measured stage 'warmup'. Expected one of: stage-1." in found


def test_all_mistakes_in_hardware_are_found_at_once() -> None:
    found = problems(f"""{HEAD}hardware:
  gpu: H100-SMX
  count: 3
  model:
    paramters: 7.0e+9
    weight_bits: many
    tensor_parallel: 2
    num_hidden_layer: 32
    hidden_size: 4096
    n_embd: 4096
    experts: 8
""")
    line = HEAD.count("\n") + 1
    said = [
        (1, "gpu: unknown GPU 'H100-SMX'. ", "Did you mean 'H100-SXM'? Or give"),
        (3, "model.expert_share: is required beside experts", ""),
        (3, "model.top_k: is required beside experts", ""),
        (3, "model.parameters: is required: give the number of parameters, or config: ", ""),
        (4, "model.paramters: unknown key 'paramters'. ", "Did you mean 'parameters'?"),
        (5, "model.weight_bits: must be a number above 0, got 'many'", ""),
        (6, "model.tensor_parallel: 3 GPUs cannot hold copies of 2 GPUs each", ""),
        (7, "model.num_hidden_layer: unknown key ", "Did you mean 'num_hidden_layers'?"),
        (9, "model.n_embd: says the same as hidden_size: give one of the two", ""),
    ]
    assert len(found) == len(said)
    for text, (below, begin, end) in zip(found, said, strict=True):
        assert text.startswith(f"w.yaml:{line + below}: hardware.{begin}")
        assert end in text


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        ("{model: {parameters: 7.0e+9}}", "model: of no use without hardware.gpu"),
        ("{gpu: L4, model: [7]}", "model: must be a mapping of keys, got a list"),
        ("{gpu: L4, model: {kv_bits: 8}}", "model.parameters: is required"),
        ("{gpu: L4, model: {parameters: true}}", "model.parameters: must be a number above 0"),
        ("{gpu: X, peak_tflops: 9, model: {parameters: 9}}", "gpu: unknown GPU 'X'"),
    ],
)
def test_a_mistake_in_hardware(hardware: str, text: str) -> None:
    found = problems(f"{HEAD}hardware: {hardware}")
    assert len(found) == 1
    assert f"hardware.{text}" in found[0]


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"parameters": 7e9, "num_hidden_layers": 32, "head_dim": 128, "tensor_parallel": 2},
        {"config": "./not-on-this-machine", "weight_bits": 4.5},
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
    ],
)
def test_a_model_is_kept_as_it_was_given(model: dict[str, object]) -> None:
    w = parse(f"{HEAD}hardware: {json.dumps({'gpu': 'h100-sxm', 'count': 2, 'model': model})}")
    assert w.hardware is not None
    assert w.hardware.model == model
    assert parse(workload.dump(w)) == w


def test_any_gpu_will_do_whose_peaks_are_given() -> None:
    w = parse(f"{HEAD}hardware: {{gpu: X, peak_tflops: 9, memory_bandwidth_gb_per_s: 8}}")
    assert w.hardware is not None
    assert w.hardware.gpu == "X"


def test_a_config_that_is_not_there_is_found_by_check_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"{HEAD}hardware: {{gpu: L4, model: {{config: /nowhere}}}}\n")
    with pytest.raises(BadInput, match=r"hardware\.model\.config: /nowhere: cannot be read"):
        check.check(str(path), [], io.StringIO())
