"""The cache of built files: built once, rebuilt when broken, done without when unwritable."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tokenswarm.prompts import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("TOKENSWARM_CACHE", str(place))
    return place


def _no_warning(text: str) -> None:
    raise AssertionError(text)


def _build(folder: Path) -> Mapping[str, Any]:
    (folder / "text").write_bytes(b"hello")
    (folder / "none").write_bytes(b"")
    (folder / "numbers").write_bytes((7).to_bytes(4, "little") * 3)
    return {"fact": 1}


def _never(folder: Path) -> Mapping[str, Any]:
    raise AssertionError("was to come from the cache")


def test_an_entry_is_built_once_and_mapped_afterwards(folder: Path) -> None:
    cache.entry("e", _build, _no_warning)
    entry = cache.entry("e", _never, _no_warning)
    assert bytes(entry.bytes("text")) == b"hello"
    assert bytes(entry.bytes("none")) == b""
    assert list(entry.numbers("numbers")) == [7, 7, 7]
    assert entry.facts == {"fact": 1}
    assert sorted(p.name for p in folder.iterdir()) == ["e", "e.lock"]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "meta", "old format"])
def test_a_broken_entry_is_built_again(folder: Path, damage: str) -> None:
    cache.entry("e", _build, _no_warning)
    if damage == "cut":
        (folder / "e" / "text").write_bytes(b"hel")
    elif damage == "changed":
        (folder / "e" / "text").write_bytes(b"hellO")
    elif damage == "missing":
        (folder / "e" / "text").unlink()
    elif damage == "meta":
        (folder / "e" / "meta.json").write_text("{")
    else:
        (folder / "e" / "meta.json").write_text(json.dumps({"format": 0}))
    entry = cache.entry("e", _build, _no_warning)
    assert bytes(entry.bytes("text")) == b"hello"
    cache.entry("e", _never, _no_warning)


def test_a_failing_builder_leaves_nothing_behind(folder: Path) -> None:
    def fail(place: Path) -> Mapping[str, Any]:
        (place / "half").write_bytes(b"x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.entry("e", fail, _no_warning)
    assert [p.name for p in folder.iterdir()] == ["e.lock"]


def test_old_drafts_and_entries_unused_for_long_are_removed_and_nothing_else(
    folder: Path,
) -> None:
    hours = {
        "index-1.draft-old": 2,
        "index-2.draft-new": 0,
        "corpus-unused": 24 * 100,
        "corpus-used": 24 * 80,
        "venvs": 24 * 100,
    }
    for name, age in hours.items():
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (time.time() - 3600 * age,) * 2)
    cache.entry("index-e", _build, _no_warning)
    left = {p.name for p in folder.iterdir()}
    assert left == {"index-2.draft-new", "corpus-used", "venvs", "index-e", "index-e.lock"}


def test_opening_an_entry_marks_it_as_used(folder: Path) -> None:
    cache.entry("index-e", _build, _no_warning)
    os.utime(folder / "index-e", (time.time() - 3600 * 24 * 80,) * 2)
    cache.entry("index-e", _never, _no_warning)
    assert time.time() - (folder / "index-e").stat().st_mtime < 60


def test_an_unwritable_cache_is_done_without_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setenv("TOKENSWARM_CACHE", str(file / "cache"))
    said: list[str] = []
    entry = cache.entry("e", _build, said.append)
    assert bytes(entry.bytes("text")) == b"hello"
    (warning,) = said
    assert str(file / "cache") in warning
    assert "TOKENSWARM_CACHE" in warning
    source = tmp_path / "data"
    source.write_bytes(b"abc")
    assert cache.file_digest(source).startswith("ba7816bf")


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.folder().name == "cache"
    monkeypatch.delenv("TOKENSWARM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.folder() == Path("/x/tokenswarm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "tokenswarm"


def test_a_files_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    first = cache.file_digest(path)
    assert cache.file_digest(path) == first
    path.write_bytes(b"abcd")
    assert cache.file_digest(path) != first


def _build_slowly(folder: Path) -> Mapping[str, Any]:
    with Path(os.environ["COUNTER"]).open("a") as counter:
        counter.write("built\n")
    time.sleep(0.3)  # long enough for the others to find the lock taken
    return _build(folder)


def _open(_: int) -> bytes:
    return bytes(cache.entry("shared", _build_slowly, _no_warning).bytes("text"))


def test_several_builders_at_once_build_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "counter"
    monkeypatch.setenv("COUNTER", str(counter))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_open, range(3), chunksize=1) == [b"hello"] * 3
    assert counter.read_text() == "built\n"
