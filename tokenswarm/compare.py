"""Is the new run really different from the base run? Each figure with an interval and a verdict.

Values come from the summaries, so they are the same numbers as everywhere; the request logs say
only how sure they are. Changes are ratios (new / base - 1), for the error ratio a difference.
A figure is `really different` when its change is shown to be more than `smallest` (1 %) either
way, at the 5 % level for all figures of a pair of runs together (Holm). It is a `regression`
when it is also in the bad direction by more than its tolerance.

The one subtle rule: one run says nothing of how runs differ from one another. What is shown is
that these two runs differ by more than chance within them; a machine that was busier in one of
them is a difference too. Repeat runs when it matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenswarm.compare_sides import (
    Side,
    comparable,
    differing_keys,
    lacks_gaps,
    load,
    same_folder,
    tokenizers_differ,
)
from tokenswarm.records import BadInput

if TYPE_CHECKING:
    from tokenswarm.samples import Series

DIFFERENT = "really different"
NOT_SHOWN = "not shown"
TOO_FEW = "too few samples"
NO_INTERVAL = "no interval"
NOT_COMPARABLE = "not comparable"

# How an interval was found: moving blocks in time of these (for BY_REQUEST and PAIRED, the tokens
# of a request stay together), or a score interval.
IN_TIME = "blocks of requests"
PAIRED = "paired blocks of requests"
BY_REQUEST = "blocks of whole requests"
BY_SECOND = "blocks of seconds"
BY_COUNT = "counts, bursts included"
# What a run must have recorded so that there is an interval.
NO_LOG = "needs record.requests: true"
NO_GAPS = "needs record.itl: true"

SMALLEST = 0.01
TOLERANCES: dict[str, float] = {"*": 0.05, "error_ratio": 0.01}
LEVEL = 0.05

_FIGURES: dict[str, tuple[str, ...]] = {
    "ttft_s": ("mean", "p50", "p90", "p99"),
    "itl_s": ("mean", "p50", "p99"),
    "tpot_s": ("mean", "p50", "p90", "p99"),
    "e2e_s": ("mean", "p50", "p90", "p99"),
    "longest_gap_s": ("p99",),
}
_OPEN_LOOP = {"ttft_s": "ttft_due_s", "e2e_s": "e2e_due_s"}
_RATES = ("output_tokens_per_s", "requests_per_s")
_OF_TOKENS = ("itl_s", "tpot_s", "output_tokens_per_s")  # meaningless across tokenizers
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_LEAST = 20  # requests
_LEAST_BEYOND = 10  # values beyond a percentile
_LEAST_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both runs; change, low and high are shares (0.2 = 20 % more)."""

    metric: str
    figure: str
    base: float | None
    new: float | None
    change: float | None
    low: float | None
    high: float | None
    method: str
    verdict: str
    worse: bool
    regression: bool
    tolerance: float

    @property
    def key(self) -> str:
        """As in `slo:`: p99(ttft_s), error_ratio."""
        return f"{self.figure}({self.metric})" if self.figure else self.metric


