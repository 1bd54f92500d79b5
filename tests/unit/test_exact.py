"""Exact lengths: every prompt counts as asked by a plain recount, or is refused with numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import KINDS, make, make_workload, sample_texts

from tokenswarm.prompts import exact, index, open_source, salt
from tokenswarm.prompts.corpus import clean, names_special_token
from tokenswarm.prompts.source import chat_frame
from tokenswarm.records import Prompt
from tokenswarm.tokens import Form

LENGTHS = (16, 17, 33, 100, 511, 1000)


@pytest.fixture(scope="module", autouse=True)
def shared_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENSWARM_CACHE", name)
        _folder.cache_clear()
        yield
        _folder.cache_clear()


@lru_cache
def _folder(kind: str) -> Path:
    return make(Path(tempfile.mkdtemp()) / kind, kind)


def _open(kind: str, **more: Any) -> Any:
    tokenizer = kind if kind == "cl100k_base" else _folder(kind)
    return open_source(make_workload(tokenizer, **more))


def _text(prompt: Prompt) -> str:
    if prompt.messages is not None:
        return str(prompt.messages[-1]["content"])
    return prompt.text or ""


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_length_is_met_exactly(kind: str, chat: bool) -> None:
    for want in LENGTHS:
        source = _open(kind, chat=chat, input_tokens=want + 30, options={"verify": "full"})
        for prompt in source.prompts(range(12)):
            assert prompt.input_tokens == want + 30
            assert prompt.output_tokens == 20
            assert source.count(prompt) == want + 30
        assert source.cutter.misses == 0


def test_every_length_in_a_row_is_met_with_cl100k() -> None:
    source = _open("cl100k_base", input_tokens=60)
    for want in range(12, 60):
        source.lengths = lambda _, want=want: (want, 1)
        assert [source.count(p) for p in source.prompts(range(3))] == [want] * 3


def test_a_length_below_the_floor_is_refused_with_the_numbers() -> None:
    source = _open("byte_bpe", chat=True, input_tokens=9)
    with pytest.raises(exact.ExactLengthError) as caught:
        source.prompt(0)
    words = str(caught.value)
    around = source.tokenizer.count_chat([{"role": "user", "content": ""}])
    floor = source.tokenizer.count_chat(
        [{"role": "user", "content": source.salter.request(0).rstrip()}]
    )
    assert words == (
        f"9 tokens is below the floor of {floor} for tokenizer {source.tokenizer.name} (template"
        f" and special tokens: {around}, words that make the prompt unique: {floor - around})."
        f" Ask for at least {floor} tokens."
    )
    at_the_floor = _open("byte_bpe", chat=True, input_tokens=floor)
    assert at_the_floor.count(at_the_floor.prompt(0)) == floor


def test_a_text_shorter_than_the_prompt_is_repeated_and_said(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("One paragraph of some words.\n\nAnother one, a little longer than that.\n")
    source = _open("byte_bpe", source="text", path=str(path), input_tokens=3000)
    assert source.count(source.prompt(5)) == 3000
    assert any("is repeated" in warning for warning in source.warnings)


def test_prompts_do_not_depend_on_batches_order_or_worker() -> None:
    whole = _open("byte_bpe", input_tokens=300).prompts(range(40))
    again = _open("byte_bpe", input_tokens=300)
    assert [again.prompt(i) for i in reversed(range(40))] == whole[::-1]
    striped = [again.prompts(range(k, 40, 4)) for k in range(4)]
    assert [striped[i % 4][i // 4] for i in range(40)] == whole


def test_another_nonce_changes_the_salt_and_nothing_else() -> None:
    one = _open("cl100k_base", input_tokens=200, nonce="a").prompts(range(30))
    two = _open("cl100k_base", input_tokens=200, nonce="b").prompts(range(30))
    for a, b in zip(one, two, strict=True):
        salt_a, _, body_a = _text(a).partition(": ")
        salt_b, _, body_b = _text(b).partition(": ")
        assert salt_a != salt_b
        assert body_a == body_b
        assert a.input_tokens == b.input_tokens


def test_another_seed_changes_the_bodies() -> None:
    one = _open("cl100k_base", input_tokens=200, seed=1).prompts(range(10))
    two = _open("cl100k_base", input_tokens=200, seed=2).prompts(range(10))
    assert not {_text(p).partition(": ")[2] for p in one} & {
        _text(p).partition(": ")[2] for p in two
    }


def test_the_first_60_characters_differ_between_all_prompts_and_between_runs() -> None:
    prompts = [
        p
        for nonce in ("a", "b")
        for p in _open("byte_bpe", chat=True, input_tokens=60, nonce=nonce).prompts(range(300))
    ]
    assert len({_text(p)[:60] for p in prompts}) == 600


def test_salts_can_be_left_out() -> None:
    source = _open("byte_bpe", input_tokens=100, options={"salt": False})
    prompt = source.prompt(3)
    assert source.count(prompt) == 100
    assert _text(prompt)[:20] in bytes(source.corpus.text).decode()


def test_the_text_is_a_slice_of_the_corpus() -> None:
    source = _open("cl100k_base", input_tokens=400)
    text = bytes(source.corpus.text).decode()
    bodies = [_text(p).partition(": ")[2] for p in source.prompts(range(50))]
    assert sum(body in text for body in bodies) >= 40  # the rest end in filler words


def test_system_prompt_and_tools_are_inside_the_count() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    source = _open(
        "byte_bpe",
        chat=True,
        input_tokens=200,
        system_prompt="You are terse.",
        extra_body={"tools": tools},
    )
    prompt = source.prompt(0)
    assert prompt.messages is not None
    assert prompt.messages[0] == {"role": "system", "content": "You are terse."}
    assert source.tokenizer.count_chat(prompt.messages, tools) == 200
    assert source.tokenizer.count_chat(prompt.messages) < 200
    plain = _open("byte_bpe", input_tokens=200, system_prompt="You are terse.")
    assert (plain.prompt(0).text or "").startswith("You are terse.\n\n")
    assert plain.count(plain.prompt(0)) == 200


def test_variables_for_the_template_in_the_request_are_inside_the_count() -> None:
    loud = {"chat_template_kwargs": {"loud": True}}
    source = _open("byte_bpe", chat=True, input_tokens=100, extra_body=loud)
    prompt = source.prompt(0)
    assert prompt.messages is not None
    assert source.tokenizer.render(prompt.messages).endswith("!!!")
    assert source.count(prompt) == 100


def test_token_ids_are_those_of_the_text() -> None:
    text = _open("byte_bpe", input_tokens=100).prompt(2)
    ids = _open("byte_bpe", input_tokens=100, as_token_ids=True).prompt(2)
    assert ids.text is None
    assert ids.token_ids is not None
    assert len(ids.token_ids) == ids.input_tokens == 100
    source = _open("byte_bpe", input_tokens=100)
    assert list(ids.token_ids) == source.tokenizer.encode(text.text or "")


def test_the_probe_is_short_asks_for_one_token_and_has_a_salt_of_its_own() -> None:
    source = _open("byte_bpe", chat=True, input_tokens=500)
    probe = source.probe_prompt()
    assert probe.index == -1
    assert probe.output_tokens == 1
    assert source.count(probe) == probe.input_tokens < 80
    assert _text(probe)[:40] not in {_text(p)[:40] for p in source.prompts(range(200))}


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(("shared", "want"), [(40, 80), (300, 700)])
def test_a_group_shares_exactly_p_tokens(chat: bool, shared: int, want: int) -> None:
    source = _open(
        "byte_bpe",
        chat=chat,
        input_tokens=want,
        shared_prefix_tokens=shared,
        prefix_groups=2,
    )
    groups: dict[tuple[int, ...], list[int]] = {}
    for prompt in source.prompts(range(40)):
        ids = _ids(source, prompt)
        assert len(ids) == want
        groups.setdefault(tuple(ids[:shared]), []).append(ids[shared])
    assert len(groups) == 2
    for followers in groups.values():
        assert len(set(followers)) == len(followers)


def test_a_shared_prefix_can_be_the_system_message() -> None:
    source = _open(
        "unigram",
        chat=True,
        input_tokens=300,
        shared_prefix_tokens=100,
        options={"prefix_in": "system"},
    )
    prompts = source.prompts(range(20))
    ids = [_ids(source, prompt) for prompt in prompts]
    assert {len(i) for i in ids} == {300}
    assert len({tuple(i[:100]) for i in ids}) == 1
    assert len({tuple(i[:101]) for i in ids}) == 20
    assert prompts[0].messages is not None
    assert prompts[0].messages[0] == prompts[1].messages[0]  # type: ignore[index]


def test_shared_prefixes_differ_between_runs() -> None:
    one, two = (
        _open("byte_bpe", input_tokens=200, shared_prefix_tokens=100, nonce=nonce).prompt(0)
        for nonce in ("a", "b")
    )
    assert _text(one)[:40] != _text(two)[:40]


def test_zipf_prefers_the_first_group() -> None:
    source = _open(
        "byte_bpe",
        input_tokens=80,
        shared_prefix_tokens=30,
        prefix_groups=8,
        prefix_popularity="zipf",
    )
    heads: dict[str, int] = {}
    for i in range(800):
        head = source.prefixes.group_of(i).head
        heads[head] = heads.get(head, 0) + 1
    shares = sorted((n / 800 for n in heads.values()), reverse=True)
    weights = [1 / k for k in range(1, 9)]
    for share, weight in zip(shares, weights, strict=True):
        # 4.5 standard deviations of a binomial share: a false alarm in 100,000 runs, fixed seed
        expected = weight / sum(weights)
        assert abs(share - expected) < 4.5 * (expected * (1 - expected) / 800) ** 0.5


def test_a_shared_prefix_below_its_floor_is_refused() -> None:
    source = _open("byte_bpe", chat=True, input_tokens=100, shared_prefix_tokens=3)
    with pytest.raises(exact.ExactLengthError, match=r"prompts\.shared_prefix_tokens: 3 tokens is"):
        source.prompt(0)


def _ids(source: Any, prompt: Prompt) -> list[int]:
    if prompt.messages is not None:
        ids = source.tokenizer.encode(source.tokenizer.render(prompt.messages), Form.RENDERED)
    else:
        ids = source.tokenizer.encode(prompt.text)
    return list(ids)


def test_a_template_that_changes_the_text_is_still_exact() -> None:
    folder = make(
        Path(tempfile.mkdtemp()) / "upper",
        "byte_bpe",
        "{% for m in messages %}[{{ m.content | upper }}]{% endfor %}",
    )
    source = open_source(make_workload(folder, chat=True, input_tokens=150))
    assert source.frame.before is None
    for prompt in source.prompts(range(10)):
        assert source.tokenizer.count_chat(prompt.messages) == 150


def test_a_frame_knows_when_a_template_only_surrounds_the_text() -> None:
    source = _open("byte_bpe", chat=True, input_tokens=100)
    frame = chat_frame(source.tokenizer, ())
    assert frame.before == "<|im_start|>user\n"
    assert frame.after == "<|im_end|>\n<|im_start|>assistant\n"
    assert frame.wrap("x y") == frame.render("x y")


def test_counts_that_are_wrong_when_spliced_are_found_and_made_good() -> None:
    """A tokenizer that counts long texts differently: splicing fails, the prompts do not."""
    source = _open("byte_bpe", input_tokens=900, options={"verify": "full"})
    count = source.cutter.lengths

    def odd(texts: list[str]) -> list[int]:
        return [n + (n > 600) for n, t in zip(count(texts), texts, strict=True)]

    source.cutter.lengths = odd
    for prompt in source.prompts(range(5)):
        assert odd([prompt.text or ""]) == [900]
    assert source.cutter.misses == 5


def test_the_self_test_switches_splicing_off_when_parts_do_not_add_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOKENSWARM_CACHE", str(tmp_path))
    monkeypatch.setattr(index, "_OVERLAP_BYTES", 1)
    monkeypatch.setattr(index, "_CHUNK_BYTES", 64)
    source = _open("unigram", input_tokens=1500)
    assert not source.index.splice
    assert source.count(source.prompt(0)) == 1500


def test_a_search_that_finds_nothing_says_what_it_tried() -> None:
    source = _open("byte_bpe", input_tokens=100)
    count = source.cutter.lengths
    source.cutter.lengths = lambda texts: [2 * n for n in count(texts)]  # never odd
    search = source.cutter.search(101, "a b c: ", source.context, "k")
    with pytest.raises(exact.ExactLengthError, match=r"no prompt of exactly 101 tokens .* nearest"):
        exact.run([search], source.cutter.lengths)


def test_splice_leaves_out_a_middle_between_letters() -> None:
    text = " ".join(["word"] * 400)
    parts = index.splice(text, 1000)
    assert parts is not None
    kept, q, z = parts
    assert text[: q - 1000] + text[z - 1000 :] == kept
    assert text[q - 1001].isalpha()
    assert text[q - 1000] == " "
    assert index.splice("x" * 2000, 0) is None  # no word edge
    assert index.splice("short text", 0) is None
    wide = "größe über " * 200
    kept, q, z = index.splice(wide, 0) or ("", 0, 0)
    data = wide.encode()
    assert data[:q].decode() + data[z:].decode() == kept


def test_blanks_of_every_kind_are_not_at_the_end_of_a_cut() -> None:
    text = memoryview("ab \n\t\u3000\u00a0 ".encode())
    assert exact.back_over_blanks(text, 0, len(text)) == 2
    text = memoryview("abé \u2009".encode())
    assert exact.back_over_blanks(text, 0, len(text)) == 4
    assert exact.back_over_blanks(memoryview(b"    "), 1, 4) == 1


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        (" a\r\nb\rc ", "a\nb\nc"),
        ("e\u0301 \ufeffx\u200by\x00z", "é xyz"),
        ("\ue000a\ufffd\ufe0f", "a"),
        ("tab\tstays\n\n", "tab\tstays"),
        ("\ud800x", "x"),
    ],
)
def test_text_is_cleaned(given: str, cleaned: str) -> None:
    assert clean(given) == cleaned


def test_names_of_special_tokens_are_seen() -> None:
    for text in ("<|endoftext|>", "a</s>", "[INST] x", "<bos>", "<think>", "<｜User｜>", "[SEP]"):
        assert names_special_token(text), text
    for text in ("a < b | c > d", "<b>bold</b>", "[see]", "<s p a n>"):
        assert not names_special_token(text), text


def test_no_two_salts_are_alike_and_neighbours_differ_in_the_first_word() -> None:
    words = salt.Words(("red", "green", "blue"), ("one", "two", "six", "ten"))
    salter = salt.Salter(words, 1, "n")
    assert salter.size == 48
    salts = [salter.request(i) for i in range(48)]
    assert len(set(salts)) == 48
    for i in range(0, 48, 3):
        assert {s.split()[0] for s in salts[i : i + 3]} == {"red", "green", "blue"}
    assert salter.group(0) == salts[47]
    assert [salt.Salter(words, 1, "m").request(i) for i in range(48)] != salts


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_permute_is_a_bijection(size: int) -> None:
    assert sorted(salt.permute(i, size, b"key") for i in range(size)) == list(range(size))


def test_all_salt_words_cost_the_same() -> None:
    source = _open("cl100k_base", input_tokens=100)
    salts = [source.salter.request(i) for i in range(500)]
    costs = source.tokenizer.count_batch([f"{s}Hello" for s in salts])
    assert set(costs) == {5}


def test_the_digest_follows_text_tokenizer_and_template() -> None:
    one = _open("byte_bpe", chat=True, input_tokens=100)
    assert one.digest == _open("byte_bpe", chat=True, input_tokens=90, nonce="z").digest
    assert one.digest != _open("unigram", chat=True, input_tokens=100).digest
    other = make(Path(tempfile.mkdtemp()) / "t", "byte_bpe", "{{ messages[0].content }}")
    assert one.digest != open_source(make_workload(other, chat=True, input_tokens=100)).digest


def test_the_sample_is_in_many_scripts() -> None:
    text = "".join(sample_texts())
    for script in ("äöüß", "éàç", "ñ¿", "ыж", "的一", "のを", "는고", "الم", "का", "ών", "🚲🎻"):
        assert any(letter in text for letter in script), script
