"""The histogram against its slow and obvious twin, a sorted list."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tokenswarm.histogram import Histogram

VALUES = st.lists(
    st.one_of(st.integers(0, 3000), st.integers(0, 10**12), st.just(2**40)), max_size=200
)
BOUNDS = (10, 2_000, 5_000_000, 10**9)


def made(values: list[int]) -> Histogram:
    h = Histogram(BOUNDS)
    h.record_all(values)
    return h


def nearest_rank(values: list[int], permille: int) -> int:
    return sorted(values)[max(0, math.ceil(permille * len(values) / 1000) - 1)]


@given(VALUES.filter(bool), st.integers(0, 1000))
def test_quantiles_are_within_a_thousandth_of_the_sorted_list(
    values: list[int], permille: int
) -> None:
    true, got = nearest_rank(values, permille), made(values).quantile(permille / 1000)
    assert abs(got - true) <= true / 1024
    assert min(values) <= got <= max(values)
    if true < 2048:
        assert got == true


@given(VALUES)
def test_counts_sums_and_bounds_are_exact(values: list[int]) -> None:
    h = made(values)
    assert (h.n, h.sum) == (len(values), sum(values))
    for k, bound in enumerate(BOUNDS):
        assert sum(h.exact[: k + 1]) == sum(v <= bound for v in values)


@given(VALUES, VALUES, VALUES)
def test_merging_equals_recording_all_in_any_order(
    a: list[int], b: list[int], c: list[int]
) -> None:
    left = made(a)
    left.merge(made(b))
    left.merge(made(c))
    right = made(c)
    inner = made(b)
    inner.merge(made(a))
    right.merge(inner)
    assert left.to_wire() == right.to_wire() == made([*a, *b, *c]).to_wire()


@given(VALUES)
def test_the_wire_form_round_trips(values: list[int]) -> None:
    h = made(values)
    assert Histogram.from_wire(h.to_wire(), BOUNDS).to_wire() == h.to_wire()


@given(VALUES, VALUES)
def test_minus_undoes_merging(before: list[int], new: list[int]) -> None:
    later = made(before)
    later.merge(made(new))
    left = later.minus(made(before))
    assert (left.n, left.sum, left.counts, left.exact) == (
        len(new), sum(new), made(new).counts, made(new).exact,
    )  # fmt: skip


@given(st.lists(st.integers(0, 1 << 60), max_size=200), st.booleans())
def test_many_at_once_are_counted_as_one_by_one(values: list[int], bounded: bool) -> None:
    bounds = (5, 2048, 2049, 1 << 20, (1 << 30) + 7) if bounded else ()
    together, alone = Histogram(bounds), Histogram(bounds)
    together.record_all(values)
    for value in values:
        alone.record(value)
    assert together.to_wire() == alone.to_wire()
