"""The text that prompts are cut from: clean passages in one file, joined by blank lines.

Knows text; knows nothing about tokens. The subtle rule: the text is in NFC, without control,
zero-width and private-use characters and without the names of special tokens, so that what a
tokenizer or a template does to text (normalise, trim) does nothing to ours.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import time
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm.prompts import cache
from tokenswarm.tokens import digest_of

_log = logging.getLogger(__name__)
RULES = "corpus-2"
JOIN = "\n\n"
MAX_PASSAGE_CHARS = 1 << 16
MAX_CORPUS_BYTES = 512 << 20
_PROGRESS_S = 2.0

# Fixed ranges, not Unicode categories: those change with the version of Python.
_UNWANTED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\uffff\U000e0000-\U0010ffff]+"
)
_SPECIAL = re.compile(
    r"<[|｜][^<>\n]{0,60}[|｜]>|</?s>|\[/?INST\]|<</?SYS>>|<(?:bos|eos|pad|unk|mask)>|"
    r"</?think>|<(?:start|end)_of_(?:turn|image)>|\[(?:CLS|SEP|MASK|PAD|UNK|gMASK)\]|"
    r"<extra_id_\d+>|<unused\d+>|\[/?(?:AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]"
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text; reply is what was answered to it; first: it opens a conversation."""

    text: str
    reply: str | None = None
    first: bool = True


@dataclass(frozen=True, slots=True)
class Corpus:
    """Clean text in memory maps.

    text is UTF-8; starts holds the offset of every passage. With replies: the answer to passage
    i is replies[reply_starts[i]:reply_starts[i + 1]], and firsts holds the passages that open
    conversations. A reply is empty where there was none.
    """

    digest: str
    replies_digest: str
    text: memoryview
    starts: memoryview[int]
    warnings: tuple[str, ...]
    distinct: int
    firsts: memoryview[int] | None = None
    replies: memoryview | None = None
    reply_starts: memoryview[int] | None = None

    def end_of(self, passage: int) -> int:
        """Offset behind a passage."""
        if passage + 1 < len(self.starts):
            return self.starts[passage + 1] - len(JOIN)
        return len(self.text)

    def cut(self, start: int, end: int) -> str:
        """The text between two offsets, both on character boundaries."""
        return str(self.text[start:end], "utf-8")

    def reply(self, passage: int) -> str:
        """What was answered to a passage."""
        if self.replies is None or self.reply_starts is None:
            return ""
        return str(
            self.replies[self.reply_starts[passage] : self.reply_starts[passage + 1]], "utf-8"
        )


