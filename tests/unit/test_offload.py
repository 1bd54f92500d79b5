"""Work in gevent's threadpool: results, errors, one at a time."""

import threading

import gevent
import pytest

from tokenswarm.offload import offload


def test_the_result_comes_from_another_thread():
    assert offload(lambda a, b: (a + b, threading.get_ident()), 1, 2)[0] == 3
    assert offload(threading.get_ident) != threading.get_ident()


def test_an_error_is_raised_where_the_work_was_asked_for():
    with pytest.raises(ZeroDivisionError):
        offload(lambda: 1 // 0)


def test_one_thread_works_at_a_time():
    at_work, most = [], []

    def work(k):
        at_work.append(k)
        most.append(len(at_work))
        threading.Event().wait(0.002)
        at_work.remove(k)
        return k

    asked = [gevent.spawn(offload, work, k) for k in range(20)]
    gevent.joinall(asked, raise_error=True)
    assert [g.value for g in asked] == list(range(20))
    assert max(most) == 1
