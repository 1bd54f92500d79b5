from __future__ import annotations

from typing import Any

import pytest

from tokenswarm.measure import METRICS
from tokenswarm.records import BadInput
from tokenswarm.slo import FUNCTIONS, Check, Mode, Objective, evaluate, met, parse_one, parse_slos
from tokenswarm.slo import METRICS as WORDS


def distribution(**values: float | None) -> dict[str, Any]:
    return {"count": 500, **dict.fromkeys(FUNCTIONS), **values}


FIGURES: dict[str, Any] = {
    "metrics": {
        "ttft_s": distribution(p50=0.4, p99=1.9, mean=0.5),
        "ttft_due_s": distribution(p50=0.5, p99=2.5),
        "tpot_s": distribution(p90=0.05),
        "tokens_per_s_per_user": distribution(p10=22.0),
    },
    "requests": {"ok": 495, "due": 500},
    "error_ratio": 0.01,
    "throughput": {"requests_per_s": 16.5, "output_tokens_per_s": 2112.0},
    "slo": {"goodput_per_s": 15.0, "attainment": 0.97},
    "stages": [{"name": "peak", "metrics": {"ttft_s": distribution(p99=3.0)}, "error_ratio": 0.0}],
}


def checks(key: str, condition: str, mode: Mode = "closed", **more: str) -> list[Check]:
    return evaluate(parse_slos({key: condition, **more}, mode), FIGURES)


@pytest.mark.parametrize(
    ("key", "condition", "wanted"),
    [
        ("p99(ttft)", "<2s", ("p99", "ttft_s", "<", 2.0)),
        ("p99( ttft )", " < 2000 ms ", ("p99", "ttft_s", "<", 2.0)),
        ("p99.9(itl)", "<=150ms", ("p999", "itl_s", "<=", 0.15)),
        ("p999(e2e)", "<1e3s", ("p999", "e2e_s", "<", 1000.0)),
        ("mean(tpot)", "<500us", ("mean", "tpot_s", "<", 0.0005)),
        ("p10(speed)", ">20/s", ("p10", "tokens_per_s_per_user", ">", 20.0)),
        ("p10(tokens_per_s_per_user)", ">=20", ("p10", "tokens_per_s_per_user", ">=", 20.0)),
        ("max(longest_gap)", "<3s", ("max", "longest_gap_s", "<", 3.0)),
        ("p50(ttft_s)", "<1s", ("p50", "ttft_s", "<", 1.0)),
        ("error_ratio", "<1%", (None, "error_ratio", "<", 0.01)),
        ("error_ratio", "<=0.01", (None, "error_ratio", "<=", 0.01)),
        ("output_tokens_per_s", ">1000/s", (None, "output_tokens_per_s", ">", 1000.0)),
        ("requests_per_s", ">.5", (None, "requests_per_s", ">", 0.5)),
        ("ttft", "<2s", (None, "ttft_s", "<", 2.0)),
        ("ttft_due", "<2s", (None, "ttft_due_s", "<", 2.0)),
        ("output_tokens", ">=100", (None, "output_tokens", ">=", 100.0)),
    ],
)
def test_what_can_be_said(key: str, condition: str, wanted: tuple[Any, ...]) -> None:
    o = parse_one(key, condition, "closed")
    assert (o.function, o.metric, o.comparison, pytest.approx(o.bound)) == wanted
    assert o.per_request is (key in ("ttft", "ttft_due", "output_tokens"))
    assert o.stage is None


def test_open_loop_counts_from_due_unless_told_otherwise() -> None:
    words = ("ttft", "ttft_sent", "ttft_due", "e2e", "e2e_sent", "e2e_due", "tpot")
    metrics = [parse_one(f"p50({word})", "<1s", "open").metric for word in words]
    assert metrics == ["ttft_due_s", "ttft_s", "ttft_due_s", "e2e_due_s", "e2e_s", "e2e_due_s",
                       "tpot_s"]  # fmt: skip
    assert parse_one("ttft", "<1s", "open").metric == "ttft_due_s"


def test_every_metric_named_here_is_one_of_measure() -> None:
    assert {metric for metric, _ in WORDS.values()} == set(METRICS)


