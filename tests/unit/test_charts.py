import json
import math
import re
from itertools import pairwise

import pytest

from exporters.charts import Axis, Bars, Chart, Line, Points, Rule, Shade, figure
from exporters.quantities import alike, clock, number, percent, seconds, show, usd
from exporters.scales import fit, linear_ticks, log_edges

FLAT = Axis("x", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (0, "0 s"), (8.25e-9, "8.25 ns"), (3.4e-4, "340 µs"),
        (0.0123, "12.3 ms"), (0.9996, "1 s"), (1.234, "1.23 s"), (59.96, "60 s"),
        (125, "2 min 5 s"), (120, "2 min"), (12_000, "3 h 20 min"), (7200, "2 h"),
    ],
)  # fmt: skip
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.01234, "0.0123"), (1.2, "1.2"), (12.345, "12.3"), (123.4, "123"),
        (999.6, "1,000"), (12_345.6, "12,346"), (-0.5, "-0.5"), (math.inf, "∞"), (None, "–"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


def test_other_units():
    assert percent(0.0123) == "1.23 %"
    assert [usd(v) for v in (0.0543, 0.5, 2.5, 1234.5)] == ["$0.0543", "$0.50", "$2.50",
                                                            "$1,234.50"]  # fmt: skip
    assert [clock(v) for v in (5, 750, 10_800)] == ["0:05", "12:30", "3:00:00"]
    assert show(3, "furlongs") == "3 furlongs"


def test_labels_of_an_axis_differ():
    assert alike([1.3201, 1.3202, 1.3203], "s") == ["1.3201 s", "1.3202 s", "1.3203 s"]
    assert alike([10.0025, 10.005, 10.0075], "") == ["10.0025", "10.0050", "10.0075"]
    assert alike([1, 2], "s") == ["1 s", "2 s"]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 7.3), (3, 3.001), (-2, 2), (0, 1e9)])
def test_linear_ticks_are_few_round_and_inside(low, high):
    ticks = linear_ticks(low, high)
    assert 3 <= len(ticks) <= 8
    assert low - 1e-9 <= ticks[0] <= ticks[-1] <= high * (1 + 1e-9)


def test_log_edges_have_equal_ratios():
    edges = log_edges(1, 1000, 6)
    ratios = [b / a for a, b in pairwise(edges)]
    assert ratios == pytest.approx([ratios[0]] * 6)


@pytest.mark.parametrize("kind", ["linear", "log"])
@pytest.mark.parametrize("values", [[], [0.0], [5.0], [5.0, 5.0], [None, math.nan], [1, 1e6]])
def test_every_scale_has_an_extent(kind, values):
    scale = fit(Axis("x", "s", kind), values, 0, 100)
    assert scale.low < scale.high
    assert all(0 <= scale(v) <= 100 for v in (scale.low, scale.high, 3.0))


def test_percentiles_are_equally_far_apart_by_decades():
    scale = fit(Axis("p", "", "percentile", low=0, high=0.999), [], 0, 300)
    assert [round(scale(q)) for q in (0, 0.9, 0.99, 0.999)] == [0, 100, 200, 300]


def test_missing_values_interrupt_a_line():
    html = figure(Chart("a", "t", FLAT, FLAT, [Line("l", [0, 1, 2, 3, 4], [1, 2, None, 3, 4])]))
    path = re.search(r'class="line c0" d="([^"]+)"', html).group(1)
    assert (path.count("M"), path.count("L")) == (2, 2)


def test_bars_are_as_high_as_their_values():
    html = figure(Chart("a", "t", FLAT, Axis("n", "count", high=10),
                        [Bars("b", [0, 1, 2], [10, 5])]))  # fmt: skip
    path = re.search(r'class="bar c0" d="([^"]+)"', html).group(1)
    tall, half = (float(m) for m in re.findall(r"V([\d.]+)h", path))
    bottom = float(re.search(r"M[\d.]+ ([\d.]+)V", path).group(1))
    assert bottom - half == pytest.approx((bottom - tall) / 2, abs=0.2)


def test_what_a_pointer_shows_is_what_is_drawn():
    lines = [Line("p50", [0, 60], [0.01, None]), Line("p99", [0, 60], [1, 2])]
    html = figure(Chart("a", "t", Axis("time", "time"), Axis("y", "s"), lines))
    data = json.loads(re.search(r"<script type=application/json>(.*?)</script>", html).group(1))
    assert data["t"] == ["0:00", "1:00"]
    assert data["s"] == [["p50", ["10 ms", "–"]], ["p99", ["1 s", "2 s"]]]


def test_text_from_outside_stays_text():
    evil = "</script><script>alert(1)</script>"
    html = figure(Chart(
        "a", evil, Axis(evil), Axis(evil),
        [Line(evil, [0, 9], [1, 2]), Line(evil, [0, 9], [1, 2]), Points("", [1], [1], 0, [evil])],
        [Shade(0, 9, evil)], [Rule(1, evil)], evil, [evil],
    ))  # fmt: skip
    assert "<script>alert" not in html
    assert html.count("</script>") == 1


def test_names_beside_points_do_not_cover_one_another():
    same = [Points("", [1.0], [1.0 + k / 1000], k, [f"configuration {k}"]) for k in range(3)]
    frame = [Points("", [0, 2], [0, 2])]
    html = figure(Chart("a", "t", FLAT, FLAT, [*frame, *same]))
    places = re.findall(r'class=name x="([\d.]+)" y="([\d.]+)"', html)
    assert len(set(places)) == 3
