"""The language of `slo:` and its verdict: "p99(ttft)": "<2s", error_ratio: "<1%", ttft: "<2s".

    slo       ::=  key ":" condition
    key       ::=  [ stage ":" ] ( function "(" metric ")" | metric | figure )
    function  ::=  "p1" | "p10" | "p50" | "p90" | "p95" | "p99" | "p99.9" | "mean" | "min" | "max"
    metric    ::=  "ttft" | "tpot" | "itl" | "e2e" | ...      what every request has (METRICS)
    figure    ::=  "error_ratio" | "goodput" | ...            what a run has (FIGURES)
    condition ::=  ( "<" | "<=" | ">" | ">=" ) number [ unit ]
    unit      ::=  "s" | "ms" | "us"                          times; a time needs its unit
                |  "%"                                        shares; a bare 0.01 is 1 %
                |  "/s"                                       rates and speeds, may be left out

With a function: one value over all measured requests. Without: every request by itself; a request
is good when it meets all of these, which gives `goodput` and `attainment`. "main: p99(ttft)"
speaks of the stage named main alone, without it of all measured stages together.

In open loop `ttft` and `e2e` count from when the request was due, in closed loop from when it was
sent; `ttft_due`, `ttft_sent` and so on name one of the two. Nothing said about `error_ratio`, it
must be under 1 %, and at least one request must be ok. This module knows nothing about records
and histograms: it compares plain values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tokenswarm import spec
from tokenswarm.records import BadInput

Mode = Literal["open", "closed"]

FUNCTIONS = ("p1", "p10", "p50", "p90", "p95", "p99", "p999", "mean", "min", "max")

METRICS: dict[str, tuple[str, str]] = {  # word: (key of measure.METRICS, kind of unit)
    "ttft": ("ttft_s", "time"),
    "ttft_sent": ("ttft_s", "time"),
    "ttft_due": ("ttft_due_s", "time"),
    "ttft_answer": ("ttft_answer_s", "time"),
    "itl": ("itl_s", "time"),
    "tpot": ("tpot_s", "time"),
    "e2e": ("e2e_s", "time"),
    "e2e_sent": ("e2e_s", "time"),
    "e2e_due": ("e2e_due_s", "time"),
    "send_delay": ("send_delay_s", "time"),
    "connect": ("connect_s", "time"),
    "longest_gap": ("longest_gap_s", "time"),
    "speed": ("tokens_per_s_per_user", "rate"),
    "tokens_per_s_per_user": ("tokens_per_s_per_user", "rate"),
    "tps_novita": ("tps_novita", "rate"),
    "output_tokens": ("output_tokens", "count"),
    "prompt_tokens": ("prompt_tokens", "count"),
}

FIGURES: dict[str, tuple[tuple[str, ...], str]] = {  # word: (path in the figures, kind of unit)
    "error_ratio": (("error_ratio",), "share"),
    "ok_requests": (("requests", "ok"), "count"),
    "requests_per_s": (("throughput", "requests_per_s"), "rate"),
    "output_tokens_per_s": (("throughput", "output_tokens_per_s"), "rate"),
    "total_tokens_per_s": (("throughput", "total_tokens_per_s"), "rate"),
    "output_tokens_per_s_per_gpu": (("throughput", "output_tokens_per_s_per_gpu"), "rate"),
    "goodput": (("slo", "goodput_per_s"), "rate"),
    "attainment": (("slo", "attainment"), "share"),
}

UNITS: dict[str, dict[str, float]] = {  # kind: {unit: how much of the SI unit it is}
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
    "share": {"": 1.0, "%": 0.01},
    "rate": {"": 1.0, "/s": 1.0},
    "count": {"": 1.0},
}

DEFAULTS = {"error_ratio": "<1%", "ok_requests": ">=1"}
"""What holds as long as the workload says nothing else about the same figure."""

_OPEN_LOOP_KEYS = {"ttft": "ttft_due_s", "e2e": "e2e_due_s"}
_KEY = re.compile(r"(?:(?P<stage>[^:()]+?)\s*:\s*)?(?:(?P<function>[^()\s]+)\s*\(\s*)?"
                  r"(?P<word>[^()\s:]+)\s*(?P<close>\))?")  # fmt: skip
_CONDITION = re.compile(r"(<=|>=|<|>)\s*(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*(\S*)")


@dataclass(frozen=True, slots=True)
class Objective:
    """One line of `slo:`; bound is in seconds, shares, per second or numbers.

    metric is a key of measure.METRICS, or a word of FIGURES when function is None and the
    objective is not per request.
    """

    key: str
    text: str
    function: str | None
    metric: str
    comparison: str
    bound: float
    per_request: bool
    stage: str | None = None
    kind: str = "time"


@dataclass(frozen=True, slots=True)
class Check:
    """What became of an objective; passed is None when there are too few values to tell."""

    key: str
    text: str
    actual: float | None
    passed: bool | None
    detail: str
    stage: str | None = None
    per_request: bool = False


def parse_slos(
    slo: Mapping[str, Any], mode: Mode, stages: Collection[str] | None = None
) -> list[Objective]:
    """The objectives of `slo:` and the defaults that it leaves standing.

    stages: names of the measured stages, None when they are not known. Raises BadInput with all
    mistakes.
    """
    objectives: list[Objective] = []
    problems: list[str] = []
    for key, condition in slo.items():
        try:
            objectives.append(parse_one(key, condition, mode, stages))
        except ValueError as error:
            problems.append(f"slo.{key}: {error}")
    problems += [f"slo.{key}: {text}" for key, text in without_base(slo, objectives)]
    if problems:
        raise BadInput(*problems)
    for word, condition in DEFAULTS.items():
        if not any(o.metric == word and o.stage is None for o in objectives):
            objectives.append(parse_one(word, condition, mode))
    return objectives


def parse_one(
    key: str, condition: object, mode: Mode, stages: Collection[str] | None = None
) -> Objective:
    """One objective; ValueError says what is wrong with it."""
    found = _KEY.fullmatch(key.strip())
    if not found or bool(found["function"]) != bool(found["close"]):
        raise ValueError("must be a metric such as ttft or a function of one such as p99(ttft)")
    stage, word = found["stage"], found["word"]
    if stage is not None and stages is not None and stage not in stages:
        raise ValueError(f"unknown measured stage '{stage}'. {spec.expected(stage, stages)}")
    function = _function(found["function"])
    metric, kind = _metric(word, function, mode)
    comparison, bound = _condition(word, condition, kind)
    return Objective(
        key=key,
        text=f"{key} {str(condition).strip()}",
        function=function,
        metric=metric,
        comparison=comparison,
        bound=bound,
        per_request=function is None and word not in FIGURES,
        stage=stage,
        kind=kind,
    )


def without_base(
    slo: Mapping[str, Any], objectives: Collection[Objective]
) -> list[tuple[str, str]]:
    """(key, mistake) of objectives on goodput where no request can be told good from bad."""
    if any(o.per_request for o in objectives):
        return []
    return [
        (o.key, "needs an SLO that holds for every request, such as ttft: '<2s'")
        for o in objectives
        if o.metric in ("goodput", "attainment") and o.key in slo
    ]


def met(objective: Objective, value: float | None) -> bool:
    """True when a value exists and meets the bound; no value meets none."""
    if value is None:
        return False
    match objective.comparison:
        case "<":
            return value < objective.bound
        case "<=":
            return value <= objective.bound
        case ">":
            return value > objective.bound
        case ">=":
            return value >= objective.bound
    raise ValueError(f"not a comparison: {objective.comparison!r}")


def evaluate(objectives: Collection[Objective], figures: Mapping[str, Any]) -> list[Check]:
    """A check for each objective over the run; those of single requests are in `attainment`.

    figures: `metrics`, `requests`, `error_ratio`, `throughput`, `slo` of the measured stages, and
    `stages`, a list of the same with their `name`.
    """
    return [_check(o, _scope(o, figures)) for o in objectives if not o.per_request]


def _scope(objective: Objective, figures: Mapping[str, Any]) -> Mapping[str, Any]:
    if objective.stage is None:
        return figures
    named = (s for s in figures.get("stages", ()) if s.get("name") == objective.stage)
    return next(named, {})


def _check(objective: Objective, figures: Mapping[str, Any]) -> Check:
    actual = _actual(objective, figures)
    passed = None if actual is None else met(objective, actual)
    if actual is None:
        detail = _why_unknown(objective, figures)
    else:
        detail = (
            f"{quantity(actual, objective.kind)}, wanted {objective.text[len(objective.key) + 1 :]}"
        )
    return Check(objective.key, objective.text, actual, passed, detail, objective.stage)


def _actual(objective: Objective, figures: Mapping[str, Any]) -> float | None:
    if objective.function is not None:
        value = figures.get("metrics", {}).get(objective.metric, {}).get(objective.function)
    else:
        value = figures
        for step in FIGURES[objective.metric][0]:
            value = value.get(step) if value is not None else None
    return None if value is None else float(value)


def _why_unknown(objective: Objective, figures: Mapping[str, Any]) -> str:
    if objective.function is None:
        return "was not measured"
    count = figures.get("metrics", {}).get(objective.metric, {}).get("count") or 0
    if objective.function.startswith("p"):
        return f"{count} values are too few for {objective.function}"
    return f"{count} values"


def quantity(value: float, kind: str) -> str:
    """A value for people, in the unit that gives it a readable size."""
    if kind == "share":
        return f"{value * 100:.4g} %"
    if kind == "rate":
        return f"{value:.4g}/s"
    if kind == "time":
        unit, scale = ("s", 1.0) if abs(value) >= 1 else ("ms", 1e3)
        return f"{value * scale:.4g} {unit}"
    return f"{value:.6g}"


def _function(name: str | None) -> str | None:
    if name is None:
        return None
    plain = name.lower().replace("p99.9", "p999")
    if plain not in FUNCTIONS:
        raise ValueError(f"unknown function '{name}'. {spec.expected(plain, FUNCTIONS)}")
    return plain


def _metric(word: str, function: str | None, mode: Mode) -> tuple[str, str]:
    """(metric, kind) of a word; ValueError when the word cannot stand where it does."""
    if word in FIGURES:
        if function is not None:
            raise ValueError(f"'{word}' is one figure of the run: write it without {function}()")
        if word == "goodput" and mode == "closed":
            raise ValueError(
                "a closed loop has no goodput, its load throttles itself: use attainment"
            )
        return word, FIGURES[word][1]
    known = METRICS.get(word) or next((row for row in METRICS.values() if row[0] == word), None)
    if known is None:
        words = list(METRICS) if function else [*METRICS, *FIGURES]
        raise ValueError(f"unknown metric '{word}'. {spec.expected(word, words)}")
    if known[0] == "itl_s" and function is None:
        raise ValueError(
            "a request has many of them: use longest_gap or tpot for every request, or "
            f"p99({word}) over the run"
        )
    metric = _OPEN_LOOP_KEYS.get(word, known[0]) if mode == "open" else known[0]
    return metric, known[1]


def _condition(word: str, condition: object, kind: str) -> tuple[str, float]:
    """(comparison, bound in SI units)."""
    example = {"time": "'<2s'", "share": "'<1%'", "rate": "'>100/s'", "count": "'>=100'"}[kind]
    text = condition.strip() if isinstance(condition, str) else ""
    found = _CONDITION.fullmatch(text)
    if not found:
        hint = " (quote what begins with '>')" if text == "" else ""
        raise ValueError(
            f"must be a comparison and a value such as {example}, got {spec.show(condition)}{hint}"
        )
    comparison, number, unit = found.groups()
    units = UNITS[kind]
    if unit not in units:
        if not unit:
            raise ValueError(f"{word} is a time: say its unit ({', '.join(units)}), got '{text}'")
        allowed = " or ".join(f"'{u}'" if u else "no unit" for u in units)
        raise ValueError(f"{word} has {allowed}, got '{text}'")
    bound = float(number) * units[unit]
    if kind == "share" and bound > 1:
        raise ValueError(f"{word} is a share from 0 to 1 (or 0% to 100%), got '{text}'")
    return comparison, bound
