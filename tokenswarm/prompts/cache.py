"""Build a set of files once, keep it on disk, share it between processes as memory maps.

Knows files, locks and checksums; knows nothing about text or tokens. The subtle rule: an entry
appears under its final name only when it is complete (atomic rename of a folder), so a reader
needs no lock; the lock only keeps several builders from doing the same work at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.records import BadInput

_log = logging.getLogger(__name__)
_META = "meta.json"
_KINDS = ("corpus-", "index-", "digest-")  # other things may live in the same folder
_FORMAT = 1
_POLL_S = 0.05
_ABANDONED_S = 3600.0  # a draft of that age has no builder any more
_DAY_S = 86400.0
_UNUSED_S = 90 * _DAY_S

Build = Callable[[Path], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Files of one entry, mapped into memory, and the facts written beside them."""

    maps: Mapping[str, memoryview]
    facts: Mapping[str, Any]

    def bytes(self, name: str) -> memoryview:
        """A file as bytes."""
        return self.maps[name]

    def numbers(self, name: str) -> memoryview[int]:
        """A file of unsigned 32-bit integers."""
        return self.maps[name].cast("I")


def folder() -> Path:
    """Where entries are kept: TOKENSWARM_CACHE, else below XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("TOKENSWARM_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "tokenswarm"


def key(*parts: str) -> str:
    """Name of an entry for these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def entry(name: str, build: Build, warn: Callable[[str], None]) -> Entry:
    """The entry of that name, built when it is not there or does not check out.

    build writes its files into the folder it is given and returns facts to keep. An unwritable
    cache is no reason to stop: the entry is then built in a temporary folder, and warn is told.
    """
    place = folder() / name
    found = _open(place)
    if found is not None:
        return found
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place):
            found = _open(place)
            if found is not None:
                return found
            _build(place, build)
    except OSError as error:
        warn(
            f"cannot write to the cache {place.parent} ({error.strerror or error}); building for"
            " this process only. Set TOKENSWARM_CACHE to a folder that can be written to."
        )
        return _build_unshared(build)
    found = _open(place)
    if found is None:
        raise BadInput(
            f"{place}: was just written and cannot be read back. Is the disk full or broken?"
        )
    return found


def file_digest(path: Path) -> str:
    """Sha256 of a file's content, remembered by path, size and time of change."""
    stat = path.stat()
    known = [str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    memo = folder() / f"digest-{key(*map(str, known))}"
    try:
        digest = memo.read_text(encoding="ascii")
        if len(digest) == 64:
            return digest
    except (OSError, ValueError):
        pass
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        draft = memo.with_name(f"{memo.name}.{os.getpid()}")
        draft.write_text(digest, encoding="ascii")
        draft.replace(memo)
    except OSError:
        pass  # entry() says that the cache cannot be written
    return digest


def _open(place: Path) -> Entry | None:
    try:
        meta = json.loads((place / _META).read_bytes())
        if meta["format"] != _FORMAT:
            return None
        maps = {name: _map(place / name) for name in meta["files"]}
        for name, (size, crc) in meta["files"].items():
            if len(maps[name]) != size or zlib.crc32(maps[name]) != crc:
                _log.warning("%s: broken cache file, building it again", place / name)
                return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s: broken cache entry (%s), building it again", place, error)
        return None
    _mark_used(place)
    return Entry(maps, meta["facts"])


def _mark_used(place: Path) -> None:
    try:
        if time.time() - place.stat().st_mtime > _DAY_S:
            os.utime(place)
    except OSError:
        pass  # a cache that can only be read is as good


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _build(place: Path, build: Build) -> None:
    _sweep(place.parent)
    draft = Path(tempfile.mkdtemp(prefix=f"{place.name}.draft-", dir=place.parent))
    try:
        _fill(draft, build)
        if place.exists():  # a broken one: move it away first, a folder cannot be replaced
            broken = draft.with_name(f"{draft.name}-broken")
            place.rename(broken)
            shutil.rmtree(broken, ignore_errors=True)
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _build_unshared(build: Build) -> Entry:
    with tempfile.TemporaryDirectory(prefix="tokenswarm-") as name:
        draft = Path(name)
        _fill(draft, build)
        found = _open(draft)  # the maps outlive the folder
    if found is None:
        raise BadInput(
            f"the temporary folder {tempfile.gettempdir()} does not keep what is written"
        )
    return found


def _fill(draft: Path, build: Build) -> None:
    facts = build(draft)
    files = {}
    for path in sorted(draft.iterdir()):
        content = _map(path)
        files[path.name] = (len(content), zlib.crc32(content))
    meta = {"format": _FORMAT, "files": files, "facts": dict(facts)}
    (draft / _META).write_text(json.dumps(meta), encoding="utf-8")


def _sweep(parent: Path) -> None:
    """Remove drafts that a killed builder left behind, and entries unused for long."""
    for old in parent.iterdir():
        limit = _ABANDONED_S if ".draft-" in old.name else _UNUSED_S
        try:
            if old.name.startswith(_KINDS) and time.time() - old.stat().st_mtime > limit:
                if old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)
                else:
                    old.unlink()
        except OSError:
            continue  # another builder was quicker


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """Hold the builder's lock of an entry; it is free again when its holder dies."""
    with (place.parent / f"{place.name}.lock").open("ab") as file:
        waited = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waited:
                    _log.info("waiting for another process that is building %s", place.name)
                waited = True
                time.sleep(_POLL_S)  # not a blocking flock: other greenlets must go on
        yield
