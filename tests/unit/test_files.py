from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporters.files import Appender, try_write, write_whole


@pytest.fixture
def small_disk() -> Iterator[int]:
    """No file may grow beyond 1,000 bytes: what a full disk does, without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(
    tmp_path: Path, small_disk: int
) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    said = try_write(path, b"x" * (small_disk + 1))
    assert said == f"cannot write {path}: File too large"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_does_not_fit_is_not_left_half(tmp_path: Path, small_disk: int) -> None:
    said: list[str] = []
    file = Appender(tmp_path / "a", lambda path, error: said.append(str(error.strerror)))
    assert file.append(b"a" * 900 + b"\n")
    assert not file.append(b"b" * 200 + b"\n")
    assert not file.append(b"c" * 300 + b"\n")
    assert file.append(b"d" * 50 + b"\n")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"a" * 900 + b"\n" + b"d" * 50 + b"\n"
    assert (file.lost, said) == (2, ["File too large"])


def test_an_appender_goes_on_after_it_was_closed(tmp_path: Path) -> None:
    file = Appender(tmp_path / "a", lambda path, error: None)
    file.append(b"1\n")
    file.close()
    file.append(b"2\n")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"1\n2\n"
