"""The `load:` section of a workload: how much is asked and when, in stages.

Also the face that arrivals.py and the users see: stages with a profile over time. See spec.py for
how mistakes are collected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tokenswarm import lengths, shapes, spec, steady
from tokenswarm.arrivals import ARRIVALS
from tokenswarm.lengths import Distribution
from tokenswarm.shapes import Shape, Steady
from tokenswarm.spec import Count, Duration, Flag, ListOf, Pause, Positive, Problem, Section, Text

_STEADY_NEEDS = "the stage must end by duration and have a level that stays the same"
_STAGE_NAME = re.compile(r"\w[\w.-]{0,59}")


def _think_time(value: Any) -> Distribution | None:
    if value is None or isinstance(value, Section):
        return value  # type: ignore[return-value]  # our own distributions are Sections
    return lengths.parse(_in_seconds(value), floor=0, whole=False)


def _in_seconds(value: Any) -> Any:
    """The same words with every duration in them as a number of seconds, weights excepted."""
    if isinstance(value, Mapping):
        return {k: v if k == "weights" else _in_seconds(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_in_seconds(item) for item in value]
    return spec.parse_duration(value) if isinstance(value, str) else value


def _stage_name(value: Any) -> str:
    if not isinstance(value, str) or not _STAGE_NAME.fullmatch(value):
        raise ValueError(
            f"must be letters, digits, '.', '_' or '-' (at most 60), got {spec.show(value)}"
        )
    return value


class Stage(Section):
    """A part of the run with its own load; it ends by time or by a number of requests."""

    name: Annotated[str, PlainValidator(_stage_name)]
    warmup: Flag = False
    duration: Duration | None = None
    requests: Count | None = None
    users: Count | None = None
    rate_per_s: Positive | None = None
    shape: Annotated[Any, PlainSerializer(lambda s: None if s is None else shapes.written(s))] = (
        None
    )

    @field_validator("shape", mode="plain")
    @classmethod
    def _shape(cls, value: Any, info: ValidationInfo) -> Shape | None:
        if value is None or isinstance(value, Section):
            return value  # type: ignore[return-value]  # our own shapes are Sections
        data = info.data
        level = data.get("users") or data.get("rate_per_s")
        return shapes.parse(value, seconds=data.get("duration"), level=level)

    @cached_property
    def profile(self) -> Shape | None:
        """Users or arrivals per second over time; None: a trace as it was recorded."""
        if self.shape is not None:
            shape: Shape = self.shape
            return shape
        level = self.users if self.users is not None else self.rate_per_s
        return None if level is None else Steady(level=level)

    def users_at(self, t: float) -> int:
        """Closed loop: how many users there are t seconds after the stage's start."""
        profile = self.profile
        return 0 if profile is None else math.floor(profile.rate(t) + 0.5)

    @cached_property
    def most_users(self) -> int:
        """Closed loop: the largest number of users in the stage."""
        profile, end = self.profile, self.duration or shapes.FOREVER_S
        return 0 if profile is None else math.floor(profile.highest(end) + 0.5)

    def rate_at(self, t: float) -> float:
        """Open loop: planned arrivals per second t seconds after the stage's start."""
        profile = self.profile
        return 0.0 if profile is None else profile.rate(t)


