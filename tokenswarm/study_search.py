"""`tokenswarm search`: the highest load at which a server meets the SLOs, and the knee.

search.py says where to probe; here each probe is a run (study_point.py) that is long enough for
the percentiles of its SLOs, and its summary is read as a verdict: passed or not, and whether the
bound lies outside of the figure's 95 % interval. It knows nothing of reports.

The one subtle rule: a load is met when the SLOs hold *and* the server keeps up with it; see
study_verdict.growth.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenswarm import search as algorithm
from tokenswarm import workload
from tokenswarm.records import BadInput
from tokenswarm.search import Bounds, Probe
from tokenswarm.study import SCHEMA, STUDY, TABLE, interruptible, table, words
from tokenswarm.study_model import level_keys, stages_of
from tokenswarm.study_point import Point, Result, run, write
from tokenswarm.study_server import Unfit
from tokenswarm.study_verdict import delays, growth, judged, needed

VARY = {"users": "closed", "rate_per_s": "open"}
FOUND, NONE_PASSES, NO_ANSWER, INTERRUPTED = 0, 1, 3, 130
PROBES = "probes"
MOST_PROBES = 30
_FULL, _SHORT = 10, 2  # values beyond the percentile: a firm one, and one good enough to look
_ROUNDS = 5  # requests of each user, where a probe ends by a number of requests
_OVERLOAD = frozenset({"cut_short", "arrivals_dropped"})  # what a server that is too slow causes
_OURS = frozenset({"generator_saturated", "reads_coalesced", "rate_not_reached"})
_LONGER = 1.3


@dataclass(slots=True)
class Options:
    """What the command line asks for."""

    file: str
    vary: str
    host: str
    sets: Sequence[str] = ()
    slos: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    start: float | None = None
    precision: float = 0.03
    most_probes: int = MOST_PROBES
    workers: int = 1
    out: str | None = None
    warm_start: str | None = None
    drained_within_s: float = 300.0
    gpu: str | None = None


@dataclass(slots=True)
class Outcome:
    """What a search found. why: in words, when there is no answer or a limit of our own."""

    folder: Path
    code: int
    capacity: float | None = None
    fails: float | None = None
    knee: float | None = None
    why: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)


class _Stop(Exception):  # noqa: N818 - ends a search, with the reason
    """No answer can be had."""


def search(options: Options, say: Callable[[str], None]) -> Outcome:
    """Search. Raises BadInput before anything is run."""
    return _Search(options, say).run()


class _Search:
    """One search: its probes so far, and how long the next must be."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self.options, self.say = options, say
        self.sets = [*options.sets, *(_slo_setting(text) for text in options.slos)]
        base = workload.load(options.file, self.sets)
        _check(options, base)
        self.stages = stages_of(options.file)
        self.objectives = base.objectives()
        self.needs = needed(self.objectives, _FULL), needed(self.objectives, _SHORT)
        self.bounds = _bounds(options)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        default = Path("runs") / f"search-{stamp}-{base.name}"
        self.folder = Path(options.out) if options.out else default
        self.probes: list[Probe] = []
        self.results: list[tuple[Probe, Result, list[str]]] = []
        self.started = time.time()
        self.workload(self.bounds.start, full=False)  # every mistake before the first run
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> Outcome:
        """Probe until the answer is known."""
        outcome = Outcome(self.folder, NO_ANSWER)
        try:
            with interruptible():
                self._go()
        except _Stop as e:
            outcome.why = str(e)
        except KeyboardInterrupt:
            outcome.code = INTERRUPTED
            outcome.why = f"interrupted; the same command with --out {self.folder} goes on"
        known = algorithm.bracket(self.probes)
        outcome.capacity, outcome.fails = known.passes, known.fails
        found = algorithm.knee(self.probes)
        outcome.knee = found.level if found else None
        if not outcome.why:
            outcome.code = NONE_PASSES if known.passes is None else FOUND
        self._save(outcome)
        return outcome

    def _go(self) -> None:
        while True:
            level = algorithm.next_level(self.probes, self.bounds)
            if level is None:
                if algorithm.confirmed(self.probes):
                    return
                level = self._unconfirmed()
            if len(self.probes) >= self.options.most_probes:
                raise _Stop(f"no answer after {len(self.probes)} probes (--probes)")
            known = algorithm.bracket(self.probes)
            narrow = known.passes is not None and known.fails is not None
            again = any(p.level == level for p in self.probes)
            self._probe(level, full=narrow or again)
            self._save(None)

    def _unconfirmed(self) -> float:
        known = algorithm.bracket(self.probes)
        ends = [end for end in (known.passes, known.fails) if end is not None]
        return next(e for e in ends if not any(p.full for p in self.probes if p.level == e))

    def _probe(self, level: float, full: bool) -> None:
        """One verdict; a run that was too short for it, or spoilt, is done once more."""
        longer, spoilt = 1.0, False
        while True:
            count = sum(p.level == level for p in self.probes)
            point = Point(
                self.folder / PROBES, f"{self.options.vary}={level:g}",
                self.workload(level, full, longer), self.options.host, self.options.host,
                self.options.workers, count + 100 * spoilt, self.options.drained_within_s,
                self.options.gpu,
            )  # fmt: skip
            try:
                found = run(point, self.say)
            except Unfit as e:
                raise _Stop(f"the server is not fit for a probe: {e}") from None
            if found.state != "done":
                raise _Stop(f"a probe could not be run: {found.error}")
            codes = set(found.reasons)
            too_few = codes == {"insufficient_samples"} and found.slo_passed is None
            if too_few and longer == 1.0:
                longer = self._longer(found, full)
                self.say(f"{self.options.vary} {level:g}: too few requests, probing longer")
                continue
            foreign = codes - _OVERLOAD - {"insufficient_samples"}
            if foreign and not spoilt:
                spoilt = True
                self.say(f"{self.options.vary} {level:g}: {words(found)}; once more")
                continue
            break
        if too_few:
            raise _Stop(f"at {self.options.vary} {level:g} there are too few requests for the SLOs;"
                        f" make load.duration longer; see {found.folder}")  # fmt: skip
        if foreign:
            whose = "the generator's limit, not the server's" if foreign & _OURS else "not usable"
            raise _Stop(
                f"at {self.options.vary} {level:g} the run is invalid ({', '.join(sorted(codes))}):"
                f" {whose}; see {found.folder}"
            )
        probe, why = self._judged(level, found, full)
        self.probes.append(probe)
        self.results.append((probe, found, why))
        state = "met" if probe.passed else f"missed: {'; '.join(why)}"
        self.say(f"{self.options.vary} {level:g}: {state}{'' if probe.sure else ' (not sure)'}"
                 f" ({words(found)})")  # fmt: skip

    def _longer(self, found: Result, full: bool) -> float:
        """By how much a probe has to be longer for its percentiles."""
        wanted = self.needs[0 if full else 1]
        return max(2.0, _LONGER * wanted / max(1.0, found.figure("requests_ok") or 1.0))

    def _judged(self, level: float, found: Result, full: bool) -> tuple[Probe, list[str]]:
        why, sure = judged(found.summary)
        why += [f"{code}: the server was too slow" for code in found.reasons if code in _OVERLOAD]
        hint = self._hint_of_users(level, found) if self.options.vary == "users" else None
        if self.options.vary == "rate_per_s":
            slope, certain = growth(delays(found.folder / "requests.jsonl"))
            if slope > self.options.precision and certain:
                why.append(f"the server fell behind by {slope:.1%} of the rate")
                hint = level / (1 + slope)
                sure = True
        probe = Probe(
            level, not why, sure, full, hint if why else None,
            found.figure("output_tokens_per_s"), found.figure("e2e_p50_s"),
        )  # fmt: skip
        return probe, why

    def _hint_of_users(self, level: float, found: Result) -> float | None:
        """Little's law: as many users as requests are in service when none of them waits."""
        fewer = [r for p, r, _ in self.results if p.passed and p.level < level]
        rate = found.figure("requests_per_s")
        unloaded = min((s for r in fewer if (s := r.figure("e2e_mean_s"))), default=None)
        return rate * unloaded if rate and unloaded else None

    def workload(self, level: float, full: bool, longer: float = 1.0) -> Any:
        """The workload at a level, long enough for its percentiles."""
        value = int(level) if self.options.vary == "users" else level
        keys = level_keys(f"load.{self.options.vary}", self.stages)
        sets = [*self.sets, *(f"{key}={value}" for key in keys)]
        work = workload.load(self.options.file, sets)
        load = work.load
        measured = [s for s in load.resolved_stages() if not s.warmup]
        wanted = self.needs[0 if full else 1] * longer
        planned = sum(s.duration or 0.0 for s in measured)
        enough = wanted / rate if (rate := self._rate(level)) else planned * longer
        stretch = max(1.0, enough / planned) if planned else 1.0
        least = max(wanted, _ROUNDS * level) if self.options.vary == "users" else wanted

        def lengthened(part: Any) -> Any:
            if part.duration is not None:
                return part.model_copy(
                    update={"duration": float(math.ceil(part.duration * stretch))}
                )
            if part.requests is not None:
                return part.model_copy(update={"requests": max(part.requests, math.ceil(least))})
            return part

        if load.stages is not None:
            stages = tuple(s if s.warmup else lengthened(s) for s in load.stages)
            return work.model_copy(update={"load": load.model_copy(update={"stages": stages})})
        return work.model_copy(update={"load": lengthened(load)})

    def _rate(self, level: float) -> float | None:
        """Requests a second that a probe will have at least, as far as that is known."""
        if self.options.vary == "rate_per_s":
            return level
        seen = [r.figure("requests_per_s") for p, r, _ in self.results if p.level <= level]
        return max((rate for rate in seen if rate), default=None)

    def _save(self, outcome: Outcome | None) -> None:
        rows = [_row(self.options.vary, *one, self.folder) for one in self.results]
        about: dict[str, Any] = {
            "schema": SCHEMA, "kind": "search", "name": Path(self.options.file).stem,
            "file": self.options.file, "host": self.options.host, "vary": self.options.vary,
            "slo": {o.key: o.text for o in self.objectives}, "started": self.started,
            "updated": time.time(), "finished": outcome is not None,
        }  # fmt: skip
        if outcome is not None:
            outcome.rows = rows
            about |= {"capacity": outcome.capacity, "fails": outcome.fails, "why": outcome.why,
                      "knee": outcome.knee, "exit_code": outcome.code}  # fmt: skip
        write(self.folder / STUDY, json.dumps({**about, "points": rows}, indent=2) + "\n")
        write(self.folder / TABLE, table(rows))