@pytest.mark.parametrize(
    ("key", "condition", "problem"),
    [
        ("p98(ttft)", "<2s", "unknown function 'p98'. Expected one of: max, mean, min, p1, p10, "
                             "p50, p90, p95, p99, p999. Did you mean 'p99'?"),
        ("ttfft", "<2s", "unknown metric 'ttfft'. Expected one of: attainment, connect, "),
        ("p99(error_ratio)", "<1%", "'error_ratio' is one figure of the run: write it without "
                                    "p99()"),
        ("p99(ttft", "<2s", "must be a metric such as ttft or a function of one such as "),
        ("p99 ttft", "<2s", "must be a metric such as ttft or a function of one such as "),
        ("", "<2s", "must be a metric such as ttft or a function of one such as "),
        ("p99(ttft)", "2s", "must be a comparison and a value such as '<2s', got '2s'"),
        ("p99(ttft)", "<2", "ttft is a time: say its unit (s, ms, us, µs), got '<2'"),
        ("p99(ttft)", "<2%", "ttft has 's' or 'ms' or 'us' or 'µs', got '<2%'"),
        ("p99(ttft)", "<-2s", "must be a comparison and a value such as '<2s', got '<-2s'"),
        ("p99(ttft)", "<2s and >1s", "must be a comparison and a value such as '<2s', got "),
        ("p99(ttft)", 2, "must be a comparison and a value such as '<2s', got 2"),
        ("error_ratio", "<5", "error_ratio is a share from 0 to 1 (or 0% to 100%), got '<5'"),
        ("error_ratio", "<1s", "error_ratio has no unit or '%', got '<1s'"),
        ("requests_per_s", "", "must be a comparison and a value such as '>100/s', got '' (quote "
                               "what begins with '>')"),
        ("itl", "<50ms", "a request has many of them: use longest_gap or tpot for every request, "
                         "or p99(itl) over the run"),
        ("goodput", ">5/s", "a closed loop has no goodput, its load throttles itself: use "
                            "attainment"),
        ("attainment", ">95%", "needs an SLO that holds for every request, such as ttft: '<2s'"),
        ("low: p50(ttft)", "<1s", "unknown measured stage 'low'. Expected one of: slow. Did you "
                                  "mean 'slow'?"),
    ],
)  # fmt: skip
def test_what_cannot(key: str, condition: Any, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_slos({key: condition}, "closed", ["slow"])
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"slo.{key}: {problem}")


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        parse_slos({"x": "<1s", "ttft": "1s", "p99(tpot)": "<1s"}, "open")
    assert [p.split(":")[0] for p in caught.value.problems] == ["slo.x", "slo.ttft"]


def test_defaults_stand_until_the_workload_says_otherwise() -> None:
    def texts(slo: dict[str, str]) -> list[str]:
        return [o.text for o in parse_slos(slo, "closed")]

    assert texts({}) == ["error_ratio <1%", "ok_requests >=1"]
    assert texts({"p50(ttft)": "<1s"}) == ["p50(ttft) <1s", "error_ratio <1%", "ok_requests >=1"]
    assert texts({"error_ratio": "<50%"}) == ["error_ratio <50%", "ok_requests >=1"]
    assert texts({"a: error_ratio": "<9%"})[1:] == ["error_ratio <1%", "ok_requests >=1"]


@pytest.mark.parametrize(
    ("key", "condition", "actual", "passed", "detail"),
    [
        ("p99(ttft)", "<2s", 1.9, True, "1.9 s, wanted <2s"),
        ("p99(ttft)", "<1.9s", 1.9, False, "1.9 s, wanted <1.9s"),
        ("p99(ttft)", "<=1.9s", 1.9, True, "1.9 s, wanted <=1.9s"),
        ("p90(tpot)", "<50ms", 0.05, False, "50 ms, wanted <50ms"),
        ("p10(speed)", ">20/s", 22.0, True, "22/s, wanted >20/s"),
        ("mean(ttft)", "<100ms", 0.5, False, "500 ms, wanted <100ms"),
        ("error_ratio", "<1%", 0.01, False, "1 %, wanted <1%"),
        ("ok_requests", ">=495", 495.0, True, "495, wanted >=495"),
        ("output_tokens_per_s", ">3000/s", 2112.0, False, "2112/s, wanted >3000/s"),
        ("p999(ttft)", "<9s", None, None, "500 values are too few for p999"),
        ("p50(itl)", "<9s", None, None, "0 values are too few for p50"),
        ("total_tokens_per_s", ">1/s", None, None, "was not measured"),
        ("peak: p99(ttft)", "<2s", 3.0, False, "3 s, wanted <2s"),
        ("peak: error_ratio", "<1%", 0.0, True, "0 %, wanted <1%"),
    ],
)
def test_a_check_says_what_was_found(
    key: str, condition: str, actual: float | None, passed: bool | None, detail: str
) -> None:
    check = checks(key, condition)[0]
    assert (check.actual, check.passed, check.detail) == (actual, passed, detail)
    assert check.key == key


def test_per_request_objectives_are_judged_through_attainment() -> None:
    found = checks("attainment", ">95%", ttft="<2s", tpot="<50ms")
    assert [(c.key, c.actual, c.passed) for c in found] == [
        ("attainment", 0.97, True),
        ("error_ratio", 0.01, False),
        ("ok_requests", 495.0, True),
    ]
    assert checks("goodput", ">15/s", "open", ttft="<2s")[0].passed is False


def test_open_loop_checks_read_the_due_figures() -> None:
    assert checks("p99(ttft)", "<2s", "open")[0].actual == 2.5
    assert checks("p99(ttft_sent)", "<2s", "open")[0].actual == 1.9


@pytest.mark.parametrize(
    ("comparison", "below", "at", "above"),
    [("<", True, False, False), ("<=", True, True, False), (">", False, False, True),
     (">=", False, True, True)],
)  # fmt: skip
def test_a_bound_is_met_or_not(comparison: str, below: bool, at: bool, above: bool) -> None:
    o = Objective("ttft", "", None, "ttft_s", comparison, 2.0, per_request=True)
    assert (met(o, 1.9), met(o, 2.0), met(o, 2.1)) == (below, at, above)
    assert met(o, None) is False
