"""Where to probe next, on servers that are formulas."""

import math
import random

import pytest

from tokenswarm.search import Bounds, Probe, bracket, confirmed, knee, next_level, verdict


def searched(server, bounds, most=40):
    """All probes of a search against server(level) -> Probe."""
    probes = []
    while len(probes) < most:
        level = next_level(probes, bounds)
        if level is None:
            return probes
        probes.append(server(level))
    raise AssertionError([p.level for p in probes])


def exact(capacity, with_hint=False):
    def server(level):
        hint = capacity if with_hint and level > capacity else None
        return Probe(level, level <= capacity, hint=hint)

    return server


@pytest.mark.parametrize("capacity", [0.3, 1.0, 7.7, 40.0, 333.3, 9000.0])
def test_a_rate_is_found_within_the_precision(capacity):
    probes = searched(exact(capacity), Bounds(1.0, precision=0.03))
    found = bracket(probes)
    assert found.passes <= capacity < found.fails
    assert found.fails / found.passes <= 1.03 * 1.001


@pytest.mark.parametrize("capacity", [0.3, 1.0, 7.7, 40.0, 333.3, 2000.0])
def test_with_hints_fewer_than_twelve_probes_are_needed(capacity):
    probes = searched(exact(capacity, with_hint=True), Bounds(1.0, precision=0.03))
    assert len(probes) < 12
    assert bracket(probes).passes >= 0.97 * capacity


@pytest.mark.parametrize("off", [0.9, 0.97, 1.02, 1.1])
def test_a_hint_that_is_a_little_off_still_saves_probes(off):
    def server(level):
        return Probe(level, level <= 40.0, hint=40.0 * off if level > 40 else None)

    probes = searched(server, Bounds(5.0, precision=0.03))
    assert len(probes) < 12
    found = bracket(probes)
    assert found.passes <= 40.0 < found.fails
    assert found.passes >= 0.97 * 40.0


@pytest.mark.parametrize("capacity", [1, 2, 16, 17, 100, 1000])
def test_users_are_whole_numbers(capacity):
    probes = searched(exact(capacity, with_hint=True), Bounds(1.0, precision=0.02, whole=True))
    assert len(probes) < 12
    assert all(p.level == int(p.level) for p in probes)
    found = bracket(probes)
    assert found.passes <= capacity < found.fails
    assert found.fails - found.passes <= max(1, 0.02 * found.passes)


def test_no_level_is_probed_twice_when_verdicts_are_sure():
    levels = [p.level for p in searched(exact(23.0, with_hint=True), Bounds(1.0))]
    assert len(levels) == len(set(levels))


def test_the_search_ends_at_the_limit_that_was_given():
    probes = searched(exact(math.inf), Bounds(2.0, high=50.0))
    assert bracket(probes).passes == 50.0
    assert bracket(probes).fails is None


def test_nothing_passes():
    found = bracket(searched(exact(0), Bounds(4.0, whole=True)))
    assert found.passes is None
    assert found.fails == 1.0


def test_a_warm_start_near_the_answer_is_quick():
    probes = searched(exact(42.0), Bounds(40.0, precision=0.03, growth=1.1))
    assert len(probes) <= 6
    assert bracket(probes).passes >= 0.97 * 42.0


def test_a_verdict_in_its_interval_is_asked_for_again():
    unsure, yes, no = Probe(4, True, sure=False), Probe(4, True), Probe(4, False, sure=False)
    assert verdict([unsure]) is None
    assert next_level([unsure], Bounds(4.0)) == 4
    assert verdict([unsure, no]) is None
    assert verdict([unsure, no, unsure]) is True
    assert verdict([no, no]) is False
    assert verdict([no, yes]) is True


def test_a_full_probe_outweighs_a_short_one():
    assert verdict([Probe(4, True, full=False), Probe(4, False)]) is False
    assert not confirmed([Probe(4, True, full=False), Probe(5, False)])
    assert confirmed([Probe(4, True, full=False), Probe(4, True), Probe(5, False)])


def test_a_noisy_server_is_bracketed_near_its_capacity():
    """Verdicts within 5 % of the capacity are drawn; 40 searches, fixed seed."""
    rng = random.Random(3)

    def server(level):
        distance = (level - 100.0) / 100.0
        passed = rng.random() < 0.5 - distance / 0.1
        return Probe(level, passed, sure=abs(distance) > 0.02, hint=100.0 if level > 102 else None)

    for _ in range(40):
        found = bracket(searched(server, Bounds(10.0)))
        assert found.passes == pytest.approx(100.0, rel=0.08)


def test_the_knee_is_where_throughput_over_latency_is_highest():
    curve = [(1, 10.0, 0.1), (4, 38.0, 0.11), (16, 100.0, 0.16), (64, 110.0, 0.6)]
    probes = [Probe(n, True, throughput=x, latency_s=s) for n, x, s in curve]
    assert knee(probes).level == 16
    assert knee(probes[:2]) is None
