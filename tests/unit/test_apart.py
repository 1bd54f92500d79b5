"""Work in a forked child: results, errors, what the child holds, what becomes of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import gevent
import pytest

from tokenswarm.apart import Apart
from tokenswarm.records import BadInput


@pytest.fixture
def apart():
    made = []

    def make(function):
        made.append(Apart(function))
        return made[-1]

    yield make
    for one in made:
        one.close()


def gone(pid):
    """Whether no process has this number any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_results_come_from_another_process(apart):
    work = apart(lambda items: [(i * i, os.getpid()) for i in items])
    first, second = work(range(3)), work([7], hurry=False)
    assert [n for n, _ in first + second] == [0, 1, 4, 49]
    assert {pid for _, pid in first + second} == {work.pid} != {os.getpid()}


def test_answers_larger_than_a_pipe_come_whole(apart):
    work = apart(lambda items: [bytes([i]) * 3_000_000 for i in items])
    assert work([1, 2, 3]) == [bytes([i]) * 3_000_000 for i in (1, 2, 3)]


def test_greenlets_take_turns(apart):
    work = apart(lambda items: [(i, "x" * 100_000) for i in items])
    asked = [gevent.spawn(work, [k, k + 1], hurry=bool(k % 2)) for k in range(20)]
    gevent.joinall(asked, raise_error=True)
    assert [[i for i, _ in g.value] for g in asked] == [[k, k + 1] for k in range(20)]


def test_closing_while_it_is_asked_is_the_end_and_no_fault(apart, caplog):
    work = apart(lambda items: time.sleep(60))
    asked = gevent.spawn(work, [1])
    while work.pid is None:
        gevent.sleep(0.001)
    gevent.sleep(0.01)
    work.close()
    asked.join(timeout=20)
    assert isinstance(asked.value, gevent.GreenletExit)
    assert caplog.text == ""


@pytest.mark.parametrize("error", [BadInput("one", "two"), ValueError("bad"), KeyError(3)])
def test_an_error_is_raised_as_it_was(apart, error):
    def fail(items):
        raise error

    work = apart(fail)
    for _ in range(2):  # the child goes on after it
        with pytest.raises(type(error)) as raised:
            work([1])
        assert raised.value.args == error.args
    assert work.pid is not None


def test_an_error_that_cannot_be_sent_keeps_its_text(apart):
    class LocalError(Exception):
        pass

    def fail(items):
        raise LocalError("inside")

    with pytest.raises(RuntimeError, match="LocalError: inside"):
        apart(fail)([1])


def test_the_child_holds_no_socket_of_its_parent(apart):
    def held(items):
        links = (Path(f"/proc/self/fd/{fd}") for fd in range(3, 256))
        return [str(link.readlink()) for link in links if link.is_symlink()]

    with socket.create_server(("127.0.0.1", 0)) as server:
        kinds = [name.partition(":")[0] for name in apart(held)([1])]
        assert server.fileno() > 2
    assert "socket" not in kinds
    assert "anon_inode" not in kinds
    assert kinds.count("pipe") == 2


def test_a_child_that_is_killed_is_replaced_by_a_thread(apart, caplog):
    work = apart(lambda items: [(i, os.getpid()) for i in items])
    work([1])
    os.kill(work.pid, signal.SIGKILL)
    assert work([2, 3]) == [(2, os.getpid()), (3, os.getpid())]
    assert "in a thread from now on" in caplog.text
    assert work([4]) == [(4, os.getpid())]


def test_where_no_process_can_be_forked_a_thread_works(apart, monkeypatch, caplog):
    def refuse():
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("tokenswarm.apart._fork", refuse)
    assert apart(lambda items: list(items))([5]) == [5]
    assert "Resource temporarily unavailable" in caplog.text


def test_the_signals_that_end_a_run_do_not_end_the_child(apart):
    work = apart(lambda items: [os.getpid() for _ in items])
    work([1])
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(work.pid, number)
    assert work([1]) == [work.pid]


def test_a_killed_greenlet_leaves_no_answer_for_the_next(apart):
    work = apart(lambda items: [list(items) * 200_000])
    work([0])
    waiting = gevent.spawn(work, [1])
    gevent.sleep(0)
    waiting.kill()
    assert work([2])[0][:3] == [2, 2, 2]


def test_close_ends_the_child(apart):
    work = apart(list)
    work([1])
    pid = work.pid
    work.close()
    work.close()
    assert gone(pid)


def test_a_child_does_not_outlive_its_parent():
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        work = Apart(list)
        work([1])
        os.write(write, str(work.pid).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    child = int(os.read(read, 32))
    os.close(read)
    os.close(write)
    for _ in range(500):
        if gone(child) or "State:\tZ" in Path(f"/proc/{child}/status").read_text():
            return
        gevent.sleep(0.01)
    raise AssertionError("still there")


PATCHED = """
import gevent.monkey
gevent.monkey.patch_all()
import os
from tokenswarm.apart import Apart
work = Apart(list)
work([1])
print(work.pid, *(os.readlink(f"/proc/{work.pid}/fd/{n}").partition(":")[0]
                  for n in os.listdir(f"/proc/{work.pid}/fd") if int(n) > 2), flush=True)
os._exit(0)
"""


def test_under_gevents_patches_too_the_child_closes_what_it_inherited_and_ends():
    """gevent's os.close leaves closing to a hub, and the child has none."""
    said = subprocess.run(
        [sys.executable, "-c", PATCHED], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    child, held = int(said[0]), said[1:]
    assert "anon_inode" not in held
    assert held.count("pipe") == 2
    for _ in range(500):
        if gone(child):
            return
        gevent.sleep(0.01)
    raise AssertionError("still there")
