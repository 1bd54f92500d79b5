from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tokenswarm import shapes, spec

KINDS: list[tuple[Any, float | None]] = [
    ("steady", 10.0),
    ({"ramp": {"from": 0, "to": 20}}, None),
    ({"ramp": {"from": 9, "to": 0, "over": "30s"}}, None),
    ({"steps": {"levels": [5, 0, 20]}}, None),
    ({"spike": {"peak": 50, "at": "30s", "for": "10s"}}, 10.0),
    ({"spike": {"base": 8, "peak": 2, "at": 0, "for": "10s"}}, None),
    ({"sine": {"amplitude": 9.9, "period": "10s", "phase": 0.25}}, 10.0),
    ({"series": {"points": [[1, 5], ["10s", 0], [20, 7], [20, 3]]}}, None),
    ({"series": {"points": [[0, 5], [10, 0], [20, 7]], "interpolate": "step"}}, None),
]


def made(value: Any, level: float | None = None, seconds: float | None = 60.0) -> shapes.Shape:
    return shapes.parse(value, seconds=seconds, level=level)


@pytest.mark.parametrize(("value", "level"), KINDS)
def test_cumulative_is_the_area_under_rate(value: Any, level: float | None) -> None:
    shape = made(value, level)
    step, area = 0.01, 0.0
    for k in range(6500):  # to 65 s: past the end of the stage too
        area += shape.rate((k + 0.5) * step) * step
        assert shape.cumulative((k + 1) * step) == pytest.approx(area, abs=0.5)
    assert shape.cumulative(0.0) == 0.0


@pytest.mark.parametrize(("value", "level"), KINDS)
def test_reach_is_the_inverse_of_cumulative(value: Any, level: float | None) -> None:
    shape = made(value, level)
    total, t = shape.cumulative(60.0), 0.0
    for k in range(1, 1000):
        n = total * k / 1000
        t = shape.reach(n, t)
        assert shape.cumulative(t) == pytest.approx(n, rel=1e-9)
        assert shape.reach(n) == pytest.approx(t, abs=1e-6)


@pytest.mark.parametrize(("value", "level"), KINDS)
def test_highest_is_never_passed_and_is_met(value: Any, level: float | None) -> None:
    shape = made(value, level)
    rates = [shape.rate(k / 100) for k in range(6000)]
    assert max(rates) == pytest.approx(shape.highest(60.0), rel=1e-2)
    assert max(rates) <= shape.highest(60.0)


@pytest.mark.parametrize(("value", "level"), KINDS)
def test_what_is_written_reads_back_as_equal(value: Any, level: float | None) -> None:
    shape = made(value, level)
    assert shapes.parse(shapes.written(shape)) == shape


@pytest.mark.parametrize(
    ("value", "level", "rates"),
    [
        ("steady", 4.0, {0: 4, 59: 4}),
        ({"ramp": {"from": 2, "to": 8}}, None, {0: 2, 30: 5, 60: 8, 99: 8}),
        ({"steps": {"levels": [1, 2, 3]}}, None, {0: 1, 19.9: 1, 20: 2, 40: 3, 99: 3}),
        ({"spike": {"peak": 9, "at": 10, "for": 5}}, 2.0, {9.9: 2, 10: 9, 14.9: 9, 15: 2}),
        ({"sine": {"amplitude": 3, "period": 8}}, 5.0, {0: 5, 2: 8, 6: 2}),
        ({"series": {"points": [[10, 1], [20, 3]]}}, None, {0: 1, 10: 1, 15: 2, 20: 3, 99: 3}),
    ],
)
def test_rates_are_those_of_the_drawing(
    value: Any, level: float | None, rates: dict[float, float]
) -> None:
    shape = made(value, level)
    assert {t: pytest.approx(shape.rate(t)) for t in rates} == rates


