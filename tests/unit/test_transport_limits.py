"""File descriptors and ports: raised where possible, and named where not."""

import resource

import pytest

from tokenswarm import transport_limits
from tokenswarm.records import BadInput
from tokenswarm.transport_limits import SPARE_FILES, make_room

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """The limits of a made-up process: [soft, hard]; None in `allowed` forbids to raise."""
    state = {"now": (1024, 4096), "allowed": True}

    def setrlimit(_, wanted):
        if not state["allowed"]:
            raise ValueError("not allowed")
        state["now"] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: state["now"])
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    monkeypatch.setattr(transport_limits, "_ports", lambda: 28232)
    return state


def test_the_soft_limit_is_raised_to_the_hard_one(limits):
    assert make_room(None) == 4096
    assert limits["now"] == (4096, 4096)
    assert make_room(4096 - SPARE_FILES) == 4096


def test_more_than_the_hard_limit_is_refused_with_the_numbers(limits):
    with pytest.raises(BadInput, match=r"up to 4000 requests in flight .* 4096 open files"):
        make_room(4000)


def test_where_raising_is_forbidden_the_soft_limit_counts(limits):
    limits["allowed"] = False
    assert make_room(500) == 1024
    with pytest.raises(BadInput, match="1024 open files"):
        make_room(1000)


def test_no_limit_at_all(limits):
    limits["now"] = (UNLIMITED, UNLIMITED)
    assert make_room(20_000) == 1 << 20
    limits["now"] = (1024, UNLIMITED)
    assert make_room(20_000) == 1 << 20


def test_ports_are_for_one_server_each(limits):
    limits["now"] = (UNLIMITED, UNLIMITED)
    with pytest.raises(BadInput, match="28232 local ports"):
        make_room(30_000)
    make_room(30_000, servers=2)
