"""Whatever the load: plans are ordered, complete, repeatable, inside their stages, and striped."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenswarm.arrivals import schedule, stage_ends, stripe
from tokenswarm.workload_load import Load

LEVELS = st.floats(0.5, 40)
SHAPES = st.one_of(
    st.builds(lambda a, b: {"ramp": {"from": a, "to": b}}, LEVELS, LEVELS),
    st.builds(lambda a, b: {"ramp": {"from": 0, "to": a, "over": b}}, LEVELS, st.floats(0.1, 9)),
    st.builds(
        lambda ls, e: {"steps": {"levels": [*ls, 3.0], "every": e}},
        st.lists(st.one_of(st.just(0.0), LEVELS), min_size=1, max_size=4),
        st.floats(0.1, 5),
    ),
    st.builds(
        lambda b, p, at: {"spike": {"base": b, "peak": p, "at": at, "for": 1.5}},
        LEVELS, LEVELS, st.floats(0, 5),
    ),
    st.builds(
        lambda m, s, p: {"sine": {"mean": m, "amplitude": m * s, "period": p}},
        LEVELS, st.floats(0, 1), st.floats(0.5, 30),
    ),
    st.builds(
        lambda rows, kind: {
            "series": {"points": [[t, r] for t, r in sorted(rows)] + [[99.0, 2.0]],
                       "interpolate": kind}
        },
        st.lists(st.tuples(st.floats(0, 9), LEVELS), max_size=4),
        st.sampled_from(["linear", "step"]),
    ),
)  # fmt: skip


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    stage: dict[str, Any] = {}
    if draw(st.booleans()):
        stage["shape"] = draw(SHAPES)
    else:
        stage["rate_per_s"] = draw(LEVELS)
    ramp = stage.get("shape", {}).get("ramp", {"over": 1})
    if draw(st.booleans()) or "over" not in ramp:
        stage["duration"] = draw(st.floats(0.05, 12))
    else:
        stage["requests"] = draw(st.integers(1, 60))
    return stage


LOADS = st.builds(
    lambda process, burstiness, stages: Load.model_validate(
        {
            "mode": "open",
            "arrivals": process,
            "burstiness": burstiness if process == "gamma" else 1.0,
            "stages": stages,
        }
    ),
    st.sampled_from(["constant", "poisson", "gamma"]),
    st.floats(0.2, 5),
    st.lists(stages(), min_size=1, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(LOADS, st.integers(0, 2**31))
def test_plans_are_ordered_complete_and_inside_their_stages(load: Load, seed: int) -> None:
    plan = list(schedule(load, seed))
    assert plan == list(schedule(load, seed))
    assert [a.index for a in plan] == list(range(len(plan)))
    assert all(a.due_ns <= b.due_ns and a.stage <= b.stage for a, b in itertools.pairwise(plan))
    ends = stage_ends(load, seed)
    assert list(ends) == sorted(ends)
    for number, stage in enumerate(load.resolved_stages()):
        inside = [a.due_ns for a in plan if a.stage == number]
        start = ends[number - 1] if number else 0
        if stage.requests is not None:
            assert len(inside) == stage.requests
        if stage.duration is not None:
            assert abs(ends[number] - start - stage.duration * 1e9) <= 1
        assert all(start <= due <= ends[number] for due in inside)


@settings(max_examples=30, deadline=None)
@given(LOADS, st.integers(0, 2**31), st.integers(1, 9))
def test_stripes_share_the_plan_out(load: Load, seed: int, n: int) -> None:
    plan = list(schedule(load, seed))
    shares = [list(stripe(iter(plan), k, n)) for k in range(n)]
    assert sorted(itertools.chain(*shares)) == plan
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=60, deadline=None)
@given(LOADS)
def test_constant_arrivals_are_one_apart_in_expected_number(load: Load) -> None:
    load = load.model_copy(update={"arrivals": "constant", "burstiness": 1.0})
    for number, stage in enumerate(load.resolved_stages()):
        start = stage_ends(load, 1)[number - 1] if number else 0
        profile = stage.profile
        assert profile is not None
        due = [a.due_ns for a in schedule(load, 1) if a.stage == number]
        expected = [profile.cumulative((t - start) / 1e9) for t in due]
        assert all(abs(b - a - 1) < 1e-5 for a, b in itertools.pairwise(expected))
