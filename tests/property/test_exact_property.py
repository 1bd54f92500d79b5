"""Exact lengths over real tokenizers, 16 to 32,768 tokens, in English and a mix of scripts.

Every prompt is counted anew, one at a time, through the library and the template themselves: 100 %
must be exact, or be refused with the numbers. Tokenizers are fetched by tests/fetch_tokenizers.py;
what is missing is skipped. TOKENSWARM_PROPERTY_SCALE=10 makes ten times as many prompts.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import fetch_tokenizers
from small_tokenizers import KINDS, make, make_workload, sample_texts

from tokenswarm import tokens
from tokenswarm.prompts import open_source
from tokenswarm.prompts.exact import ExactLengthError
from tokenswarm.records import Prompt
from tokenswarm.tokens import Form, Tokenizer

SCALE = float(os.environ.get("TOKENSWARM_PROPERTY_SCALE", "1"))
# Length -> prompts of it, for one tokenizer, text and endpoint.
LENGTHS = {16: 24, 100: 24, 512: 12, 1000: 12, 3000: 5, 5000: 4, 8192: 3, 32768: 1}
REAL = ("cl100k_base", *fetch_tokenizers.NAMES)
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }}"
    " [/INST]{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
SCRIPTS = (
    (0x4E00, 0x9FA5), (0x3041, 0x3096), (0xAC00, 0xD7A3), (0x0400, 0x044F), (0x0E01, 0x0E2E),
    (0x0621, 0x064A), (0x0905, 0x0939), (0x03B1, 0x03C9), (0x05D0, 0x05EA), (0x1F600, 0x1F64F),
    (0x0061, 0x007A), (0x00E0, 0x00FF), (0x2460, 0x2473), (0x0300, 0x030C), (0xFB00, 0xFB06),
    (0x1F1E6, 0x1F1FF), (0x20000, 0x200FF),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def corpora() -> Iterator[Path]:
    """A cache of its own; the fetched tokenizers are found in the usual one first."""
    paths = {name: fetch_tokenizers.path_of(name) for name in fetch_tokenizers.NAMES}
    _paths.update({name: path for name, path in paths.items() if path is not None})
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENSWARM_CACHE", name)
        patch.setenv("TOKENIZERS_PARALLELISM", "true")
        folder = Path(name)
        (folder / "english.txt").write_text("\n\n".join(t for t in sample_texts() if t.isascii()))
        (folder / "mixed.txt").write_text("\n\n".join(_mixed(600)))
        _texts["english"] = folder / "english.txt"
        _texts["mixed"] = folder / "mixed.txt"
        yield folder
        _small.cache_clear()


_paths: dict[str, Path] = {}
_texts: dict[str, Path] = {}


def _mixed(passages: int) -> list[str]:
    """Passages of words in many scripts, with emoji, combining marks, ligatures and numbers."""
    draw = random.Random(3)
    texts = [t for t in sample_texts() if not t.isascii()]
    for _ in range(passages):
        words = []
        for _ in range(draw.randrange(4, 60)):
            low, high = draw.choice(SCRIPTS)
            word = "".join(chr(draw.randrange(low, high + 1)) for _ in range(draw.randrange(1, 9)))
            if draw.random() < 0.15:
                word = f"{draw.choice('aeou')}\u0301{word}"
            words.append(word + draw.choice(["", "", "", ",", "。", ".", "!", "\n", " 12", "\t-"]))
        texts.append(draw.choice(["", " "]).join(words[:8]) + " " + " ".join(words[8:]))
    return texts


def _real(name: str) -> tuple[Any, bool]:
    """(tokenizer path for a workload, has a chat template)."""
    if name == "cl100k_base":
        return name, False
    if name not in _paths:
        pytest.skip(f"tokenizer {name} is not in the cache; run python tests/fetch_tokenizers.py")
    return _paths[name], name not in ("gptoss", "claude", "mistral_tekken", "mistral_v3_sp")


def _load(name: str, path: Any, folder: Path) -> Tokenizer:
    source = "tiktoken" if name == "cl100k_base" else "hf"
    template = None
    if name == "llama2":
        template = folder / "llama2.jinja"
        template.write_text(LLAMA2)
    given = str(template) if template else None
    return tokens.load(tokens.TokenizerSpec(source, str(path), chat_template=given))


def _plain_count(tokenizer: Tokenizer, prompt: Prompt) -> int:
    """A recount that shares nothing with the search: one text, ids, the template itself."""
    if prompt.messages is not None:
        text = tokenizer.render(prompt.messages)
        return len(tokenizer.codec.ids(text, Form.RENDERED))
    return len(tokenizer.codec.ids(prompt.text or "", Form.COMPLETION))


def _expect_floor(source: Any, want: int, error: ExactLengthError, number: int) -> None:
    """A refusal is right only below the floor, and says both numbers."""
    floor = source.floor(source.salter.request(number))
    assert want < floor
    assert str(error).startswith(f"{want} tokens is below the floor of {floor} ")


@pytest.mark.parametrize("name", REAL)
def test_every_prompt_is_exact_or_refused(name: str, corpora: Path) -> None:
    path, chat = _real(name)
    tokenizer = _load(name, path, corpora)
    made = refused = 0
    for text in ("english", "mixed"):
        for as_chat in (False, True) if chat else (False,):
            workload = make_workload(
                path,
                chat=as_chat,
                source="text",
                path=str(_texts[text]),
                input_tokens=max(LENGTHS),
                seed=len(name),
            )
            source: Any = open_source(workload, tokenizer=tokenizer)
            for want, number in LENGTHS.items():
                source.lengths = lambda _, want=want: (want, 1)
                try:
                    prompts = source.prompts(range(max(1, int(number * SCALE))))
                except ExactLengthError as error:
                    _expect_floor(source, want, error, 0)
                    refused += 1
                    continue
                counts = {_plain_count(tokenizer, prompt) for prompt in prompts}
                assert counts == {want}, (name, text, as_chat)
                made += len(prompts)
    assert made > 80
    assert refused <= 2


@pytest.mark.parametrize("name", REAL)
def test_groups_share_exactly_p_tokens(name: str, corpora: Path) -> None:
    path, chat = _real(name)
    tokenizer = _load(name, path, corpora)
    for shared, want in ((64, 128), (512, 1000), (1024, 1500)):
        for as_chat, place in ((False, "user"), (True, "user"), (True, "system")):
            if (as_chat and not chat) or (place == "system" and name == "llama2"):
                continue
            workload = make_workload(
                path,
                chat=as_chat,
                source="text",
                path=str(_texts["english"]),
                input_tokens=want,
                shared_prefix_tokens=shared,
                prefix_groups=2,
                options={"prefix_in": place},
            )
            source = open_source(workload, tokenizer=tokenizer)
            groups: dict[tuple[int, ...], list[int]] = {}
            for prompt in source.prompts(range(16)):
                if prompt.messages is not None:
                    text = tokenizer.render(prompt.messages)
                    ids = tokenizer.codec.ids(text, Form.RENDERED)
                else:
                    ids = tokenizer.codec.ids(prompt.text or "", Form.COMPLETION)
                assert len(ids) == want
                groups.setdefault(tuple(ids[:shared]), []).append(ids[shared])
            assert len(groups) == 2, (name, shared, place)
            for followers in groups.values():
                assert len(set(followers)) == len(followers)


@pytest.mark.parametrize("name", REAL)
def test_every_turn_of_a_session_is_exact_and_extends_the_one_before(
    name: str, corpora: Path
) -> None:
    path, chat = _real(name)
    tokenizer = _load(name, path, corpora)
    workload = make_workload(
        path, chat=chat, source="conversations", input_tokens=150, output_tokens=60
    )
    source = open_source(workload, tokenizer=tokenizer)
    history: list[int] = []
    for prompt in source.prompts(range(int(30 * max(1, SCALE)))):
        assert _plain_count(tokenizer, prompt) == prompt.input_tokens
        if prompt.messages is not None:
            whole = tokenizer.encode(tokenizer.render(prompt.messages), Form.RENDERED)
            text = tokenizer.render(prompt.messages, add_generation_prompt=False)
            kept = tokenizer.encode(text, Form.RENDERED)
        else:
            whole = kept = tokenizer.encode(prompt.text or "")
        if prompt.turn:
            assert whole[: len(history)] == history
        history = kept


@pytest.mark.parametrize("name", ["llama3_1", "qwen3", "gemma3", "deepseek_v3"])
def test_templates_render_as_transformers_renders_them(name: str, corpora: Path) -> None:
    from transformers import AutoTokenizer

    path, _ = _real(name)
    ours, theirs = _load(name, path, corpora), AutoTokenizer.from_pretrained(str(path))
    function = {"name": "wetter", "description": "für Städte", "parameters": {"type": "object"}}
    chats = [
        [{"role": "user", "content": " Hi there\n"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "A <b>"},
            {"role": "assistant", "content": "é"},
            {"role": "user", "content": "C"},
        ],
    ]
    for messages in chats:
        for tools in (None, [{"type": "function", "function": function}]):
            text = theirs.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
            assert ours.render(messages, tools) == text
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.count_chat(messages, tools) == len(ids)


@lru_cache
def _small(kind: str) -> Tokenizer:
    folder = make(Path(tempfile.mkdtemp()) / kind, kind)
    return tokens.load(tokens.TokenizerSpec("hf", str(folder)))


@pytest.mark.parametrize("text", ["english", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    want=st.integers(8, 2500),
    number=st.integers(0, 10**9),
    seed=st.integers(0, 2**32),
    chat=st.booleans(),
    nonce=st.text(max_size=5),
)
def test_any_length_number_seed_and_nonce(
    kind: str, text: str, want: int, number: int, seed: int, chat: bool, nonce: str
) -> None:
    tokenizer = _small(kind)
    workload = make_workload(
        Path("unused"),
        chat=chat,
        source="text",
        path=str(_texts[text]),
        input_tokens=2500,
        seed=seed,
        nonce=nonce,
    )
    source: Any = open_source(workload, tokenizer=tokenizer)
    source.lengths = lambda _: (want, 1)
    try:
        prompt = source.prompt(number)
    except ExactLengthError as error:
        _expect_floor(source, want, error, number)
    else:
        assert _plain_count(tokenizer, prompt) == want
        assert source.prompts([number + 1, number])[1] == prompt
