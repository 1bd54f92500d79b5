"""Hugging Face tokenizers: `tokenizer.json` through `tokenizers`, the rest through transformers.

Knows the layout of a model folder and of the hub's cache. The subtle rule: a tokenizer.json may
ship with truncation or padding switched on; both are switched off, or long prompts would all
count the same.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenswarm.chat_template import read_config
from tokenswarm.records import BadInput
from tokenswarm.tokens import Codec, Form, Spec, byte_offsets, digest_of, words_of

if TYPE_CHECKING:
    import tokenizers

_TOKENIZER_FILES = re.compile(
    r"tokenizer.*|vocab.*|merges\.txt|.*\.model|.*\.tiktoken|special_tokens_map\.json|.*\.py"
)
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


class HuggingFaceCodec:
    """A `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, digest: str) -> None:
        import tokenizers

        self.version = f"tokenizers {tokenizers.__version__}"
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.digest = digest

    def lengths(self, texts: Sequence[str], form: Form) -> list[int]:
        """Number of tokens of each text."""
        # encode_batch_fast skips the offsets; len() does not build the list of ids.
        encodings = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=form is Form.COMPLETION
        )
        return [len(e) for e in encodings]

    def ids(self, text: str, form: Form) -> list[int]:
        """Token ids of a text."""
        encoding = self._tokenizer.encode(text, add_special_tokens=form is Form.COMPLETION)
        return list(encoding.ids)

    def starts(self, texts: Sequence[str]) -> Iterator[array[int]]:
        """UTF-8 offsets of the tokens' first characters."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            firsts = [first for first, _ in encoding.offsets]  # in characters
            if not text.isascii():
                place = byte_offsets(text)
                firsts = [place[first] for first in firsts]
            yield array("I", firsts)

    def vocabulary(self) -> list[str]:
        """Whole-word tokens."""
        return words_of(self._tokenizer.get_vocab(with_added_tokens=False))


class SlowCodec:
    """A tokenizer that only transformers can run (Python code, remote code).

    It has no offsets; a token's place is found by encoding growing prefixes of the text, so the
    index is built from pieces of text that are cut at blanks.
    """

    def __init__(self, tokenizer: Any, digest: str, version: str) -> None:
        self.version = f"transformers {version}"
        self._tokenizer = tokenizer
        self.digest = digest

    def lengths(self, texts: Sequence[str], form: Form) -> list[int]:
        """Number of tokens of each text."""
        return [len(self.ids(text, form)) for text in texts]

    def ids(self, text: str, form: Form) -> list[int]:
        """Token ids of a text."""
        ids = self._tokenizer.encode(text, add_special_tokens=form is Form.COMPLETION)
        return [int(i) for i in ids]

    def starts(self, texts: Sequence[str]) -> Iterator[array[int]]:
        """UTF-8 offsets, spread evenly over each word: a first guess is all they are for."""
        for text in texts:
            starts: list[int] = []
            at = 0
            for word in re.findall(r"\s*\S+\s*$|\s*\S+", text):
                size = len(word.encode())
                number = max(1, len(self.ids(word, Form.PLAIN)))
                starts += [at] * number
                at += size
            yield array("I", starts)

    def vocabulary(self) -> list[str]:
        """Whole-word tokens."""
        return words_of(self._tokenizer.get_vocab())


def load_hf(spec: Spec) -> tuple[Codec, Path | None]:
    """Codec and folder of a Hugging Face tokenizer: folder, tokenizer.json, .model or hub id."""
    path = Path(spec.path).expanduser()
    if path.is_dir():
        folder = path
    elif path.is_file():
        if path.suffix != ".json" or "tekken" in path.name:
            from tokenswarm.tokens_tiktoken import load_model_file

            return load_model_file(path), path.parent
        return _fast(path), path.parent
    elif _HUB_ID.fullmatch(spec.path):
        folder = _hub_folder(spec.path)
    else:
        raise BadInput(
            f"tokenizer.path: no folder or file {spec.path!r} (looked in {Path.cwd()}), and it"
            " is not a hub id (owner/name). Give a folder with a tokenizer.json, the file"
            " itself, or a hub id."
        )
    return _from_folder(folder, spec), folder


def _from_folder(folder: Path, spec: Spec) -> Codec:
    config = read_config(folder / "tokenizer_config.json")
    remote = "AutoTokenizer" in (config.get("auto_map") or {})
    trusted = getattr(spec, "trust_remote_code", False)
    if remote and not trusted:
        raise BadInput(
            f"tokenizer.path: {folder} asks to run code of its own"
            f" ({config['auto_map']['AutoTokenizer']}). Set tokenizer.trust_remote_code: true if"
            " you trust it."
        )
    if (folder / "tokenizer.json").is_file() and not remote:
        return _fast(folder / "tokenizer.json")
    if not config:
        from tokenswarm.tokens_tiktoken import load_model_file

        for name in ("tekken.json", "tokenizer.model", "spiece.model", "*.tiktoken"):
            for file in sorted(folder.glob(name)):
                return load_model_file(file)
        raise BadInput(
            f"tokenizer.path: folder {folder} holds no tokenizer. Looked for tokenizer.json,"
            " tokenizer_config.json, tekken.json, tokenizer.model, spiece.model and *.tiktoken."
        )
    return _through_transformers(folder, trusted)


def _fast(file: Path) -> HuggingFaceCodec:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise BadInput(
            f"{file}: not a tokenizer.json that the `tokenizers` library"
            f" {tokenizers.__version__} can read: {error}"
        ) from error
    return HuggingFaceCodec(tokenizer, digest_of(file))


def _through_transformers(folder: Path, trusted: bool) -> Codec:
    import transformers  # 1.2 s: only for what nothing else loads

    files = sorted(f for f in folder.iterdir() if _TOKENIZER_FILES.fullmatch(f.name))
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=trusted, local_files_only=True
        )
    except Exception as error:  # transformers raises whatever its parts raise
        raise BadInput(
            f"tokenizer.path: transformers {transformers.__version__} cannot load the tokenizer"
            f" in {folder}: {error}"
        ) from error
    digest = digest_of(*files)
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return HuggingFaceCodec(fast, digest)
    return SlowCodec(tokenizer, digest, transformers.__version__)


def _hub_folder(repo: str) -> Path:
    """Folder of a hub model's tokenizer files: the local cache first, then the network."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted = ["tokenizer*", "chat_template*", "*.model", "*.tiktoken", "tekken.json"]
    wanted += ["vocab*", "merges.txt", "special_tokens_map.json", "*.py"]
    try:
        folder = Path(
            huggingface_hub.snapshot_download(repo, allow_patterns=wanted, local_files_only=True)
        )
        if any(folder.glob("tokenizer*")) or any(folder.glob("*.model")):
            return folder
    except LocalEntryNotFoundError:
        pass
    cache = huggingface_hub.constants.HF_HUB_CACHE
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise BadInput(
            f"tokenizer.path: {repo!r} is not in the hub cache ({cache}) and HF_HUB_OFFLINE is"
            " set. Give a folder with the tokenizer's files, or download it first."
        )
    try:
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=wanted))
    except Exception as error:  # network, rights and spelling all end here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        reason = reason.rstrip(".")
        raise BadInput(
            f"tokenizer.path: {repo!r} is neither a folder, nor in the hub cache ({cache}), nor"
            f" could it be downloaded: {reason}. Check the name, set HF_TOKEN for a gated model,"
            " or give a folder with the tokenizer's files."
        ) from error
