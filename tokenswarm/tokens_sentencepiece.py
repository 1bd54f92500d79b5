"""sentencepiece `.model` files without a tokenizer.json beside them.

Knows the sentencepiece library. The subtle rule: the file does not say whether a server puts a
BOS in front; servers of models with such files do when the vocabulary has one, so we do too
(tokenizer.add_special_tokens: false for those that do not).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenswarm.records import BadInput
from tokenswarm.tokens import Form, byte_offsets, digest_of, words_of


class SentencePieceCodec:
    """A `sentencepiece.SentencePieceProcessor`."""

    def __init__(self, processor: Any, digest: str, version: str) -> None:
        self._processor = processor
        self._bos = [processor.bos_id()] if processor.bos_id() >= 0 else []
        self.digest = digest
        self.version = f"sentencepiece {version}"

    @classmethod
    def from_file(cls, file: Path) -> SentencePieceCodec:
        """Codec of a model file; BadInput when it is none."""
        import sentencepiece

        data = file.read_bytes()
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        except (RuntimeError, ValueError, OSError) as error:
            raise BadInput(
                f"{file}: neither a sentencepiece model nor a rank file: {error}. Fetch it again."
            ) from error
        return cls(processor, digest_of(data), sentencepiece.__version__)

    def lengths(self, texts: Sequence[str], form: Form) -> list[int]:
        """Number of tokens of each text."""
        extra = len(self._bos) if form is Form.COMPLETION else 0
        batch = self._processor.encode(list(texts), return_type=int, num_threads=1)
        return [extra + len(ids) for ids in batch]

    def ids(self, text: str, form: Form) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._processor.encode(text, return_type=int)
        return self._bos + ids if form is Form.COMPLETION else ids

    def starts(self, texts: Sequence[str]) -> Iterator[array[int]]:
        """UTF-8 offsets of the tokens' first characters."""
        for text in texts:
            mapping = self._processor.encode(text, return_type="offset_mapping")
            firsts = [first for first, _ in mapping["offsets"]]  # in characters
            if not text.isascii():
                place = byte_offsets(text)
                firsts = [place[first] for first in firsts]
            yield array("I", firsts)

    def vocabulary(self) -> list[str]:
        """Whole-word tokens."""
        size = self._processor.get_piece_size()
        return words_of({self._processor.id_to_piece(i): i for i in range(size)})
