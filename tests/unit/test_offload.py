"""Work in gevent's threadpool."""

import threading

import gevent
import pytest

from tokenswarm.offload import offload


def test_the_result_comes_back_from_another_thread():
    assert offload(threading.get_ident) != threading.get_ident()
    assert offload(lambda a, b: a - b, 5, 3) == 2


def test_the_loop_goes_on_meanwhile():
    free = threading.Event()
    gevent.spawn(free.set)  # runs only when this greenlet waits
    assert offload(free.wait, 20)


def test_what_is_raised_there_is_raised_here_and_nothing_is_printed(capfd):
    with pytest.raises(ValueError, match="not a number"):
        offload(bad)
    gevent.sleep(0)
    assert capfd.readouterr() == ("", "")


def bad():
    raise ValueError("not a number")