def test_a_level_that_is_never_reached_is_never() -> None:
    shape = made({"ramp": {"from": 10, "to": 0, "over": 10}})
    assert shape.cumulative(10.0) == 50.0
    assert shape.reach(50.5) == math.inf
    assert made("steady", 5.0).reach(50) == 10.0


def test_an_arrival_at_a_pause_is_due_at_its_start() -> None:
    shape = made({"steps": {"levels": [5, 0, 5], "every": 10}})
    assert shape.reach(50.0) == pytest.approx(10.0, abs=1e-9)
    assert shape.reach(50.5, 10.0) == pytest.approx(20.1)


@pytest.mark.parametrize(
    ("value", "place", "text"),
    [
        ("rmap", ("rmap",), "unknown shape 'rmap'. Expected one of: ramp, series, sine, spike, "
                            "steady, steps. Did you mean 'ramp'?"),
        ("steady", ("steady", "level"), "is required"),
        ({"ramp": {"to": 3}}, ("ramp", "from"), "is required"),
        ({"ramp": {"from": 0, "to": 0}}, ("ramp", "to"), "must be above 0 when from is 0"),
        ({"ramp": {"from": -1, "to": 0}}, ("ramp", "from"),
         "must be a number of at least 0, got -1"),
        ({"ramp": [1, 2]}, ("ramp",), "must be a mapping of keys, got a list"),
        ({"steps": {"levels": [0, 0]}}, ("steps", "levels"),
         "must have at least one level above 0"),
        ({"steps": {"levels": [1, -2]}}, ("steps", "levels", 1),
         "must be a number of at least 0, got -2"),
        ({"sine": {"mean": 5, "amplitude": 6, "period": 1}}, ("sine", "amplitude"),
         "must not be above mean (5): the level would be negative"),
        ({"series": {"points": [[0, 1], [5]]}}, ("series", "points", 1),
         "must be a pair [time, level], got a list"),
        ({"series": {"points": [[5, 1], [4, 1]]}}, ("series", "points", 1),
         "times must not go back, got 4 s after 5 s"),
        ({"series": {"points": [[5, 0]]}}, ("series", "points"),
         "must have at least one row with a level above 0"),
        ({"series": {"points": [[5, 1]], "file": "x"}}, ("series", "file"),
         "cannot stand beside points"),
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be(value: Any, place: tuple[str | int, ...], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        made(value)
    assert (place, text) in spec.problems_of(caught.value)


def test_two_shapes_are_none() -> None:
    with pytest.raises(ValueError, match=r"must be one shape such as \{ramp"):
        made({"ramp": {}, "sine": {}})


@pytest.mark.parametrize(
    "text",
    ["t,rate\n0,1\n10,3\n", "0,1\n10,3\n", "# made by hand\n0;1\n\n10s;3\n", "[0, 1]\n[10, 3]\n"],
)
def test_a_series_is_read_from_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "series.csv"
    path.write_text(text)
    shape = made({"series": {"file": str(path)}})
    assert isinstance(shape, shapes.Series)
    assert shape.points == ((0.0, 1.0), (10.0, 3.0))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no rows: expected time in seconds and level in each line"),
        ("t,rate\n", "has no rows: expected time in seconds and level in each line"),
        ("0,1\n5,x\n4,4,4\n", ":2: the level must be a number of at least 0, got 'x'; "),
        ("0,1\n5,x\n4,4,4\n", ":3: must be a pair [time, level], got a list"),
    ],
)
def test_a_file_that_is_no_series(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "series.csv"
    path.write_text(text)
    with pytest.raises(ValidationError) as caught:
        made({"series": {"file": str(path)}})
    ((_, found),) = spec.problems_of(caught.value)
    assert problem in found
    assert str(path) in found


def test_a_missing_file_is_told() -> None:
    with pytest.raises(ValidationError) as caught:
        made({"series": {"file": "no-such.csv"}})
    ((place, found),) = spec.problems_of(caught.value)
    assert place == ("series", "points")
    assert found.startswith("'no-such.csv' cannot be read: No such file")
