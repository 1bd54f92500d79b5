"""What a study file says: targets x lengths x load x anything settable, and the points it means.

    load(path, simulated)    a Study, or BadInput with every mistake and its line
    plans(study)             its points in the order in which they are run

A point is a workload, resolved, with the target that serves it. Nothing here starts anything.

The one subtle rule: every point's workload is made, and with it checked, before the first one is
run, so that a grid does not stop in the middle of the night over a word that was wrong.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationError

from tokenswarm import spec, workload, yaml_source
from tokenswarm.records import BadInput
from tokenswarm.simulator import settings as engines
from tokenswarm.spec import Count, Duration, ListOf, NotNegative, Problem, Section, Table, Text
from tokenswarm.yaml_source import Source

MOST_POINTS = 10_000


def _axis(value: Any) -> tuple[Any, ...]:
    """The values of one axis; one value is an axis of one."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ValueError("must have at least one value")
    return values


def _axes(value: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of keys to lists of values, got {spec.show(value)}")
    problems: list[Problem] = []
    found = {}
    for key, values in value.items():
        try:
            found[str(key)] = _axis(values)
        except ValueError as error:
            problems.append(((key,), str(error)))
    if problems:
        raise spec.failure(problems)
    return found


def _pairs(value: Any) -> tuple[tuple[Any, Any], ...]:
    """[[1000, 100], ...]; what a length may be is the workload's to say."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"must be a list of [input, output] pairs, got {spec.show(value)}")
    problems: list[Problem] = [
        ((i,), f"must be a pair such as [1000, 100], got {spec.show(pair)}")
        for i, pair in enumerate(value)
        if not isinstance(pair, list | tuple) or len(pair) != 2
    ]
    if problems:
        raise spec.failure(problems)
    return tuple((a, b) for a, b in value)


def _engine(value: Any) -> dict[str, Any]:
    """`engine:` of a target: a name, or settings with an optional `engine:` to start from."""
    given = {"engine": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"must be a name or a mapping of keys, got {spec.show(value)}")
    sets = engine_sets(given)
    try:
        engines.load(str(given.get("engine", "default")), sets)
    except BadInput as error:
        plain = [
            _without(problem, [f"--set {text}: " for text in sets]) for problem in error.problems
        ]
        raise spec.failure([((), problem) for problem in plain]) from None
    return dict(given)


def _without(text: str, prefixes: Sequence[str]) -> str:
    return next((text.removeprefix(p) for p in prefixes if text.startswith(p)), text)


def engine_sets(given: Mapping[str, Any]) -> list[str]:
    """Settings of an embedded engine as its command takes them: key=value."""
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if key != "engine"]


class Target(Section):
    """One server under test: where, on what, at which price, how it is started and stopped.

    A value of `settings` that is a list makes one target for each of its values.
    """

    label: Text
    host: Text | None = None
    hardware: Table = Field(default_factory=dict)
    usd_per_hour: NotNegative | None = None
    settings: Annotated[dict[str, tuple[Any, ...]], PlainValidator(_axes)] = Field(
        default_factory=dict
    )
    set: Table = Field(default_factory=dict)
    start: Text | None = None
    stop: Text | None = None
    overlay: Text | None = None
    ready: Duration = 600.0
    engine: Annotated[dict[str, Any], PlainValidator(_engine)] = Field(default_factory=dict)

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse two ways of starting, two prices, and settings that nothing uses."""
        if "overlay" in raw and ("start" in raw or "stop" in raw):
            yield ("overlay",), "cannot stand beside start or stop: it says how both are done"
        hardware = raw.get("hardware")
        if "usd_per_hour" in raw and isinstance(hardware, Mapping) and "usd_per_hour" in hardware:
            yield ("usd_per_hour",), "is written twice: here and in hardware"
        settings = raw.get("settings")
        for key, values in settings.items() if isinstance(settings, Mapping) else ():
            commands = f"{raw.get('start', '')} {raw.get('stop', '')}"
            if isinstance(values, list) and len(values) > 1 and f"{{{key}}}" not in commands:
                yield ("settings", key), f"several values, but `start` does not use {{{key}}}"


class Study(Section):
    """A study file."""

    name: Text = "study"
    workload: Text
    targets: Annotated[tuple[Target, ...], ListOf]
    lengths: Annotated[tuple[tuple[Any, Any], ...] | None, PlainValidator(_pairs)] = None
    load: Annotated[dict[str, tuple[Any, ...]], PlainValidator(_axes)] = Field(default_factory=dict)
    vary: Annotated[dict[str, tuple[Any, ...]], PlainValidator(_axes)] = Field(default_factory=dict)
    set: Table = Field(default_factory=dict)
    workers: Count = 1
    repeats: Count = 1
    drained_within: Duration = 300.0

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Targets need different names."""
        targets = raw.get("targets")
        seen: set[str] = set()
        for i, target in enumerate(targets if isinstance(targets, list | tuple) else ()):
            label = str(target.get("label")) if isinstance(target, Mapping) else ""
            if label in seen:
                yield ("targets", i, "label"), f"'{label}' is the label of another target"
            seen.add(label)
        if isinstance(targets, list | tuple) and not targets:
            yield ("targets",), "must have at least one target"


@dataclass(frozen=True, slots=True)
class Plan:
    """One point to be run: the axes say what makes it different from the others."""

    target: Target
    settings: dict[str, Any]
    axes: dict[str, Any]
    workload: Any
    host: str | None
    repeat: int = 0

    @property
    def label(self) -> str:
        """The target's label, with the settings that make it one of several."""
        several = [k for k, values in self.target.settings.items() if len(values) > 1]
        return " ".join([self.target.label, *(f"{k}={self.settings[k]}" for k in several)])

    @property
    def name(self) -> str:
        """Words for people: label and axes."""
        return " ".join([self.label, *(f"{k}={written(v)}" for k, v in self.axes.items())])


@dataclass(slots=True)
class _Settings:
    """Settings of one point as `--set` texts, each with the place in the study that says it."""

    texts: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, value: Any, place: str) -> None:
        text = f"{key}={json.dumps(value, ensure_ascii=False)}"
        self.texts.append(text)
        self.places[text] = place


