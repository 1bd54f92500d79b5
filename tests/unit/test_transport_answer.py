"""How long an answer is waited for, and in which order the reasons to give it up count."""

from types import SimpleNamespace

import pytest

from tokenswarm.clock import NS
from tokenswarm.records import Outcome
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_errors import AnswerError

ALL = Timeouts(first_token=2, stall=3, total=10)
NONE = Timeouts(first_token=None, stall=None, total=None)


def answer(last_s=None, objects=False):
    """An answer whose latest token came so long after it was asked for."""

    def look():
        if objects:
            raise AnswerError(Outcome.MALFORMED, "too long to keep")

    last = None if last_s is None else round(last_s * NS)
    return SimpleNamespace(last_token_ns=last, look=look)


@pytest.mark.parametrize(
    ("timeouts", "heard", "now_s", "outcome"),
    [
        (ALL, answer(), 2, None),
        (ALL, answer(), 2.1, Outcome.TIMEOUT_FIRST_TOKEN),
        (ALL, answer(1), 4, None),
        (ALL, answer(1), 4.1, Outcome.TIMEOUT_STALLED),
        (ALL, answer(9), 10, None),
        (ALL, answer(9), 10.1, Outcome.TIMEOUT_TOTAL),
        (ALL, answer(), 10.1, Outcome.TIMEOUT_TOTAL),
        (ALL, answer(1, objects=True), 2, Outcome.MALFORMED),
        (ALL, answer(1, objects=True), 9, Outcome.MALFORMED),
        (ALL, answer(1, objects=True), 11, Outcome.TIMEOUT_TOTAL),
        (NONE, answer(), 9e6, None),
        (NONE, answer(1), 9e6, None),
        (NONE, answer(1, objects=True), 2, Outcome.MALFORMED),
    ],
)
def test_an_answer_is_given_up_for_the_first_reason_that_holds(timeouts, heard, now_s, outcome):
    reason = timeouts.exceeded(heard, 0, round(now_s * NS))
    assert (reason and reason[0]) == outcome


def test_the_reason_says_the_limit():
    assert ALL.exceeded(answer(), 0, 3 * NS) == (Outcome.TIMEOUT_FIRST_TOKEN, "no token within 2 s")
    stalled = ALL.exceeded(answer(1), 0, 5 * NS)
    assert stalled == (Outcome.TIMEOUT_STALLED, "no further token for 3 s")
    total = ALL.exceeded(answer(1), 0, 11 * NS)
    assert total == (Outcome.TIMEOUT_TOTAL, "not complete within 10 s")