def _slo_setting(text: str) -> str:
    """`p99(ttft)<2s` as a setting of the workload."""
    found = re.fullmatch(r"\s*([^<>=]+?)\s*([<>]=?.*)", text)
    if found is None:
        raise BadInput(f"--slo {text}: must be like 'p99(ttft)<2s'")
    return f'slo."{found[1]}"={json.dumps(found[2])}'


def _check(options: Options, base: Any) -> None:
    """What cannot be searched. Raises BadInput with all of it."""
    problems = []
    if base.load.mode != VARY[options.vary]:
        wanted = "a closed" if options.vary == "users" else "an open"
        problems.append(f"--vary {options.vary}: needs {wanted} loop, {options.file} is "
                        f"load.mode: {base.load.mode}")  # fmt: skip
    if any(s.shape is not None for s in base.load.resolved_stages() if not s.warmup):
        problems.append(f"--vary {options.vary}: {options.file} measures a stage with a shape")
    if not base.record.requests:
        problems.append("record.requests: a search needs the records of requests")
    for name in ("low", "high", "start"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            problems.append(f"--{name}: must be above 0, got {value:g}")
    if options.low and options.high and options.low > options.high:
        problems.append(f"--low {options.low:g}: is above --high {options.high:g}")
    if not 0 < options.precision < 1:
        problems.append(f"--precision: must be between 0 and 1, got {options.precision:g}")
    if problems:
        raise BadInput(*problems)


def _bounds(options: Options) -> Bounds:
    bounds = Bounds(
        start=options.start or options.low or 1.0, low=options.low, high=options.high,
        precision=options.precision, whole=options.vary == "users",
    )  # fmt: skip
    if options.warm_start is None:
        return bounds
    path = Path(options.warm_start) / STUDY
    try:
        known = json.loads(path.read_text("utf-8"))
        capacity, vary = known.get("capacity"), known.get("vary")
    except (OSError, ValueError, AttributeError):
        raise BadInput(f"--warm-start {options.warm_start}: holds no search") from None
    if vary != options.vary or not capacity:
        raise BadInput(f"--warm-start {options.warm_start}: found no {options.vary}")
    return replace(bounds, start=float(capacity), growth=1 + 2 * options.precision)


def _row(vary: str, probe: Probe, found: Result, why: list[str], root: Path) -> dict[str, Any]:
    """A probe as study.json has it."""
    return {
        "target": found.summary["run"]["name"],
        "settings": {},
        "hardware": None,
        "axes": {f"load.{vary}": probe.level},
        "repeat": 0,
        "state": found.state,
        "folder": str(found.folder.relative_to(root)),
        "exit_code": found.exit_code,
        "error": None,
        "valid": found.valid,
        "invalid_reasons": found.reasons,
        "slo_passed": found.slo_passed,
        "passed": probe.passed,
        "sure": probe.sure,
        "full": probe.full,
        "why": why,
        "hint": probe.hint,
        "figures": found.figures,
    }
