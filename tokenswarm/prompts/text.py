"""Any text as the corpus: a file, or all text files of a folder, in any language.

Knows files and paragraphs. The subtle rule: files are read in the order of their names, so the
same folder gives the same prompts everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenswarm.prompts import cache
from tokenswarm.prompts.corpus import Passage, open_corpus
from tokenswarm.prompts.synthesis import Synthesis, least_bytes
from tokenswarm.records import BadInput
from tokenswarm.tokens import Tokenizer, digest_of

SUFFIXES = (".txt", ".md", ".rst", ".text")
_LONGEST = 4000  # characters of a passage; longer paragraphs start several


def open_text(workload: Any, tokenizer: Tokenizer) -> Synthesis:
    """Prompts cut from the user's own text."""
    warnings: list[str] = []
    if not workload.prompts.path:
        raise BadInput("prompts.path: is not set. Name a text file, or a folder of them.")
    files = text_files(Path(workload.prompts.path).expanduser())
    corpus = open_corpus(
        digest_of("text", *(cache.file_digest(file) for file in files)),
        lambda: (passage for file in files for passage in passages_of(file)),
        list,
        least_bytes=least_bytes(workload),
        warn=warnings.append,
    )
    if not len(corpus.starts):
        raise BadInput(f"{workload.prompts.path}: holds no text that can be used.")
    return Synthesis(workload, tokenizer, corpus, warnings)


def text_files(path: Path) -> list[Path]:
    """The file itself, or the text files below a folder, ordered by name."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(f"{path}: no such file or folder (looked in {Path.cwd()}).")
    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
    if not files:
        raise BadInput(f"{path}: holds no text file ({', '.join(SUFFIXES)}).")
    return files


def passages_of(file: Path) -> Iterator[Passage]:
    """The paragraphs of a file: what blank lines separate."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            paragraph: list[str] = []
            size = 0
            for line in lines:
                if (not line.strip() or size > _LONGEST) and paragraph:
                    yield from _pieces("".join(paragraph))
                    paragraph, size = [], 0
                if line.strip():
                    paragraph.append(line)
                    size += len(line)
            yield from _pieces("".join(paragraph))
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{file}: is not UTF-8 text (byte {error.start} of a line: {error.reason}). Convert it."
        ) from error
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror}.") from error


def _pieces(text: str) -> Iterator[Passage]:
    at = 0
    while at < len(text):
        end = at + _LONGEST
        if end < len(text):
            blank = text.rfind(" ", at + _LONGEST // 2, end)
            end = blank if blank > 0 else end
        yield Passage(text[at:end])
        at = end
