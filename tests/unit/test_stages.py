"""When the stages of a run begin and end: as planned, and by what workers say."""

import time

import pytest
from hand_made import T0, S
from hand_made import run as hand_made_run

from tokenswarm import workload
from tokenswarm.run import StageWindow, Worker

with pytest.MonkeyPatch.context() as patch:
    # the package loads Locust, which would put gevent under the other tests' threads
    patch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from tokenswarm.distributed.crew import Crew
    from tokenswarm.distributed.stages import Stages, plan_windows, stage_at

HEAD = """
seed: 4
backend: {model: m}
tokenizer: {source: tiktoken, path: cl100k_base}
prompts: {input_tokens: 8, output_tokens: 2}
"""


class Played:
    """A run of these stages with two workers, and what they were told."""

    def __init__(self, stages, mode="closed"):
        work = workload.parse(f"{HEAD}load: {{mode: {mode}, stages: {stages}}}")
        self.run = hand_made_run(Worker("w0", 0, k=0), Worker("w1", 1, k=1))
        self.run.workload = work
        self.run.stages = [StageWindow(s.name, s.warmup) for s in work.load.resolved_stages()]
        self.told = []
        crew = Crew(lambda worker: True, lambda *message: self.told.append(message))
        self.stages = Stages(self.run, crew)
        plan_windows(self.run)

    @property
    def windows(self):
        return [(w.start_s, w.end_s) for w in self.run.stages]


TWO = "[{requests: 6, users: 2}, {duration: 5s, users: 2}]"


@pytest.mark.parametrize(
    ("mode", "stages", "windows"),
    [
        ("closed", "[{duration: 5s, users: 2}, {duration: 3s, users: 4}]", [(0, 5), (5, 8)]),
        ("closed", "[{duration: 5s, users: 2}, {requests: 9, users: 4}]", [(0, 5), (5, None)]),
        ("closed", TWO, [(0, None), (None, None)]),
        ("open", "[{duration: 5s, rate_per_s: 2}, {duration: 3s, rate_per_s: 4}]",
         [(0, 5), (5, 8)]),
    ],
)  # fmt: skip
def test_windows_are_planned_as_far_as_they_are_known(mode, stages, windows):
    assert Played(stages, mode).windows == windows


def test_an_open_loop_plan_by_requests_has_its_ends_and_its_number():
    played = Played("[{requests: 10, rate_per_s: 5}, {requests: 20, rate_per_s: 10}]", "open")
    (_, first), (start, last) = played.windows
    assert first == start > 0
    assert last > first
    assert played.run.planned_requests == 30


def test_the_next_stage_begins_when_every_share_is_sent_and_the_word_is_given_once():
    played = Played(TWO)
    played.run.start_ns = time.time_ns() - 4 * S
    played.stages.done(0, "w0", played.run.start_ns + 2 * S)
    assert (played.windows, played.told) == ([(0, None), (None, None)], [])
    played.stages.done(0, "w1", played.run.start_ns + 3 * S)
    (_, end), (start, over) = played.windows
    assert end == pytest.approx(2, abs=0.1)  # when the first share was used up
    assert start == pytest.approx(4, abs=0.5)
    assert over == start + 5
    word = {"run": "r1", "stage": 1, "start_ns": played.run.start_ns + round(start * S)}
    assert played.told == [("stage", word, None)]
    played.stages.done(0, "w1", played.run.start_ns + 3 * S)
    assert len(played.told) == 1


def test_nobody_waits_for_the_share_of_a_worker_that_is_lost():
    played = Played(TWO)
    played.stages.done(0, "w0", T0 + 2 * S)
    played.run.workers["w1"].state = "lost"
    played.stages.worker_lost()
    assert played.windows[0] == (0, pytest.approx(2, abs=0.1))
    assert [kind for kind, *_ in played.told] == ["stage"]


@pytest.mark.parametrize(("offset_s", "stage"), [(-1, 0), (0, 0), (9.9, 0), (10, 1), (30, None)])
def test_an_instant_belongs_to_the_stage_that_has_not_ended(offset_s, stage):
    assert stage_at(hand_made_run(), offset_s) == stage


def test_a_stage_without_a_known_end_has_every_later_instant():
    assert stage_at(Played(TWO).run, 1e6) == 0
