"""The `prompts:` section of a workload: where the text comes from and how long everything is.

Lengths are drawn here, from (seed, index) alone; making text of that length is the business of
the prompt sources. See spec.py for how mistakes are collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator

from tokenswarm import lengths, spec
from tokenswarm.lengths import Choices, Distribution
from tokenswarm.prompts import PROMPTS
from tokenswarm.spec import Count, Flag, Natural, Problem, Prose, Section, Table, Text

FROM_DATASET = "from-dataset"


def _length(value: Any) -> Distribution | str | None:
    if value is None or isinstance(value, Section):
        return value  # type: ignore[return-value]  # our own distributions are Sections
    if isinstance(value, str):
        if value != FROM_DATASET:
            known = f"a number, a distribution or {FROM_DATASET}"
            raise ValueError(f"must be {known}, got {spec.show(value)}")
        return value
    return lengths.parse(value, floor=1)


def _written(value: Distribution | str | None) -> Any:
    return value if value is None or isinstance(value, str) else value.spec()


Length = Annotated[Distribution | str | None, PlainValidator(_length), PlainSerializer(_written)]


def _probe(value: Any) -> bool | str:
    if value == "warn":
        return "warn"
    if value in (True, False) and isinstance(value, bool):
        return value
    raise ValueError(f"must be true, false or warn, got {spec.show(value)}")


class Prompts(Section):
    """What is asked: where the text comes from and how long prompts and answers are."""

    source: Annotated[str, spec.one_of("prompt source", *PROMPTS)] = "sharegpt"
    path: Text | None = None
    input_tokens: Length = None
    output_tokens: Length = None
    exact_output: Flag = True
    shared_prefix_tokens: Natural = 0
    prefix_groups: Count = 1
    prefix_popularity: Annotated[
        Literal["uniform", "zipf"], spec.one_of("popularity", "uniform", "zipf")
    ] = "uniform"
    system_prompt: Prose | None = None
    as_token_ids: Flag = False
    probe: Annotated[bool | Literal["warn"], PlainValidator(_probe)] = True
    allow_truncated: Flag | None = None
    options: Table = Field(default_factory=dict)

    @classmethod
    def allowed(cls) -> list[str]:
        """`lengths` is another name of input_tokens, for pairs."""
        return [*super().allowed(), "lengths"]

    @classmethod
    def complete(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Read `lengths: {choices: [[1000, 100], ...]}` as input_tokens."""
        if raw.get("lengths") is not None and raw.get("input_tokens") is None:
            raw["input_tokens"] = raw["lengths"]
            del raw["lengths"]
        return raw

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Find missing lengths, pairs in the wrong place and prefixes longer than prompts."""
        source = raw.get("source", "sharegpt")
        if "lengths" in raw:
            yield ("lengths",), "cannot stand beside input_tokens: it is another name of it"
        if source in ("jsonl", "text") and not raw.get("path"):
            yield ("path",), f"is required: the file of the source {source}"
        if source == "trace" and not raw.get("path"):
            yield ("path",), "is required: the file of the trace (or say load.trace)"
        yield from _length_problems(source, raw)
        if raw.get("prefix_groups", 1) != 1 and not raw.get("shared_prefix_tokens"):
            yield ("prefix_groups",), "needs shared_prefix_tokens: there is no prefix to share"

    def draw(self, seed: int, index: int) -> tuple[int | None, int | None]:
        """(input tokens, output tokens) of request `index`; None where the data decides.

        A pure function of its arguments: not of what was drawn before, nor of the workers.
        """
        inputs = self._side(self.input_tokens, seed, index, 1)
        if isinstance(inputs, tuple):
            return inputs
        outputs = self._side(self.output_tokens, seed, index, 2)
        return inputs, outputs if isinstance(outputs, int) else None

    @staticmethod
    def _side(
        length: Distribution | str | None, seed: int, index: int, purpose: int
    ) -> int | tuple[int, int] | None:
        if length is None or isinstance(length, str):
            return None
        drawn = lengths.draw_whole(length, seed, index, purpose)
        return drawn if isinstance(drawn, tuple) else int(drawn)

    @property
    def pairs(self) -> bool:
        """True when input and output lengths are drawn together."""
        return isinstance(self.input_tokens, Choices) and self.input_tokens.pairs

    @property
    def max_input_tokens(self) -> int | None:
        """The longest prompt that can be drawn; None where the data decides."""
        return self._largest(self.input_tokens, 0)

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that can be asked for; None where the data decides."""
        return self._largest(self.input_tokens if self.pairs else self.output_tokens, 1)

    @staticmethod
    def _largest(length: Distribution | str | None, side: int) -> int | None:
        if length is None or isinstance(length, str):
            return None
        largest = lengths.largest(length)
        return largest[side] if isinstance(largest, tuple) else int(largest)


def _length_problems(source: Any, raw: Mapping[str, Any]) -> Iterator[Problem]:
    inputs, outputs = raw.get("input_tokens"), raw.get("output_tokens")
    pairs = _is_pairs(inputs)
    if source in ("sharegpt", "sharegpt-questions", "random", "text"):
        example = "a number such as 1000, or {uniform: [500, 1500]}"
        if inputs is None:
            yield ("input_tokens",), f"is required: {example}"
        if outputs is None and not pairs and raw.get("exact_output") is not False:
            yield (
                ("output_tokens",),
                f"is required: {example} (or exact_output: false, for as long as the model likes)",
            )
    if pairs and outputs is not None:
        yield ("output_tokens",), "cannot stand beside pairs: they say the output length too"
    if _is_pairs(outputs):
        yield ("output_tokens",), "pairs say both lengths: write them under input_tokens"
    for name in ("input_tokens", "output_tokens"):
        if raw.get(name) == FROM_DATASET and source in ("random", "text"):
            yield (name,), f"the source {source} has no lengths of its own"
    shared = raw.get("shared_prefix_tokens")
    if spec.is_number(shared) and spec.is_number(inputs) and shared >= inputs > 0:
        yield (
            ("shared_prefix_tokens",),
            f"must be smaller than input_tokens ({inputs}), got {shared}",
        )


def _is_pairs(value: Any) -> bool:
    choices = value.get("choices") if isinstance(value, Mapping) else None
    return isinstance(choices, list | tuple) and any(isinstance(c, list | tuple) for c in choices)