@dataclass(frozen=True, slots=True)
class Pair:
    """A new run against the base; refused holds why there are no rows."""

    new: Side
    rows: tuple[Row, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def regressions(self) -> list[Row]:
        """Rows that are worse than they may be."""
        return [row for row in self.rows if row.regression]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All pairs; what reports and exit codes are made from."""

    base: Side
    pairs: tuple[Pair, ...]
    tolerances: Mapping[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """3: a run is invalid; 2: not the same test; 1: a regression; 0: none shown."""
        if any("invalid" in reason for pair in self.pairs for reason in pair.refused):
            return 3
        if any(pair.refused for pair in self.pairs):
            return 2
        return 1 if any(pair.regressions for pair in self.pairs) else 0


def compare(
    base_dir: Path,
    new_dirs: Sequence[Path],
    tolerances: Mapping[str, float] | None = None,
    force: bool = False,
) -> Comparison:
    """Compare runs by their folders.

    tolerances: metric or figure(metric) -> share, '*' for all others; see TOLERANCES. force
    compares what would be refused, with warnings. Raises BadInput for folders without a run, all
    of them at once.
    """
    allowed = {**TOLERANCES, **(tolerances or {})}
    base, *new = _load_all([base_dir, *new_dirs])
    pairs = [pair(base, side, allowed, force) for side in new]
    for k, found in enumerate(pairs):
        if any(same_folder(found.new, earlier.new) for earlier in pairs[:k]):
            text = f"{found.new.folder} is named twice: this is the same comparison once more"
            pairs[k] = replace(found, warnings=(text, *found.warnings))
    return Comparison(base, tuple(pairs), allowed)


def _load_all(folders: Sequence[Path]) -> list[Side]:
    sides: list[Side] = []
    problems: dict[str, None] = {}  # in order; a folder may be named twice
    for folder in folders:
        try:
            sides.append(load(folder))
        except BadInput as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise BadInput(*problems)
    return sides


def parse_tolerances(texts: Iterable[str]) -> dict[str, float]:
    """Tolerances from `ttft_s=5%`, `p99(ttft_s)=0.1`, `*=3%`. Raises BadInput with all mistakes."""
    found: dict[str, float] = {}
    problems = []
    for text in texts:
        key, sign, value = text.partition("=")
        try:
            share = float(value.strip().removesuffix("%"))
        except ValueError:
            share = math.nan
        if not sign or not key.strip() or not share >= 0:
            problems.append(f"--tolerance {text}: expected METRIC=SHARE such as ttft_s=5%")
            continue
        found[key.strip()] = share / 100 if value.strip().endswith("%") else share
    known = {m for metric in known_keys() for m in metric}
    problems += [
        f"--tolerance {key}: unknown metric. Expected one of: {', '.join(sorted(known))}"
        for key in found if key not in known
    ]  # fmt: skip
    if problems:
        raise BadInput(*problems)
    return found


def known_keys() -> list[tuple[str, ...]]:
    """Every metric with the keys of its figures."""
    metrics = {**_FIGURES, **{_OPEN_LOOP[m]: _FIGURES[m] for m in _OPEN_LOOP}}
    rows = [(m, *(f"{f}({m})" for f in figures)) for m, figures in metrics.items()]
    return [*rows, *((rate,) for rate in (*_RATES, "output_chars_per_s", "error_ratio", "*"))]


def pair(base: Side, new: Side, tolerances: Mapping[str, float], force: bool = False) -> Pair:
    """One new run against the base."""
    refused, warnings = comparable(base, new)
    if refused and not force:
        return Pair(new, (), tuple(warnings), tuple(refused))
    warnings = [*refused, *warnings, *_without_intervals(base, new)]
    return Pair(new, tuple(_judged(base, new, tolerances)), tuple(warnings))


def _without_intervals(base: Side, new: Side) -> list[str]:
    """Which figures have no interval since a run did not record what it takes, and the remedy."""
    sides = (base,) if same_folder(base, new) else (base, new)
    no_log = [s.name for s in sides if s.requests is None]
    if no_log:
        return [
            f"no intervals: {' and '.join(no_log)} recorded no requests (requests.jsonl); "
            "turn it on in the workload (record: {requests: true}) or with "
            "--set record.requests=true"
        ]
    no_gaps = [s.name for s in sides if lacks_gaps(s)]
    if no_gaps:
        return [
            f"no intervals for the percentiles of itl_s: {' and '.join(no_gaps)} did not record "
            "the gaps between tokens; turn it on in the workload (record: {itl: true}) or with "
            "--set record.itl=true"
        ]
    return []


@dataclass(frozen=True, slots=True)
class _Measured:
    """A row before it is judged: spread is the standard error of change, None without samples."""

    metric: str
    figure: str
    base: float | None
    new: float | None
    change: float | None
    spread: float | None
    blocks: int
    method: str
    enough: bool
    absolute: bool = False
    interval: tuple[float, float] | None = None


def _judged(base: Side, new: Side, tolerances: Mapping[str, float]) -> Iterable[Row]:
    from tokenswarm.resampling import holm

    rows = list(_measured(base, new))
    foreign = tokenizers_differ(base, new)
    usable = [r for r in rows if r.enough and r.spread is not None and r.change is not None
              and not (foreign and r.metric in _OF_TOKENS)]  # fmt: skip
    p_values = dict(zip(map(id, usable), holm([_p_value(r) for r in usable]), strict=True))
    for row in rows:
        if foreign and row.metric in _OF_TOKENS:
            verdict = NOT_COMPARABLE
        elif row.spread is None:
            verdict = NO_INTERVAL
        elif row.change is None or not row.enough:
            verdict = TOO_FEW
        else:
            verdict = DIFFERENT if p_values[id(row)] < LEVEL else NOT_SHOWN
        yield _row(row, verdict, tolerances)


def _row(row: _Measured, verdict: str, tolerances: Mapping[str, float]) -> Row:
    key = f"{row.figure}({row.metric})" if row.figure else row.metric
    tolerance = tolerances.get(key, tolerances.get(row.metric, tolerances["*"]))
    change = row.change
    better_up = row.metric.endswith("_per_s")
    worse = change is not None and (change < 0) == better_up and change != 0
    low, high = _interval(row) or (None, None)
    beyond = change is not None and abs(change) > tolerance
    return Row(
        row.metric, row.figure, row.base, row.new, change, low, high, row.method, verdict,
        worse, verdict == DIFFERENT and worse and beyond, tolerance,
    )  # fmt: skip


def _p_value(row: _Measured) -> float:
    """Two-sided, of the change being no larger than SMALLEST (a tenth of that for shares)."""
    from scipy.special import stdtr

    assert row.change is not None
    assert row.spread is not None
    if row.absolute:
        beyond = abs(row.change) - SMALLEST / 10
    else:
        beyond = abs(math.log1p(row.change)) - math.log1p(SMALLEST)
    if beyond <= 0:
        return 1.0
    return float(2 * stdtr(max(1, row.blocks - 1), -beyond / max(row.spread, 1e-12)))


def _interval(row: _Measured) -> tuple[float, float] | None:
    """95 % interval of the change, of this figure by itself."""
    from scipy.special import stdtrit

    if row.interval is not None or row.change is None or row.spread is None:
        return row.interval
    half = float(stdtrit(max(1, row.blocks - 1), 1 - LEVEL / 2)) * row.spread
    middle = math.log1p(row.change)
    return math.expm1(middle - half), math.expm1(min(middle + half, 50.0))


def _measured(base: Side, new: Side) -> Iterable[_Measured]:
    from tokenswarm import samples

    paired = _same_requests(base, new)
    open_loop = (base.summary.get("run") or {}).get("load") == "open"
    for plain, figures in _FIGURES.items():
        metric = _OPEN_LOOP.get(plain, plain) if open_loop else plain
        a, b = (samples.of_metric(s.requests, metric) for s in (base, new))
        if paired and a is not None and b is not None:
            a, b = samples.common(a, b)
        method = PAIRED if paired else BY_REQUEST if metric == "itl_s" else IN_TIME
        method = NO_LOG if a is None or b is None else method
        yield from _of_metric(base, new, metric, figures, a, b, paired, method)
    rates = (*_RATES, "output_chars_per_s") if tokenizers_differ(base, new) else _RATES
    for rate in rates:
        yield _of_rate(base, new, rate)
    yield _of_errors(base, new)


def _same_requests(base: Side, new: Side) -> bool:
    """Whether request k is the same in both runs, so that it can be compared with itself."""
    if not base.workload or not new.workload or differing_keys(base, new, "prompts"):
        return False
    if base.requests is None or new.requests is None or tokenizers_differ(base, new):
        return False
    from tokenswarm.samples import overlap

    return overlap(base.requests, new.requests) >= 0.9


def _of_metric(
    base: Side, new: Side, metric: str, figures: Sequence[str], a: Series | None,
    b: Series | None, paired: bool, method: str,
) -> Iterable[_Measured]:  # fmt: skip
    from tokenswarm import samples

    spreads: dict[str, float] = {}
    blocks = 0
    if a is not None and b is not None and min(len(a), len(b)) >= _LEAST:
        shares = {f: _SHARES[f] for f in figures if f != "mean"}
        spreads, blocks = samples.spread_of_ratio(a, b, shares, paired)
    for figure in figures:
        old_, new_ = (((s.summary.get("metrics") or {}).get(metric) or {}) for s in (base, new))
        count = min(old_.get("count") or 0, new_.get("count") or 0)
        values = old_.get(figure), new_.get(figure)
        beyond = count * (1 - _SHARES.get(figure, 0.0))
        enough = count >= _LEAST and beyond >= _LEAST_BEYOND and blocks >= _LEAST_BLOCKS
        spread = spreads.get(figure)
        no_gaps = metric == "itl_s" and figure != "mean" and (lacks_gaps(base) or lacks_gaps(new))
        how = NO_GAPS if no_gaps else method
        if spread is None and 0 < count < _LEAST and how not in (NO_LOG, NO_GAPS):
            spread = math.inf  # there are samples, but too few to say anything
        yield _Measured(metric, figure, *values, _ratio(*values), spread, blocks, how, enough)


def _of_rate(base: Side, new: Side, rate: str) -> _Measured:
    from tokenswarm import samples

    old_, new_ = ((s.summary.get("throughput") or {}).get(rate) for s in (base, new))
    a, b = (samples.of_rate(s.requests, s.summary.get("window") or {}, rate) for s in (base, new))
    spread, blocks = None, 0
    if a is not None and b is not None:
        spreads, blocks = samples.spread_of_ratio(a, b, {}, paired=False, fixed=True)
        spread = spreads.get("mean")
    enough = blocks >= _LEAST_BLOCKS
    method = NO_LOG if base.requests is None or new.requests is None else BY_SECOND
    return _Measured(rate, "", old_, new_, _ratio(old_, new_), spread, blocks, method, enough)


def _of_errors(base: Side, new: Side) -> _Measured:
    from tokenswarm import samples

    old_, new_ = ((s.summary.get("slo") or {}).get("error_ratio") for s in (base, new))
    a, b = (samples.of_failures(s.requests) for s in (base, new))
    if old_ is None and a is not None and len(a):
        old_ = float(a.sums.mean())
    if new_ is None and b is not None and len(b):
        new_ = float(b.sums.mean())
    if old_ is None or new_ is None or a is None or b is None or not len(a) or not len(b):
        method = NO_LOG if a is None or b is None else BY_COUNT
        return _Measured("error_ratio", "", old_, new_, None, None, 0, method, False, True)
    low, high = samples.difference_of_shares(a, b)
    change = new_ - old_
    towards_zero = change - low if change > 0 else high - change
    enough = min(len(a), len(b)) >= _LEAST
    return _Measured("error_ratio", "", old_, new_, change, towards_zero / 1.96, 1000, BY_COUNT,
                     enough, True, (low, high))  # fmt: skip


def _ratio(old_: float | None, new_: float | None) -> float | None:
    if old_ is None or new_ is None or old_ <= 0 or new_ <= 0:
        return None
    return new_ / old_ - 1
