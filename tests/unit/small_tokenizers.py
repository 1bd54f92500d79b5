"""Tokenizers of four kinds, trained on the sample corpus in a second, and workloads with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers as train

from tokenswarm import workload

SAMPLE = Path(__file__).parents[2] / "workloads" / "sample_sharegpt.json"
MARKS = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if loud %}!!!{% endif %}"
)
KINDS = ("byte_bpe", "sp_bpe", "unigram", "wordpiece")


@lru_cache(maxsize=1)
def sample_texts() -> tuple[str, ...]:
    """Everything that is said in the sample corpus."""
    items = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return tuple(turn["value"] for item in items for turn in item["conversations"])


def make(folder: Path, kind: str, template: str | None = TEMPLATE) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json of that kind."""
    folder.mkdir(parents=True, exist_ok=True)
    _TRAINED[kind]().save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<s>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _byte_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _texts(),
        train.BpeTrainer(
            vocab_size=1500,
            special_tokens=["<s>", *MARKS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.enable_truncation(max_length=64)  # a trap that files in the wild have
    return tokenizer


def _sp_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # only to train on
    tokenizer.train_from_iterator(
        _texts(),
        train.BpeTrainer(
            vocab_size=1500,
            special_tokens=["<unk>", "<s>", *MARKS, *(f"<0x{b:02X}>" for b in range(256))],
            show_progress=False,
        ),
    )
    file = json.loads(tokenizer.to_str())
    file["pre_tokenizer"] = None
    bytes_tokens = [t for t in file["added_tokens"] if t["content"].startswith("<0x")]
    file["added_tokens"] = [t for t in file["added_tokens"] if t not in bytes_tokens]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        _texts(),
        train.UnigramTrainer(
            vocab_size=1500,
            special_tokens=["</s>", "<unk>", *MARKS],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        _texts(),
        train.WordPieceTrainer(
            vocab_size=1500,
            special_tokens=["[UNK]", "[CLS]", "[SEP]", *MARKS],
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def _texts() -> Iterator[str]:
    yield from sample_texts()[:400]


_TRAINED = {
    "byte_bpe": lru_cache(_byte_bpe),
    "sp_bpe": lru_cache(_sp_bpe),
    "unigram": lru_cache(_unigram),
    "wordpiece": lru_cache(_wordpiece),
}


def make_workload(tokenizer: Path | str | None, *, chat: bool = False, **prompts: Any) -> Any:
    """A workload; keys of prompts and, with seed, nonce, extra_body or tokenizer_, of others."""
    seed, nonce = prompts.pop("seed", 7), prompts.pop("nonce", "n1")
    extra_body = prompts.pop("extra_body", {})
    more = prompts.pop("tokenizer_", {})
    section = {"source": "sharegpt", "path": str(SAMPLE), "output_tokens": 20, **prompts}
    content: dict[str, Any] = {
        "name": "test",
        "seed": seed,
        "nonce": nonce,
        "backend": {
            "kind": "openai-chat" if chat else "openai-completions",
            "model": "m",
            "extra_body": extra_body,
        },
        "prompts": section,
        "load": {"users": 1, "requests": 1},
    }
    if tokenizer is not None:
        source = "tiktoken" if isinstance(tokenizer, str) else "hf"
        content["tokenizer"] = {"source": source, "path": str(tokenizer), **more}
    return workload.parse(json.dumps(content))