class Load(Section):
    """How much is asked, and when."""

    mode: Annotated[Literal["closed", "open"], spec.one_of("mode", "closed", "open")] = "closed"
    arrivals: Annotated[str | None, PlainValidator(lambda value: _process(value))] = None
    burstiness: Positive = 1.0
    speed: Positive = 1.0
    trace: Text | None = None
    users: Count | None = None
    rate_per_s: Positive | None = None
    duration: Duration | None = None
    requests: Count | None = None
    stages: Annotated[tuple[Stage, ...], ListOf] | None = None
    think_time: Annotated[
        Any,
        PlainValidator(_think_time),
        PlainSerializer(lambda d: None if d is None else d.spec()),
    ] = None
    max_in_flight: Count | None = None
    drain: Pause = 60.0
    steady_state: Flag = False
    sticky_connection: Flag = False

    @classmethod
    def complete(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Name the process and the stages, and give a closed loop its one user."""
        if raw.get("mode") == "open" and raw.get("arrivals") is None:
            raw["arrivals"] = "poisson"
        stages = raw.get("stages")
        if isinstance(stages, list | tuple):
            raw["stages"] = _named(stages)
        elif stages is None and not _is_open(raw) and raw.get("users") is None:
            raw["users"] = 1
        return raw

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Find loads that no run could have."""
        is_open = _is_open(raw)
        if raw.get("mode", "closed") in ("open", "closed"):  # an unknown one is mistake enough
            yield from _mode_problems(raw, is_open)
        stages = raw.get("stages")
        if stages is None:
            yield from _stage_problems(raw, is_open, raw)
            if raw.get("steady_state") is True and "duration" not in raw:
                yield ("steady_state",), _STEADY_NEEDS
            return
        for name in _given(raw, "users", "rate_per_s", "duration", "requests"):
            yield (name,), "cannot stand beside stages: each stage says its own"
        if not isinstance(stages, list | tuple):
            return
        if not stages:
            yield ("stages",), "must have at least one stage"
        for position, stage in enumerate(stages):
            if isinstance(stage, Mapping):
                given = {k: v for k, v in stage.items() if v is not None}
                for place, text in _stage_problems(given, is_open, raw):
                    yield ("stages", position, *place), text
        yield from _stage_list_problems(stages, raw.get("arrivals") == "trace")
        if raw.get("steady_state") is True:
            yield from _steady_problems(stages)

    def resolved_stages(self) -> tuple[Stage, ...]:
        """The stages of the run; a load without `stages:` is one stage named main.

        With steady_state the first measured one is cut into slices, see steady.py.
        """
        stages = self.stages
        if stages is None:
            stages = (
                Stage(
                    name="main",
                    duration=self.duration,
                    requests=self.requests,
                    users=self.users,
                    rate_per_s=self.rate_per_s,
                ),
            )
        return _sliced(stages) if self.steady_state else stages

    @property
    def steady_stage(self) -> str | None:
        """Name of the stage whose steady state is looked for; None without steady_state."""
        if not self.steady_state:
            return None
        return next((s.name for s in self.stages or () if not s.warmup), "main")

    def think_s(self, seed: int, index: int) -> float:
        """Closed loop: the pause of a user before request `index`, in seconds."""
        return 0.0 if self.think_time is None else lengths.draw(self.think_time, seed, index, 3)


def _sliced(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The first measured stage as slices of whole hundredths of a second; the last has the rest."""
    first = next((i for i, stage in enumerate(stages) if not stage.warmup), None)
    if first is None:
        return stages
    stage = stages[first]
    hundredths = round((stage.duration or 0.0) * 100)
    size = hundredths // steady.SLICES
    sizes = [size] * (steady.SLICES - 1) + [hundredths - size * (steady.SLICES - 1)]
    slices = (
        stage.model_copy(
            update={"name": steady.slice_name(stage.name, k), "duration": hundredths_ / 100}
        )
        for k, hundredths_ in enumerate(sizes, 1)
    )
    return (*stages[:first], *slices, *stages[first + 1 :])


def _steady_problems(stages: Any) -> Iterator[Problem]:
    """The first measured stage must be one that can settle."""
    for position, stage in enumerate(stages):
        if isinstance(stage, Mapping) and stage.get("warmup") is not True:
            given = _given(stage, "duration", "shape")
            if given != ["duration"]:
                yield ("stages", position), f"with load.steady_state: {_STEADY_NEEDS}"
            return


def measured_names(load: Any) -> list[str]:
    """Names of the measured stages of a load that is not checked yet."""
    if not isinstance(load, Mapping):
        return ["main"]
    stages = load.get("stages")
    sliced = load.get("steady_state") is True  # its slices cannot be named beforehand
    if not isinstance(stages, list | tuple):
        return [] if sliced else ["main"]
    sections = [stage for stage in _named(stages) if isinstance(stage, Mapping)]
    names = [str(s["name"]) for s in sections if s.get("warmup") is not True]
    return names[1:] if sliced else names


def _is_open(raw: Mapping[str, Any]) -> bool:
    """Which loop is meant; where the mode is no word we know, by what else is said."""
    mode = raw.get("mode") or "closed"
    return mode == "open" or (mode != "closed" and raw.get("rate_per_s") is not None)


def _process(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in ARRIVALS:
        known = spec.expected(str(value), ARRIVALS)
        raise ValueError(f"unknown process {spec.show(value)}. {known}")
    return value


def _named(stages: Any) -> list[Any]:
    """The stages with names for those that have none: warmup, stage-1, stage-2, ..."""
    taken = {str(s.get("name")) for s in stages if isinstance(s, Mapping)}
    named: list[Any] = []
    measured = 0
    for stage in stages:
        if not isinstance(stage, Mapping):
            named.append(stage)
            continue
        warmup = stage.get("warmup") is True
        measured += not warmup
        if stage.get("name") is None:
            name = "warmup" if warmup else f"stage-{measured}"
            extra = 2
            while name in taken:
                name, extra = f"{name.rstrip('0123456789').rstrip('-')}-{extra}", extra + 1
            taken.add(name)
            stage = {**stage, "name": name}
        named.append(stage)
    return named


def _mode_problems(raw: Mapping[str, Any], is_open: bool) -> Iterator[Problem]:
    if is_open:
        if "think_time" in raw:
            yield ("think_time",), "belongs to closed loop: open-loop arrivals wait for nobody"
        if "users" in raw:
            yield ("users",), "belongs to closed loop: an open loop has rate_per_s"
    else:
        for name in _given(raw, "rate_per_s", "arrivals", "trace"):
            yield (name,), "belongs to open loop: add mode: open, or give users"
    process = raw.get("arrivals")
    if raw.get("burstiness", 1.0) != 1.0 and process != "gamma":
        yield ("burstiness",), "needs arrivals: gamma (1 is poisson, below 1 burstier)"
    if raw.get("speed", 1.0) != 1.0 and process != "trace":
        yield ("speed",), "needs arrivals: trace"
    if process == "trace" and is_open and "trace" not in raw:
        yield ("trace",), "is required with arrivals: trace: the file with the times"
    if process != "trace" and is_open and "trace" in raw:
        yield ("trace",), "needs arrivals: trace"


def _stage_problems(
    stage: Mapping[str, Any], is_open: bool, load: Mapping[str, Any]
) -> Iterator[Problem]:
    """What is wrong between the keys of one stage, or of a load without stages."""
    flat = stage is load
    what = "a load without stages" if flat else "a stage"
    ends = _given(stage, "duration", "requests")
    if len(ends) == 2:
        yield ("requests",), f"cannot stand beside duration: {what} ends by one of them"
    if not ends and load.get("arrivals") != "trace":
        yield (), f"{what} needs an end: duration: 60s or requests: 1000"
    level, other = ("rate_per_s", "users") if is_open else ("users", "rate_per_s")
    if not flat and other in stage:
        loop = "an open loop has rate_per_s" if is_open else "a closed loop has users"
        yield (other,), f"does not fit load.mode: {loop}"
    if level not in stage and "shape" not in stage and load.get("arrivals") != "trace":
        hint = "the arrivals per second" if is_open else "the number of users"
        yield (level,), f"is required: {hint}"
    if load.get("arrivals") == "trace" and load.get("speed", 1.0) != 1.0 and level in stage:
        yield (level,), "cannot stand beside load.speed: one of them says how fast the trace goes"
    yield from _shape_problems(stage, level)


def _shape_problems(stage: Mapping[str, Any], level: str) -> Iterator[Problem]:
    shape = stage.get("shape")
    if isinstance(shape, Mapping) and len(shape) == 1 and level in stage:
        ((name, keys),) = shape.items()
        own = shapes.LEVEL_KEYS.get(name)
        own_level = keys.get(own) if own and isinstance(keys, Mapping) else None
        if name in shapes.SHAPES and (own is None or own_level not in (None, stage[level])):
            yield (level,), f"cannot stand beside shape.{name}, which says the levels"
    if "requests" not in stage or shape is None:
        return
    try:
        parsed = shapes.parse(shape, level=stage.get(level))
    except (ValueError, ValidationError):
        return  # reported where the stage's keys are checked
    reached = parsed.cumulative(shapes.FOREVER_S)
    if level == "rate_per_s" and spec.is_number(stage["requests"]) and reached < stage["requests"]:
        yield ("requests",), f"is never reached: the shape gives {reached:.0f} arrivals in all"


def _stage_list_problems(stages: Any, is_trace: bool) -> Iterator[Problem]:
    sections = [stage for stage in stages if isinstance(stage, Mapping)]
    if sections and all(stage.get("warmup") is True for stage in sections):
        yield ("stages",), "are all warm-up: nothing would be measured"
    seen: set[str] = set()
    for position, stage in enumerate(sections):
        name = str(stage.get("name"))
        if name in seen:
            yield ("stages", position, "name"), f"'{name}' is the name of another stage"
        seen.add(name)
    for position, stage in enumerate(sections[:-1]):
        if is_trace and not _given(stage, "duration", "requests"):
            yield ("stages", position), "needs an end: only the last stage may end with the trace"


def _given(raw: Mapping[str, Any], *names: str) -> list[str]:
    return [name for name in names if raw.get(name) is not None]
