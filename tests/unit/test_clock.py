"""Waking at an instant, and steps of the wall clock."""

import statistics
import time

import gevent
import pytest

from tokenswarm import clock
from tokenswarm.clock import Alarm, LoopClock, StepWatch

MS = 1_000_000


@pytest.fixture
def alarm():
    made = Alarm()
    yield made
    made.close()


def test_never_early_and_late_by_a_small_part_of_the_wait(alarm):
    late = []
    for _ in range(30):
        due = time.time_ns() + 10 * MS
        alarm.wait_until(due)
        late.append(time.time_ns() - due)
    assert min(late) >= 0
    assert statistics.median(late) < 5 * MS


def test_an_instant_that_has_passed_does_not_wait(alarm):
    switched = []
    gevent.spawn(switched.append, 1)
    alarm.wait_until(time.time_ns() - 1)
    assert switched == []


def test_it_sleeps_one_greenlet_only(alarm):
    sleeper = gevent.spawn(alarm.wait_until, time.time_ns() + 50 * MS)
    turns = 0
    while not sleeper.dead:
        gevent.sleep(0.001)
        turns += 1
    assert turns > 3


def test_without_timerfd_gevents_timers_serve(monkeypatch):
    class Libc:
        def __init__(self, *_, **__):
            pass

        def timerfd_create(self, *_):
            return -1

    monkeypatch.setattr(clock.ctypes, "CDLL", Libc)
    made = Alarm()
    due = time.time_ns() + 20 * MS
    made.wait_until(due)
    assert time.time_ns() >= due - MS
    made.close()


def test_it_can_be_woken_and_sleeps_again_afterwards(alarm):
    sleeper = gevent.spawn(alarm.wait_until, time.time_ns() + 60_000 * MS)
    gevent.sleep(0.01)
    alarm.wake()
    sleeper.get(timeout=20)
    alarm.wake()  # nobody sleeps: the next one is not woken by it
    due = time.time_ns() + 30 * MS
    alarm.wait_until(due)
    assert time.time_ns() >= due


def test_a_closed_alarm_can_be_closed_again():
    made = Alarm()
    made.close()
    made.close()


def test_a_step_of_the_wall_clock_is_seen_once(monkeypatch):
    class Set:
        by = 0
        monotonic_ns = staticmethod(time.monotonic_ns)

        @classmethod
        def time_ns(cls):
            return time.monotonic_ns() + 10**18 + cls.by

    monkeypatch.setattr(clock, "time", Set)
    watch = StepWatch()
    assert abs(watch.step_ns()) < 2 * MS
    Set.by = -50 * MS
    assert abs(watch.step_ns() + 50 * MS) < 2 * MS
    assert abs(watch.step_ns()) < 2 * MS


def test_what_greenlets_took_before_a_turn_counts_as_lag_of_the_loop():
    """What came meanwhile is read only then, though the turn itself has just begun."""
    clock, lags = LoopClock(), []
    check = gevent.get_hub().loop.check()

    def busy():
        until = time.thread_time_ns() + 50 * MS
        while time.thread_time_ns() < until:
            pass

    try:
        gevent.sleep(0.01)
        check.start(lambda: lags.append(clock.lag_ns()))
        gevent.spawn(busy).join()
        gevent.sleep(0.001)
    finally:
        check.stop()
        clock.close()
    assert max(lags) >= 50 * MS


def test_the_loop_clock_sees_a_loop_that_was_held():
    clock = LoopClock()
    try:
        gevent.sleep(0.01)
        lags = []
        for _ in range(20):
            gevent.sleep(0.005)
            lags.append(clock.lag_ns())
        time.sleep(0.2)
        during = clock.lag_ns()
        gevent.sleep(0)
    finally:
        clock.close()
    assert during >= 200_000_000
    assert sorted(lags)[10] < during / 20
