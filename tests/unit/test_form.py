from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokenswarm.records import BadInput

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed import form

CLOSED = SimpleNamespace(mode="closed", stages=())
OPEN = SimpleNamespace(mode="open", stages=())
STAGED = SimpleNamespace(mode="closed", stages=("one",))

WORKLOAD = """\
backend: {kind: openai-completions, model: demo}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 64, output_tokens: 8}
load: {users: 4, requests: 40}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(WORKLOAD)
    return str(path)


@pytest.mark.parametrize(
    ("load", "users", "rate", "run_time", "sets"),
    [
        (CLOSED, 8, 0.0, None, ["load.users=8"]),
        (CLOSED, 8, 0.0, 90, ["load.users=8", "load.requests=null", "load.duration=90"]),
        (OPEN, 8, 0.0, None, []),
        (OPEN, 8, 2.5, 60, ["load.rate_per_s=2.5", "load.requests=null", "load.duration=60"]),
        (STAGED, 8, 0.0, None, []),
    ],
)
def test_a_form_is_some_settings_of_the_workload(
    load: Any, users: int, rate: float, run_time: float | None, sets: list[str]
) -> None:
    assert form.settings(load, users, rate, run_time) == sets


@pytest.mark.parametrize(
    ("load", "rate", "run_time", "words"),
    [
        (STAGED, 0.0, 60, "run time: the workload has stages"),
        (CLOSED, 2.0, None, "rate per s: the workload is a closed loop"),
        (SimpleNamespace(mode="open", stages=("one",)), 2.0, None, "which say the rate"),
    ],
)
def test_what_the_form_cannot_change_is_said(
    load: Any, rate: float, run_time: float | None, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        form.settings(load, 4, rate, run_time)


def submitted(**fields: str) -> dict[str, str]:
    return {"user_count": "4", "rate_per_s": "0.0", "run_time": "", "workload": "",
            "host": "http://127.0.0.1:8000", **fields}  # fmt: skip


def test_a_good_form_has_no_problems(file: str) -> None:
    assert form.problems(submitted(), file, []) == []
    assert form.problems(submitted(workload=file, run_time="1m"), "nowhere.yaml", []) == []


def test_a_form_without_a_host_means_the_one_of_the_command_line(file: str) -> None:
    fields = {key: value for key, value in submitted().items() if key != "host"}
    assert form.problems(fields, file, [], "http://127.0.0.1:8000") == []
    assert form.problems(fields, file, []) != []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"user_count": "many"}, "users: must be a number, got 'many'"),
        ({"rate_per_s": "fast"}, "rate per s: must be a number, got 'fast'"),
        ({"run_time": "soon"}, "run time: must be such as 90, 90s, 15m or 1h30m, got 'soon'"),
        ({"host": "example"}, "--host 'example': not an http or https URL"),
        ({"workload": "nowhere.yaml"}, "nowhere.yaml: "),
        ({"user_count": "-3"}, "load.users=-3: load.users: "),
    ],
)
def test_a_mistake_in_the_form_is_said(file: str, fields: dict[str, str], words: str) -> None:
    (problem,) = form.problems(submitted(**fields), file, [])
    assert words in problem


def test_every_mistake_of_a_workload_is_said_with_its_line(file: str) -> None:
    path = Path(file)
    path.write_text(WORKLOAD.replace("users: 4", "users: four").replace("model:", "modle:"))
    found = form.problems(submitted(), file, [])
    assert len(found) > 1
    assert all(problem.startswith(f"{file}:") for problem in found)
