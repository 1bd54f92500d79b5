"""Which numbers of streams are tried, how a level is judged, and what follows from it."""

import json
from pathlib import Path

import pytest

from tokenswarm import cli
from tokenswarm.calibrate import (
    HEADROOM,
    Level,
    answered,
    conclusion,
    judged,
    next_streams,
    quantile,
)
from tokenswarm.study_point import Result


def level(streams, fine=True):
    return Level(streams, streams * 47.0, streams * 47.5, 0.5, 0.1, 0.1, 0.0, 0.0, fine)


def tried(worker, most=20):
    """All levels of a machine where worker(streams) says whether it is fine."""
    levels = []
    while (streams := next_streams(levels)) is not None:
        levels.append(level(streams, worker(streams)))
        assert len(levels) < most
    return levels


def test_levels_double_until_one_is_twice_too_much_and_end_in_between():
    levels = tried(lambda n: n <= 600)
    assert [x.streams for x in levels] == [64, 128, 256, 512, 1024, 1024, 724, 724]
    assert answered(levels, "worker", 0.002, 1.0).streams == 512
    assert answered(tried(lambda n: n <= 800), "worker", 0.002, 1.0).streams == 724


def test_nothing_too_much_ends_at_the_last_level():
    assert [x.streams for x in tried(lambda n: True)][-1] == 4096


def test_a_machine_that_is_too_busy_is_told_so():
    levels = tried(lambda n: False)
    assert [x.streams for x in levels] == [64, 64]
    found = answered(levels, "worker", 0.002, 1.0)
    assert found.streams == found.workers_for(100, 100) == 0
    assert "too busy" in conclusion(found, 100, 100)[0]


def test_one_bad_run_is_not_believed():
    levels = [level(64), level(128, False)]
    assert next_streams(levels) == 128
    assert next_streams([*levels, level(128)]) == 256


def run_result(ttft_p99=0.1002, cpu=0.4, coalesced=0.0, rate=4600.0):
    return Result(Path(), summary={
        "generator": {"workers": [{"cpu": cpu, "coalesced_share": coalesced}]},
        "metrics": {"ttft_s": {"p99": ttft_p99}},
        "throughput": {"output_tokens_per_s": rate},
    })  # fmt: skip


SERVED = [{"received": 5.0, "first_sent": 5.1}] * 99 + [{"received": 5.0, "first_sent": 5.2}]


@pytest.mark.parametrize(
    ("found", "fine", "why"),
    [
        (run_result(), True, ""),
        (run_result(ttft_p99=0.104), False, "TTFT p99 is off by 4.0 ms"),
        (run_result(ttft_p99=None), False, "TTFT p99 is off by unknown"),
        (run_result(cpu=0.95), False, "95% CPU"),
        (run_result(coalesced=0.07), False, "7% of reads coalesced"),
    ],
)
def test_a_level_is_fine_within_the_bounds(found, fine, why):
    judged_level = judged(100, found, SERVED, 0.002)
    assert (judged_level.fine, judged_level.why) == (fine, why)
    assert judged_level.true_ttft_p99_s == pytest.approx(0.1)


def test_an_engine_that_sent_too_little_is_the_limit():
    assert judged(100, run_result(rate=4600.0), SERVED, 0.002).engine_kept_up
    assert not judged(100, run_result(rate=3000.0), SERVED, 0.002).engine_kept_up


def test_workers_for_a_load_keep_headroom():
    found = answered([level(1000)], "worker", 0.002, 1.0)
    assert found.workers_for(1000 * HEADROOM, 0) == 1
    assert found.workers_for(1000, 0) == 2
    assert found.workers_for(10, 47_000 * 4 * HEADROOM) == 4
    assert found.us_per_event == pytest.approx(0.5 / 47_000 * 1e6)
    said = json.loads(found.to_json(1000, None))
    assert (said["workers"], said["streams"], said["limited_by"]) == (2, 1000, "worker")
    assert conclusion(found, 1000, None)[1] == "1000 streams: 2 workers, each at 80% of that"


def test_quantile_takes_the_value_at_its_rank():
    assert quantile([], 0.99) is None
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([7], 0.99) == 7


def test_bad_options_are_refused_all_at_once(capsys):
    assert cli.main(["calibrate", "--streams", "0", "--bound-ms", "-1"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "tokenswarm: --streams: must be above 0, got 0",
        "tokenswarm: --bound-ms: must be above 0, got -1",
    ]
