"""Verdicts from summaries and records: length, certainty, and a server that falls behind."""

import random

import pytest

from tokenswarm import slo
from tokenswarm.study_verdict import growth, judged, needed


def objectives(**of):
    return slo.parse_slos(of, "closed")


@pytest.mark.parametrize(
    ("slos", "requests"),
    [
        ({}, 20),
        ({"p50(ttft)": "<1s"}, 20),
        ({"p90(ttft)": "<1s"}, 100),
        ({"p90(ttft)": "<1s", "p99(tpot)": "<1s"}, 1000),
        ({"p10(speed)": ">5/s"}, 100),  # the slow users: the tenth of a hundred
        ({"p999(ttft)": "<1s"}, 10_000),
        ({"p99(itl)": "<1s"}, 20),  # every request has many
    ],
)
def test_a_probe_is_long_enough_for_ten_values_beyond_its_percentile(slos, requests):
    assert needed(objectives(**slos), 10) == pytest.approx(requests)


def check(passed=True, key="p90(ttft)", bound=0.1, stage=None):
    return {"key": key, "text": f"{key} <100ms", "detail": "x", "passed": passed,
            "metric": "ttft_s", "bound": bound, "stage": stage}  # fmt: skip


def summary(*checks, ci95=None):
    return {"slo": {"checks": checks}, "metrics": {"ttft_s": {"ci95": ci95}}}


@pytest.mark.parametrize(
    ("found", "failed", "sure"),
    [
        (summary(check()), 0, True),
        (summary(check(False)), 1, True),
        (summary(check(None)), 1, True),
        (summary(check(), ci95={"p90": [0.08, 0.09]}), 0, True),
        (summary(check(), ci95={"p90": [0.08, 0.11]}), 0, False),
        (summary(check(False), ci95={"p90": [0.09, 0.12]}), 1, False),
        (summary(check(), ci95={"p90": None, "p99": [0.05, 0.2]}), 0, True),
        (summary(check(stage="a"), ci95={"p90": [0.08, 0.11]}), 0, True),  # of another scope
    ],
)
def test_a_verdict_is_sure_outside_of_its_interval(found, failed, sure):
    why, certain = judged(found)
    assert (len(why), certain) == (failed, sure)


def test_an_overloaded_server_is_seen_in_the_slope():
    """At rate R and capacity C the delay grows by R/C - 1 a second."""
    rate, capacity, rng = 50.0, 40.0, random.Random(5)
    due = [i / rate for i in range(300)]
    delays = [(t, 0.2 + t * (rate / capacity - 1) + rng.gauss(0, 0.02)) for t in due]
    slope, certain = growth(delays)
    assert certain
    assert rate / (1 + slope) == pytest.approx(capacity, rel=0.02)


def test_a_server_that_keeps_up_shows_no_certain_slope():
    """False alarms at the 5 % level, one side: at most 2.5 % of 400; the bound allows 5 %."""
    rng = random.Random(6)
    alarms = 0
    for _ in range(400):
        level, delays = 0.0, []
        for i in range(200):  # a queue's delay remembers: neighbours are alike
            level = 0.8 * level + rng.gauss(0, 0.05)
            delays.append((i * 0.05, 0.3 + level))
        slope, certain = growth(delays)
        alarms += certain and slope > 0
    assert alarms <= 20
    assert growth(delays[:5]) == (0.0, False)
