"""Whatever stands in a workload file: it loads and dumps to itself, or every mistake is told."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswarm import workload
from tokenswarm.records import BadInput

FOLDER = Path(__file__).parents[2] / "workloads"
BASES = [
    yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for name in ("demo", "soak", "open-loop", "novita-1000-100")
]
KEYS = ["users", "rate_per_s", "requests", "duration", "shape", "name", "mode", "arrivals", "trace",
        "path", "stages", "think_time", "warmup", "speed", "lengths", "source", "kind", "min",
        "max", "nonce", "slo", "load", "hardware", "retry"]  # fmt: skip
VALUES: list[Any] = [
    None, 0, -1, 1, 2.5, 1e300, 1e-300, 10**30, float("nan"), float("inf"), True, "x", "", "5s",
    "<2s", "{{x}}", "\x00", "a" * 5000, "from-dataset", "trace", "open", "closed", "gamma", "zipf",
    "conversations", [], {}, [1], {"a": 1}, [[1, 2]], {"ramp": {"from": 1, "to": 2}},
    {"uniform": [1, 2]}, {"choices": [[1, 2]]}, {"choices": [[0, 1]]}, {"steps": {"levels": 5}},
    {"series": {"points": []}}, {"series": {"file": "/"}}, {"normal": {"mean": 5, "stddev": 1}},
]  # fmt: skip


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


@st.composite
def files(draw: st.DrawFn) -> str:
    data = copy.deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([c for c in containers(data) if c] or [data]))
        old = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else [0]))
        if draw(st.booleans()) and isinstance(place, dict):
            old = draw(st.sampled_from(KEYS))
        place[old] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return yaml.dump(data)


def loaded_or_problems(text: str) -> workload.Workload | tuple[str, ...]:
    try:
        return workload.parse(text)
    except BadInput as error:
        return error.problems


@settings(max_examples=250, deadline=None)
@given(files())
def test_a_file_loads_or_is_explained(text: str) -> None:
    found = loaded_or_problems(text)
    if isinstance(found, tuple):
        assert found
        for problem in found:
            assert problem.startswith("workload.yaml:")
            assert "\n" not in problem
            assert len(problem) < 700
            assert "Input should" not in problem
        return
    assert workload.parse(workload.dump(found)) == found
    found.objectives()
    found.prompts.draw(1, 1)
    assert all(stage.name for stage in found.load.resolved_stages())
