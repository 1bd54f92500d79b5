from __future__ import annotations

import json
import math

import pytest

from tokenswarm.histogram import EmptyHistogram, Histogram, bucket_of, bucket_range


def made(*values: int, bounds: tuple[int, ...] = ()) -> Histogram:
    h = Histogram(bounds)
    h.record_all(values)
    return h


@pytest.mark.parametrize(
    ("value", "bucket"),
    [
        (0, 0),
        (1, 1),
        (2047, 2047),
        (2048, 2048),  # 2048 and 2049 share a bucket: 1024 of them for each power of two
        (2049, 2048),
        (2050, 2049),
        (4095, 3071),
        (4096, 3072),
        (4099, 3072),
        (4100, 3073),
    ],
)
def test_bucket_of_a_value(value: int, bucket: int) -> None:
    assert bucket_of(value) == bucket
    low, high = bucket_range(bucket)
    assert low <= value <= high


def test_buckets_follow_each_other_without_gap_or_overlap() -> None:
    end = -1
    for bucket in range(20_000):
        low, high = bucket_range(bucket)
        assert low == end + 1
        assert bucket_of(low) == bucket_of(high) == bucket
        end = high


def test_count_sum_min_max_and_mean_are_exact() -> None:
    h = made(1_000_003, 7, 10**15 + 1, 7)
    assert (h.n, h.sum, h.min, h.max) == (4, 10**15 + 1_000_018, 7, 10**15 + 1)
    assert h.mean == (10**15 + 1_000_018) / 4


@pytest.mark.parametrize(
    ("q", "value"),
    [(0.0, 1), (0.01, 1), (0.07, 7), (0.5, 50), (0.9, 90), (0.99, 99), (0.999, 100), (1.0, 100)],
)
def test_quantile_is_the_nearest_rank(q: float, value: int) -> None:
    assert made(*range(1, 101)).quantile(q) == value


def test_quantile_of_large_values_is_the_middle_of_their_bucket() -> None:
    h = made(90_000_000, 100_000_000, 300_000_000)
    low, high = bucket_range(bucket_of(100_000_000))
    assert h.quantile(0.5) == (low + high) / 2
    assert math.isclose(h.quantile(0.5), 100_000_000, rel_tol=1 / 1024)


def test_quantile_never_leaves_min_and_max() -> None:
    h = made(1_000_000_007)
    assert h.quantile(0.0) == h.quantile(0.5) == h.quantile(1.0) == 1_000_000_007


def test_quantile_of_nothing_is_refused() -> None:
    with pytest.raises(EmptyHistogram, match="no values"):
        Histogram().quantile(0.5)


def test_quantiles_come_in_the_order_asked_for() -> None:
    assert made(*range(1, 101)).quantiles([0.9, 0.1, 0.5]) == [90, 10, 50]


def test_negative_values_are_refused() -> None:
    h = Histogram()
    with pytest.raises(ValueError, match="at least 0, got -1"):
        h.record(-1)
    assert h.n == 0


def test_bounds_are_inclusive_and_counted_exactly() -> None:
    # 10_000 and 10_001 share a log-linear bucket, and the bound lies between them
    assert bucket_of(10_000) == bucket_of(10_001)
    h = made(9_999, 10_000, 10_001, 50_000, 60_000, bounds=(10_000, 50_000))
    assert h.exact == [2, 2, 1]
    assert h.share_at_most(10_000) == 0.4
    assert h.share_at_most(50_000) == 0.8


def test_bounds_must_rise() -> None:
    with pytest.raises(ValueError, match="rise strictly"):
        Histogram((1, 3, 3))


def test_merge_adds_everything() -> None:
    one, two = made(1, 5_000, bounds=(10,)), made(3, 9_000_000, bounds=(10,))
    one.merge(two)
    assert one.to_wire() == made(1, 5_000, 3, 9_000_000, bounds=(10,)).to_wire()


def test_merge_with_other_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="different bounds"):
        made(1, bounds=(10,)).merge(made(1, bounds=(20,)))


def test_minus_gives_what_came_since() -> None:
    before = made(5, 100, bounds=(50,))
    after = made(5, 100, 7, 7, 3_000_000, bounds=(50,))
    new = after.minus(before)
    assert (new.n, new.sum, new.exact) == (3, 3_000_014, [2, 1])
    assert new.quantile(0.5) == 7
    assert new.min == 7


def test_a_copy_is_independent() -> None:
    one = made(5, bounds=(50,))
    two = one.copy()
    two.record(6)
    assert (one.n, two.n, one.exact, two.exact) == (1, 2, [1, 0], [2, 0])


def test_wire_form_survives_json() -> None:
    h = made(0, 1, 77_777, 10**18, bounds=(10, 1_000_000))
    back = Histogram.from_wire(json.loads(json.dumps(h.to_wire())), (10, 1_000_000))
    assert back.to_wire() == h.to_wire()
    assert back.quantile(0.5) == h.quantile(0.5)


def test_wire_form_with_other_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 3 bucket counts, got 2"):
        Histogram.from_wire(made(1, bounds=(10,)).to_wire(), (10, 20))
