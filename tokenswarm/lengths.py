"""How long prompts, answers and pauses are: numbers, distributions, weighted choices, pairs.

A distribution is one function, `quantile(u)` with u in [0, 1): the inverse of its cumulative
distribution. A draw is the quantile of a number hashed from (seed, index, purpose), so request i
has the same lengths whatever was drawn before it and however many workers there are. Nothing
here knows about tokens or requests.

Two subtle rules. Limits cut the distribution off (it is drawn again inside them, so to speak)
instead of piling values up at the limits, as clamping would. Whole lengths are drawn from a
range that is `half` a token wider at both ends and then rounded, so that the smallest and the
largest are as likely as they should be.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationError

from tokenswarm import spec
from tokenswarm.spec import Positive, Problem, Real, Section

Drawn = float | tuple[int, int]

_STANDARD = NormalDist()
_MASK = (1 << 64) - 1
_LARGEST_U = 1.0 - 2.0**-53
_FORMS = (
    "Forms: 1000, {uniform: [a, b]}, {normal: {mean, stddev, min, max}}, {lognormal: {...}}, "
    "{exponential: {mean}}, {choices: [...], weights: [...]}."
)


def uniform01(seed: int, index: int, purpose: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments.

    SplitMix64's finaliser (Steele, Lea, Flood 2014) applied to each argument in turn; 52 bits,
    centred in their cell so that neither 0 nor 1 ever comes out.
    """
    state = 0
    for part in (seed, purpose, index):
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return ((state >> 12) + 0.5) * 2.0**-52


class Fixed(Section):
    """Always the same; written as a plain number."""

    value: Real

    def quantile(self, u: float, half: float = 0.0) -> Drawn:
        """The value itself."""
        return self.value

    def spec(self) -> Any:
        """As it is written in a file."""
        return _plain(self.value)


class Uniform(Section):
    """`uniform: [a, b]`: every whole length from a to b as often; pauses: any time between."""

    min: Real
    max: Real

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse a range the wrong way round."""
        return _order(raw)

    def quantile(self, u: float, half: float = 0.0) -> Drawn:
        """a + u (b - a), widened by half a token at both ends where lengths are whole."""
        return self.min - half + u * (self.max - self.min + 2 * half)

    def spec(self) -> Any:
        """As it is written in a file."""
        return {"uniform": [_plain(self.min), _plain(self.max)]}


class Normal(Section):
    """`normal: {mean, stddev, min, max}`: the bell curve, cut off at the limits."""

    mean: Real
    stddev: Positive
    min: Real
    max: Real | None = None

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse limits the wrong way round."""
        return _order(raw)

    def quantile(self, u: float, half: float = 0.0) -> Drawn:
        """mean + stddev z(u'), u' = u squeezed between the shares below min and max."""
        return self.mean + self.stddev * _cut_off(u, *self._limits(half))

    def _limits(self, half: float) -> tuple[float, float]:
        low = (self.min - half - self.mean) / self.stddev
        high = math.inf if self.max is None else (self.max + half - self.mean) / self.stddev
        return low, high

    def spec(self) -> Any:
        """As it is written in a file."""
        return {"normal": _keys(self)}