def clean(text: str) -> str:
    """NFC, line feeds only, no invisible characters, no blanks at the ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _UNWANTED.sub("", text).strip()
    if text.isascii():
        return text
    # Removing a character may bring a combining mark to a new base.
    return unicodedata.normalize("NFC", text)


def names_special_token(text: str) -> bool:
    """True when a tokenizer might read a part of the text as a special token."""
    return _SPECIAL.search(text) is not None


def open_corpus(
    identity: str,
    passages: Callable[[], Iterable[Passage]],
    notes: Callable[[], list[str]],
    *,
    least_bytes: int = 0,
    with_replies: bool = False,
    warn: Callable[[str], None],
) -> Corpus:
    """The corpus of these passages, from the cache or built now.

    identity names the content (a digest); notes is asked after the passages were read. Text
    shorter than least_bytes is repeated, its passages in another order each time.
    """
    kind = "replies" if with_replies else "text"
    name = f"corpus-{cache.key(RULES, kind, identity)}"
    entry = cache.entry(name, lambda folder: _build(folder, passages(), notes, with_replies), warn)
    size = len(entry.bytes("text"))
    if size < least_bytes and not with_replies:
        rounds = -(-least_bytes // max(1, size))
        rounds = 1 << (rounds - 1).bit_length()  # few different entries for many lengths
        entry = cache.entry(
            f"corpus-{cache.key(RULES, kind, identity, str(rounds))}",
            lambda folder: _build(
                folder, _repeat(_corpus(entry), rounds), lambda: entry.facts["notes"], False
            ),
            warn,
        )
        warn(
            f"the text to cut prompts from is short ({size:,} bytes) and is repeated {rounds}"
            " times in changing order to reach the wanted lengths."
        )
    return _corpus(entry)


def _corpus(entry: cache.Entry) -> Corpus:
    with_replies = "replies" in entry.maps
    return Corpus(
        digest=entry.facts["digest"],
        replies_digest=entry.facts["replies_digest"],
        text=entry.bytes("text"),
        starts=entry.numbers("starts"),
        warnings=tuple(entry.facts["notes"]),
        distinct=entry.facts["distinct"],
        firsts=entry.numbers("firsts") if with_replies else None,
        replies=entry.bytes("replies") if with_replies else None,
        reply_starts=entry.numbers("reply_starts") if with_replies else None,
    )


def _repeat(corpus: Corpus, rounds: int) -> Iterator[Passage]:
    order = list(range(len(corpus.starts)))
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        for i in order:
            yield Passage(corpus.cut(corpus.starts[i], corpus.end_of(i)))
        shuffle(order)


def _build(
    folder: Path,
    passages: Iterable[Passage],
    notes: Callable[[], list[str]],
    with_replies: bool,
) -> dict[str, Any]:
    began, told = time.monotonic(), False
    digest = hashlib.sha256()
    starts, firsts, reply_starts = array("I"), array("I"), array("I", [0])
    seen: set[bytes] = set()
    written = dropped = cut = 0
    full = False
    opens = True
    with (folder / "text").open("wb") as text, (folder / "replies").open("wb") as replies:
        for passage in passages:
            opens = opens or passage.first
            body = clean(passage.text)
            if not body or names_special_token(body):
                dropped += bool(body)
                continue
            if len(body) > MAX_PASSAGE_CHARS:
                body = _shorten(body)
                cut += 1
            data = body.encode()
            if written + len(data) > MAX_CORPUS_BYTES:
                full = True
                break
            lead = JOIN.encode() if starts else b""
            starts.append(written + len(lead))
            text.write(lead + data)
            digest.update(lead + data)
            written += len(lead) + len(data)
            seen.add(hashlib.blake2b(data, digest_size=8).digest())
            if with_replies:
                answer = clean(passage.reply or "")
                answer = "" if names_special_token(answer) else answer
                replies.write(answer.encode())
                reply_starts.append(replies.tell())
                if opens:
                    firsts.append(len(starts) - 1)
            opens = False
            if not told and time.monotonic() - began > _PROGRESS_S:
                told = True
                _log.info("reading and cleaning the corpus; kept in the cache for the next time")
    (folder / "starts").write_bytes(starts.tobytes())
    replies_digest = ""
    if with_replies:
        (folder / "firsts").write_bytes(firsts.tobytes())
        (folder / "reply_starts").write_bytes(reply_starts.tobytes())
        replies_digest = digest_of(*(folder / n for n in ("firsts", "reply_starts", "replies")))
    else:
        (folder / "replies").unlink()
    found = list(notes())
    if dropped:
        found.append(f"{dropped:,} passages name special tokens and are not used.")
    if cut:
        found.append(f"{cut:,} passages are longer than {MAX_PASSAGE_CHARS:,} characters: cut.")
    if full:
        found.append(f"only the first {MAX_CORPUS_BYTES >> 20} MiB of the text are used.")
    return {
        "digest": digest.hexdigest(),
        "replies_digest": replies_digest,
        "distinct": len(seen),
        "notes": found,
    }


def _shorten(text: str) -> str:
    """The first part of an over-long passage, up to a blank where there is one."""
    part = text[:MAX_PASSAGE_CHARS]
    head, blank, _ = part.rpartition(" ")
    return (head if blank and len(head) > MAX_PASSAGE_CHARS // 2 else part).rstrip()
