"""Work in gevent's threadpool: results, errors, one at a time."""

import subprocess
import sys
import threading
from pathlib import Path

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


IMPORTING = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, importlib, sys
from tokenswarm.offload import offload
sys.path.insert(0, sys.argv[1])
names = sys.argv[2:]
for name in names:
    both = [gevent.spawn(offload, importlib.import_module, name) for _ in range(4)]
    gevent.joinall(both, raise_error=True)
print("done")
"""


def test_threads_that_import_the_same_module_do_not_wait_for_ever(tmp_path: Path):
    """Python's import locks are gevent's under its patches, and do not wake other threads."""
    names = [f"slow_{k}" for k in range(20)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(0.005)\n")
    command = [sys.executable, "-c", IMPORTING, str(tmp_path), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr
