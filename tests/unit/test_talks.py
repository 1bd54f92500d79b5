"""Sessions: shared out by slot whatever the number of workers, led in order."""

from __future__ import annotations

import pickle

import pytest

from tokenswarm.records import Prompt, Request
from tokenswarm.talks import STAGE_SESSIONS, Talk, maker, stage_sessions

TURNS = (3, 1, 2)  # of sessions 0, 1, 2, and again of 3, 4, 5, ...


class Session:
    def __init__(self, first: int) -> None:
        self.first, self.turn = first, 0

    def prompt(self, replies: tuple[str, ...] | list[str] = ()) -> Prompt:
        self.turn += 1
        return Prompt(self.first + self.turn - 1, 1, 1, text=f"after {list(replies)}")


class Source:
    def __init__(self, live: bool) -> None:
        self.live = live

    def first_index(self, number: int) -> int:
        return sum(TURNS) * (number // 3) + sum(TURNS[: number % 3])

    def turns_of(self, number: int) -> int:
        return TURNS[number % 3]

    def session(self, number: int) -> Session:
        return Session(self.first_index(number))

    def prompts(self, indices: range) -> list[Prompt]:
        return [Prompt(i, 1, 1, text=str(i)) for i in indices]


def build(prompt: Prompt) -> Request:
    return Request("/", (prompt.text or "").encode())


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_all_workers_together_have_every_session_once(n: int) -> None:
    source = Source(live=False)
    shares = [list(stage_sessions(source, 0, 20, 4, k, n)) for k in range(n)]
    together = sorted(number for share in shares for number, _ in share)
    assert together == list(range(10))
    assert sum(turns for share in shares for _, turns in share) == 20


def test_a_worker_beyond_the_users_has_no_sessions_and_does_not_look_for_ever() -> None:
    assert list(stage_sessions(Source(live=False), 0, None, 2, 2, 3)) == []
    assert next(stage_sessions(Source(live=False), 0, None, 2, 1, 3)) == (1, 1)


def test_the_last_session_is_cut_to_the_number_of_requests() -> None:
    assert list(stage_sessions(Source(live=False), 0, 5, 1, 0, 1)) == [(0, 3), (1, 1), (2, 1)]


def test_a_later_stage_has_sessions_of_its_own() -> None:
    first = next(stage_sessions(Source(live=False), 1, 5, 1, 0, 1))
    assert first == (STAGE_SESSIONS, TURNS[STAGE_SESSIONS % 3])


def texts(talk: Talk, answers: list[str]) -> list[str]:
    said = []
    while (item := talk.next()) is not None:
        assert item[0].text is None  # the request says it already
        said.append(item[1].body.decode())
        talk.heard(answers.pop(0) if answers else "")
    return said


def test_recorded_sessions_are_made_ahead_and_end() -> None:
    (talk,) = maker(Source(live=False), build)([(0, 3)])
    assert talk.goes_on
    assert texts(talk, ["x", "y"]) == ["0", "1", "2"]
    assert not talk.goes_on


def test_live_sessions_carry_the_models_own_answers() -> None:
    (talk,) = maker(Source(live=True), build)([(0, 3)])
    assert texts(talk, ["x", "", "z"]) == ["after []", "after ['x']", "after ['x']"]


def test_recorded_sessions_can_be_made_in_another_process() -> None:
    made = pickle.loads(pickle.dumps(maker(Source(live=False), build)([(0, 3), (1, 1)])))
    asked = []
    for talk in made:
        while (item := talk.next()) is not None:
            asked.append((item[0].index, item[0].text, item[1].body))
    assert asked == [(i, None, str(i).encode()) for i in range(4)]