class Lognormal(Section):
    """`lognormal: {mean, stddev, min, max}`: mean and stddev of the lengths, not of their logs."""

    mean: Positive
    stddev: Positive
    min: Real
    max: Real | None = None

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse limits the wrong way round."""
        return _order(raw)

    def quantile(self, u: float, half: float = 0.0) -> Drawn:
        """exp(mu + sigma z(u')), sigma^2 = ln(1 + (stddev/mean)^2), mu = ln(mean) - sigma^2/2."""
        sigma = math.sqrt(math.log1p((self.stddev / self.mean) ** 2))
        mu = math.log(self.mean) - sigma * sigma / 2
        floor = self.min - half
        low = (math.log(floor) - mu) / sigma if floor > 0 else -math.inf
        high = math.inf if self.max is None else (math.log(self.max + half) - mu) / sigma
        return math.exp(mu + sigma * _cut_off(u, low, high))

    def spec(self) -> Any:
        """As it is written in a file."""
        return {"lognormal": _keys(self)}


class Exponential(Section):
    """`exponential: {mean}`: the pauses of a memoryless user; min and max cut it off."""

    mean: Positive
    min: Real
    max: Real | None = None

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse limits the wrong way round."""
        return _order(raw)

    def quantile(self, u: float, half: float = 0.0) -> Drawn:
        """-mean ln(1 - u'), u' = u squeezed between the shares below min and max."""
        low = -math.expm1(-max(self.min - half, 0.0) / self.mean)
        high = 1.0 if self.max is None else -math.expm1(-(self.max + half) / self.mean)
        return -self.mean * math.log1p(-min(low + u * (high - low), _LARGEST_U))

    def spec(self) -> Any:
        """As it is written in a file."""
        return {"exponential": _keys(self)}


class Choices(Section):
    """`choices: [...], weights: [...]`: one of a list; pairs are (input, output) lengths."""

    choices: Annotated[tuple[Drawn, ...], PlainValidator(lambda value: _choices(value))]
    weights: Annotated[tuple[float, ...] | None, PlainValidator(lambda value: _weights(value))] = (
        None
    )

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse weights that do not belong to the choices."""
        choices, weights = raw.get("choices"), raw.get("weights")
        if isinstance(choices, list | tuple) and isinstance(weights, list | tuple):
            if len(weights) != len(choices):
                yield (
                    ("weights",),
                    f"must be one a choice: {len(choices)} choices, {len(weights)} weights",
                )
            elif all(weight == 0 for weight in weights):
                yield ("weights",), "must not all be 0"

    def quantile(self, u: float, half: float = 0.0) -> Drawn:
        """The choice into whose part of the weights u falls."""
        weights = self.weights or (1.0,) * len(self.choices)
        edges = list(itertools.accumulate(weights))
        return self.choices[bisect.bisect_right(edges, u * edges[-1])]

    @property
    def pairs(self) -> bool:
        """True when the choices are (input, output) pairs."""
        return isinstance(self.choices[0], tuple)

    def spec(self) -> Any:
        """As it is written in a file."""
        choices = [list(c) if isinstance(c, tuple) else _plain(c) for c in self.choices]
        weights = None if self.weights is None else [_plain(w) for w in self.weights]
        return {"choices": choices, "weights": weights}


Distribution = Fixed | Uniform | Normal | Lognormal | Exponential | Choices

DISTRIBUTIONS: dict[str, type[Uniform | Normal | Lognormal | Exponential]] = {
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": Lognormal,
    "exponential": Exponential,
}


def parse(value: Any, *, floor: int, whole: bool = True) -> Distribution:
    """A distribution from its words in a file; nothing drawn from it is below `floor`.

    Raises ValueError, or the ValidationError that names the keys below `value`.
    """
    if isinstance(value, Mapping):
        distribution = _from_mapping(value, floor)
    elif spec.is_number(value):
        distribution = Fixed(value=value)
    else:
        raise ValueError(f"must be a number or a distribution, got {spec.show(value)}. {_FORMS}")
    for number in _written(distribution):
        if number < floor:
            raise ValueError(f"must be at least {floor}, got {_plain(number)}")
        if whole and number != math.floor(number):
            raise ValueError(f"must be a whole number, got {_plain(number)}")
    return distribution


def draw(distribution: Distribution, seed: int, index: int, purpose: int) -> float:
    """A time for request `index`."""
    drawn = distribution.quantile(uniform01(seed, index, purpose))
    return drawn[0] if isinstance(drawn, tuple) else drawn


def draw_whole(distribution: Distribution, seed: int, index: int, purpose: int) -> Drawn:
    """A whole length, or a pair of them, for request `index`."""
    if isinstance(distribution, Fixed):
        return _nearest(distribution, 0.5)  # the commonest, and nothing to draw
    return _nearest(distribution, uniform01(seed, index, purpose))


def largest(distribution: Distribution) -> Drawn:
    """The largest whole length that can ever be drawn; of pairs, the largest of each side."""
    if isinstance(distribution, Choices):
        pairs = [choice for choice in distribution.choices if isinstance(choice, tuple)]
        if pairs:
            return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        return max(choice for choice in distribution.choices if not isinstance(choice, tuple))
    return _nearest(distribution, _LARGEST_U)


def _nearest(distribution: Distribution, u: float) -> Drawn:
    drawn = distribution.quantile(u, 0.5)
    if isinstance(drawn, tuple):
        return drawn
    rounded = max(math.floor(drawn + 0.5), int(min(_written(distribution), default=0)))
    top = getattr(distribution, "max", None)
    return rounded if top is None else min(rounded, int(top))


def _from_mapping(value: Mapping[str, Any], floor: int) -> Distribution:
    if "choices" in value or "weights" in value:
        return Choices.model_validate(value)
    if len(value) != 1:
        raise ValueError(f"must be one distribution, got {len(value)} keys. {_FORMS}")
    ((name, limits),) = value.items()
    if name not in DISTRIBUTIONS:
        known = spec.expected(str(name), [*DISTRIBUTIONS, "choices"])
        raise spec.failure([((name,), f"unknown distribution {spec.show(name)}. {known}")])
    if name == "uniform" and isinstance(limits, list | tuple):
        if len(limits) != 2:
            raise spec.failure([((name,), f"must be [smallest, largest], got {len(limits)} items")])
        limits = {"min": limits[0], "max": limits[1]}
    if isinstance(limits, Mapping) and name != "uniform" and limits.get("min") is None:
        limits = {**limits, "min": floor}
    try:
        return DISTRIBUTIONS[name].model_validate(limits)
    except ValidationError as error:
        raise spec.below(name, error) from None


def _written(distribution: Distribution) -> list[float]:
    """The lengths that a user wrote: none of them may be below the floor, limits included."""
    if isinstance(distribution, Fixed):
        return [distribution.value]
    if isinstance(distribution, Choices):
        sides = (c if isinstance(c, tuple) else (c,) for c in distribution.choices)
        return [length for side in sides for length in side]
    return [distribution.min] if distribution.max is None else [distribution.min, distribution.max]


def _order(raw: Mapping[str, Any]) -> Iterator[Problem]:
    low, high = raw.get("min"), raw.get("max")
    if spec.is_number(low) and spec.is_number(high) and low > high:
        yield ("min",), f"must not be above max, got {_plain(low)} > {_plain(high)}"


def _cut_off(u: float, low: float, high: float) -> float:
    """The standard normal quantile of u within [low, high], both in standard deviations.

    In the upper tail the mirrored distribution is used: shares near 1 have no digits left.
    """
    if low > 0:
        return -_cut_off(1.0 - u, -high, -low)
    first, last = _STANDARD.cdf(low), _STANDARD.cdf(high)
    share = min(max(first + u * (last - first), 2.0**-1022), _LARGEST_U)
    return min(max(_STANDARD.inv_cdf(share), low), high)


def _choices(value: Any) -> tuple[Drawn, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"must be a list of lengths or of [input, output] pairs, got {_got(value)}"
        )
    problems: list[Problem] = []
    for position, item in enumerate(value):
        pair = isinstance(item, list | tuple)
        if pair and (len(item) != 2 or not all(spec.is_number(side) for side in item)):
            problems.append(((position,), "must be a pair [input tokens, output tokens]"))
        elif not pair and not spec.is_number(item):
            problems.append(((position,), f"must be a length or a pair, got {spec.show(item)}"))
        elif pair != isinstance(value[0], list | tuple):
            problems.append(((position,), "must be like the first: all lengths or all pairs"))
    if problems:
        raise spec.failure(problems)
    return tuple(tuple(item) if isinstance(item, list | tuple) else item for item in value)


def _weights(value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of numbers, got {spec.show(value)}")
    problems: list[Problem] = [
        ((position,), f"must be a number of at least 0, got {spec.show(item)}")
        for position, item in enumerate(value)
        if not spec.is_number(item) or item < 0
    ]
    if problems:
        raise spec.failure(problems)
    return tuple(float(item) for item in value)


def _got(value: Any) -> str:
    return "an empty list" if value == [] else spec.show(value)


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _keys(distribution: Normal | Lognormal | Exponential) -> dict[str, Any]:
    values = distribution.model_dump()
    return {k: None if v is None else _plain(v) for k, v in values.items()}