def load(path: str | Path, simulated: bool = False) -> tuple[Study, list[Plan]]:
    """A study and its points; BadInput has all mistakes, each with file:line."""
    source = yaml_source.parse(yaml_source.read(path, "study"), str(path), "study")
    if source.data.get("name") is None:
        source.data["name"] = Path(path).stem
    try:
        study = Study.model_validate(source.data)
    except ValidationError as error:
        raise _bad_input(source, spec.problems_of(error)) from None
    missing: list[Problem] = [
        (("targets", i), "needs a host: the base URL of the server (or run it with --simulated)")
        for i, target in enumerate(study.targets)
        if target.host is None and not simulated
    ]
    base = Path(study.workload)
    if not base.exists() and (Path(path).parent / base).exists():
        base = Path(path).parent / base
    if not base.exists():
        missing.append((("workload",), f"no such file: {spec.show(study.workload)}"))
    if missing:
        raise _bad_input(source, missing)
    return study, _plans(study, source, base)


def _bad_input(source: Source, problems: list[Problem]) -> BadInput:
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: source.line(problem[0]))
    return BadInput(*(source.problem(*problem) for problem in ordered))


def _plans(study: Study, source: Source, base: Path) -> list[Plan]:
    """Every point, its workload made; all mistakes of all points, each once."""
    plans: list[Plan] = []
    problems: dict[str, None] = {}
    stages = stages_of(base)
    for i, target in enumerate(study.targets):
        for chosen in _choices(target.settings):
            for axes in _grid(study):
                settings = _point_settings(study, source, i, axes, stages)
                try:
                    work = workload.load(base, settings.texts)
                except BadInput as error:
                    problems |= dict.fromkeys(_placed(p, settings) for p in error.problems)
                    continue
                host = filled(target.host, chosen) if target.host else None
                plans += [Plan(target, chosen, axes, work, host, r) for r in range(study.repeats)]
                if len(plans) > MOST_POINTS:
                    raise BadInput(f"{source.name}: means more than {MOST_POINTS} points")
    if problems:
        raise BadInput(*problems)
    return plans


def _choices(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _grid(study: Study) -> Iterator[dict[str, Any]]:
    lengths = {"lengths": study.lengths} if study.lengths else {}
    load_ = {f"load.{key}": values for key, values in study.load.items()}
    return _choices({**lengths, **load_, **study.vary})


def _point_settings(
    study: Study, source: Source, index: int, axes: Mapping[str, Any], stages: Sequence[str]
) -> _Settings:
    """All settings of a point in order: the study's, the target's, the axes'."""
    made = _Settings()
    target = study.targets[index]
    for key, value in study.set.items():
        made.add(key, value, source.problem(("set", key), "").rstrip(": "))
    if target.hardware or target.usd_per_hour is not None:
        place = source.problem(("targets", index, "hardware"), "").rstrip(": ")
        for key, value in target.hardware.items():
            made.add(f"hardware.{key}", value, place)
        if target.usd_per_hour is not None:
            made.add("hardware.usd_per_hour", target.usd_per_hour, place)
    for key, value in target.set.items():
        made.add(key, value, source.problem(("targets", index, "set", key), "").rstrip(": "))
    for key, value in axes.items():
        if key == "lengths":
            place = source.problem(("lengths",), "").rstrip(": ")
            made.add("prompts.input_tokens", value[0], place)
            made.add("prompts.output_tokens", value[1], place)
            continue
        path = ("load", key.removeprefix("load.")) if key not in study.vary else ("vary", key)
        place = source.problem(path, "").rstrip(": ")
        for each in level_keys(key, stages):
            made.add(each, value, place)
    return made


def stages_of(path: str | Path) -> list[str]:
    """Positions of a workload file's stages that get a level; none for a load without stages.

    A warm-up with a shape of its own keeps it.
    """
    data = yaml_source.parse(yaml_source.read(path), str(path)).data.get("load")
    stages = data.get("stages") if isinstance(data, dict) else None
    return [
        str(i)
        for i, stage in enumerate(stages if isinstance(stages, list) else ())
        if not (isinstance(stage, dict) and stage.get("warmup") is True and stage.get("shape"))
    ]


def level_keys(key: str, stages: Sequence[str]) -> list[str]:
    """Where a level of load is set: in a load with stages, in each of them, warm-up too."""
    if key in ("load.users", "load.rate_per_s") and stages:
        return [f"load.stages.{i}.{key.removeprefix('load.')}" for i in stages]
    return [key]


def _placed(problem: str, settings: _Settings) -> str:
    """A workload's complaint about a setting, said where the study says it."""
    for text, place in settings.places.items():
        if problem.startswith(f"--set {text}: "):
            return f"{place}: {problem.removeprefix(f'--set {text}: ')}"
    return problem


def filled(text: str, settings: Mapping[str, Any]) -> str:
    """A command with the target's settings filled in: {max_num_seqs} -> 256.

    Only known names in braces are replaced: `${HOME}` and JSON in a command stay as they are.
    """
    return re.sub(
        r"(?<!\$)\{(\w+)\}",
        lambda found: str(settings.get(found[1], found[0])),
        text,
    )


def written(value: Any) -> str:
    """An axis value in a word: [1000, 100] -> 1000x100."""
    if isinstance(value, list | tuple):
        return "x".join(written(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
