"""The sources of prompts: questions, sessions, traces, own files, noise, text, and data sets."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import SAMPLE, make, make_workload

from tokenswarm.prompts import conversational, open_source, sharegpt
from tokenswarm.prompts.show import show
from tokenswarm.records import BadInput, Prompt
from tokenswarm.tokens import Form


@pytest.fixture(scope="module", autouse=True)
def shared_cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENSWARM_CACHE", name)
        yield


@lru_cache
def _folder() -> Path:
    return make(Path(tempfile.mkdtemp()) / "t", "byte_bpe")


def _open(**more: Any) -> Any:
    return open_source(make_workload(_folder(), **more))


# --- questions


def test_questions_are_single_turns_cut_to_length_and_taken_in_turn() -> None:
    source = _open(source="sharegpt-questions", input_tokens=120, options={"salt": False})
    number = source.distinct
    assert 10 < number < 150
    texts = [(p.text or "")[:200] for p in source.prompts(range(2 * number))]
    assert len(set(texts[:number])) == number
    assert set(texts[number:]) == set(texts[:number])
    turns = [
        source.corpus.cut(a, source.corpus.end_of(i)) for i, a in enumerate(source.corpus.starts)
    ]
    for prompt in source.prompts(range(number)):
        assert source.count(prompt) == 120
        assert any(turn.startswith((prompt.text or "")[:80]) for turn in turns)
    assert source.warnings[-1] == (
        f"{number:,} of {len(source.corpus.starts):,} answered questions have 120 tokens or more:"
        f" each is used again after every {number:,} requests."
    )


def test_questions_longer_than_any_are_refused_with_the_longest() -> None:
    source = _open(source="sharegpt-questions", input_tokens=5000)
    with pytest.raises(
        BadInput, match=r"0 of \d+ answered questions have 5,000 .*the longest: \d+"
    ):
        source.prompt(0)


def test_the_recorded_answers_length_can_be_asked_for() -> None:
    source = _open(input_tokens=80, output_tokens="from-dataset")
    for prompt in source.prompts(range(20)):
        body = (prompt.text or "").partition(": ")[2]
        passage = next(
            i
            for i, at in enumerate(source.corpus.starts)
            if body.startswith(source.corpus.cut(at, source.corpus.end_of(i))[:30])
        )
        replies = {
            source.tokenizer.count_plain(source.corpus.reply(p)) for p in (passage, passage + 1)
        }
        assert prompt.output_tokens is not None
        assert prompt.output_tokens in replies or prompt.output_tokens > 5


def test_turns_can_be_sent_as_they_are() -> None:
    source = _open(input_tokens="from-dataset")
    turns = {
        source.corpus.cut(a, source.corpus.end_of(i)) for i, a in enumerate(source.corpus.starts)
    }
    for prompt in source.prompts(range(20)):
        assert (prompt.text or "").partition(": ")[2] in turns
        assert source.count(prompt) == prompt.input_tokens


def test_lengths_follow_a_distribution_for_each_request() -> None:
    source = _open(input_tokens={"uniform": [50, 400]})
    prompts = source.prompts(range(60))
    assert len({p.input_tokens for p in prompts}) > 30
    assert all(source.count(p) == p.input_tokens for p in prompts)
    pairs = make_workload(
        _folder(), input_tokens={"choices": [[60, 10], [90, 30]]}, output_tokens=None
    )
    drawn = {(p.input_tokens, p.output_tokens) for p in open_source(pairs).prompts(range(30))}
    assert drawn == {(60, 10), (90, 30)}


# --- sessions


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_every_turn_of_a_session_is_exact_and_extends_the_one_before(chat: bool) -> None:
    source = _open(source="conversations", chat=chat, input_tokens=90, output_tokens=30)
    prompts = source.prompts(range(40))
    before: tuple[Prompt, list[int]] | None = None
    for prompt in prompts:
        assert source.count(prompt) == prompt.input_tokens
        assert prompt.input_tokens is not None
        ids = _ids(source, prompt)
        if prompt.turn:
            assert before is not None
            assert before[0].session == prompt.session
            assert 90 < prompt.input_tokens - (before[0].input_tokens or 0) <= 90 + 30 + 2
            history = before[1]
            assert ids[: len(history)] == history
        else:
            assert prompt.input_tokens == 90
        before = prompt, _ids(source, prompt, generation=False)
    assert max(p.turn or 0 for p in prompts) >= 2


def _ids(source: Any, prompt: Prompt, generation: bool = True) -> list[int]:
    tokenizer = source._synthesis.tokenizer
    if prompt.messages is None:
        return list(tokenizer.encode(prompt.text))
    text = tokenizer.render(prompt.messages, add_generation_prompt=generation)
    return list(tokenizer.encode(text, Form.RENDERED))


def test_numbers_of_requests_run_through_the_sessions() -> None:
    source = _open(source="conversations", chat=True, input_tokens="from-dataset")
    at = 0
    for number in range(len(source) + 3):
        assert source.first_index(number) == at
        for turn in range(source.turns_of(number)):
            assert source.locate(at + turn) == (number, turn)
        at += source.turns_of(number)
    whole = source.prompts(range(30))
    assert [source.prompt(i) for i in reversed(range(30))] == whole[::-1]
    assert [p.index for p in whole] == list(range(30))


def test_a_session_as_recorded_has_the_recorded_history() -> None:
    source = _open(
        source="conversations",
        chat=True,
        input_tokens="from-dataset",
        output_tokens="from-dataset",
        system_prompt="Be brief.",
    )
    prompt = next(p for p in source.prompts(range(40)) if p.turn == 1)
    assert prompt.messages is not None
    assert [m["role"] for m in prompt.messages] == ["system", "user", "assistant", "user"]
    recorded = json.loads(SAMPLE.read_text(encoding="utf-8"))
    said = [
        [t["value"] for t in item["conversations"] if t["from"] != "system"] for item in recorded
    ]
    question = prompt.messages[1]["content"].partition(": ")[2]
    turns = next(t for t in said if t[0] == question)
    assert prompt.messages[2]["content"] == turns[1]
    assert prompt.messages[3]["content"] == turns[2]


def test_the_models_own_answers_can_stand_in_the_history() -> None:
    source = _open(source="conversations", chat=True, input_tokens=60, output_tokens=15)
    number = next(n for n in range(50) if source.turns_of(n) >= 3)
    session = source.session(number)
    first = session.prompt()
    assert first == source.prompt(source.first_index(number))
    second = session.prompt(["My own answer.\n"])
    assert second.messages is not None
    assert second.messages[1] == {"role": "assistant", "content": "My own answer."}
    own = source._synthesis.tokenizer.count_plain("My own answer.")
    assert source.count(second) == second.input_tokens == 60 + own + 60
    third = session.prompt(["My own answer.", "And more."])
    assert third.messages is not None
    assert third.messages[:3] == second.messages
    assert source.count(third) == third.input_tokens
    for _ in range(3, session.turns):
        session.prompt()
    with pytest.raises(IndexError, match=f"session {number} has {session.turns} turns"):
        session.prompt()


def test_sessions_can_be_limited_to_some_turns() -> None:
    source = _open(
        source="conversations",
        chat=True,
        input_tokens=80,
        options={"min_turns": 2, "max_turns": 3},
    )
    assert {source.turns_of(n) for n in range(len(source))} == {2, 3}
    with pytest.raises(BadInput, match="no conversation has 99 turns"):
        _open(source="conversations", input_tokens=80, options={"min_turns": 99})


# --- traces


def _trace(tmp_path: Path, rows: list[tuple[int, int]]) -> Path:
    path = tmp_path / "trace.csv"
    lines = [f"{i},{a},{b}" for i, (a, b) in enumerate(rows)]
    path.write_text("\n".join(["time_s,input_tokens,output_tokens", *lines]))
    return path


def test_a_trace_gives_each_request_its_lengths(tmp_path: Path) -> None:
    rows = [(100, 5), (333, 7), (64, 90)]
    options = {"corpus": str(SAMPLE)}
    source = _open(
        source="trace", path=str(_trace(tmp_path, rows)), output_tokens=None, options=options
    )
    prompts = source.prompts(range(6))
    assert [(p.input_tokens, p.output_tokens) for p in prompts] == rows * 2
    assert [source.count(p) for p in prompts] == [a for a, _ in rows] * 2


def test_short_rows_of_a_trace_lose_their_salt_first_and_are_then_lengthened(
    tmp_path: Path,
) -> None:
    rows = [(1, 5), (8, 7), (200, 9)]
    options = {"corpus": str(SAMPLE)}
    source = _open(
        source="trace", path=str(_trace(tmp_path, rows)), output_tokens=None, options=options
    )
    counts = [source.count(p) for p in source.prompts(range(3))]
    assert counts == [2, 8, 200]  # BOS and one token at least
    assert any("2 of 3 rows are shorter than" in w for w in source.warnings)
    assert any("1 of 3 rows ask for less than the 2 tokens" in w for w in source.warnings)


# --- own prompts


def _lines(tmp_path: Path, *lines: Any) -> str:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return str(path)


def test_own_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    path = _lines(
        tmp_path,
        {"prompt": "One  two"},
        {"prompt": "Three", "output_tokens": 3},
        {"prompt": [5, 6]},
    )
    source = _open(source="jsonl", path=path)
    prompts = source.prompts(range(4))
    assert [(p.text, p.token_ids, p.output_tokens) for p in prompts] == [
        ("One  two", None, 20),
        ("Three", None, 3),
        (None, (5, 6), 20),
        ("One  two", None, 20),
    ]
    assert [p.input_tokens for p in prompts] == [source.count(p) for p in prompts]
    assert source.distinct == 3
    assert source.probe_prompt().output_tokens == 1


def test_own_chat_messages_and_prompts_become_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "Hi"}]
    path = _lines(tmp_path, {"messages": messages}, {"prompt": "Hello"})
    source = _open(source="jsonl", path=path, chat=True)
    one, two = source.prompts(range(2))
    assert one.messages == tuple(messages)
    assert two.messages == ({"role": "user", "content": "Hello"},)
    assert one.input_tokens == source.count(one)


def test_own_prompts_need_no_tokenizer(tmp_path: Path) -> None:
    workload = make_workload(None, source="jsonl", path=_lines(tmp_path, {"prompt": "Hi"}))
    source = open_source(workload)
    assert source.prompt(0).input_tokens is None
    ids = make_workload(
        _folder(), source="jsonl", path=_lines(tmp_path, {"prompt": "Hi"}), as_token_ids=True
    )
    prompt = open_source(ids).prompt(0)
    assert prompt.token_ids is not None
    assert prompt.input_tokens == len(prompt.token_ids)


def test_every_mistake_in_own_prompts_is_named_with_its_line(tmp_path: Path) -> None:
    path = _lines(
        tmp_path,
        {"prompt": "ok"},
        "{oops",
        [1],
        {"prompt": "x", "messages": []},
        {"prompt": ""},
        {"prompt": ["a"]},
        {"prompt": "x", "output_tokens": 0},
        {"messages": [{"role": "user", "content": "Hi"}]},
    )
    with pytest.raises(BadInput) as caught:
        _open(source="jsonl", path=path)
    *problems, expected = caught.value.problems
    assert [p.removeprefix(f"{path}:").partition(":")[0] for p in problems] == list("2345678")
    assert "is a list, not an object" in problems[1]
    assert "use backend.kind: openai-chat" in problems[-1]
    assert expected.startswith('Expected {"prompt": "..."}')
    with pytest.raises(BadInput, match="holds no prompts"):
        _open(source="jsonl", path=_lines(tmp_path, ""))
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        _open(source="jsonl", path=str(tmp_path / "none"))


# --- noise and text


def test_noise_is_words_of_the_vocabulary_at_exact_length() -> None:
    source = _open(source="random", input_tokens=200)
    words = set(source.tokenizer.codec.vocabulary())
    for prompt in source.prompts(range(10)):
        assert source.count(prompt) == 200
        body = (prompt.text or "").partition(": ")[2].split()
        assert sum(word in words for word in body) >= len(body) - 3


def test_a_folder_of_texts_in_any_language_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_text("第二个文件。\n\n" + "很长的一段话。" * 3000)
    (tmp_path / "a.txt").write_text("\ufeffFirst file, first paragraph.\n\nSecond paragraph.\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    source = _open(source="text", path=str(tmp_path), input_tokens=300)
    text = bytes(source.corpus.text).decode()
    assert text.startswith(
        "First file, first paragraph.\n\nSecond paragraph.\n\n第二个文件。\n\n很长"
    )
    assert all(source.count(p) == 300 for p in source.prompts(range(20)))


def test_a_text_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file or folder"):
        _open(source="text", path=str(tmp_path / "none.txt"), input_tokens=300)
    with pytest.raises(BadInput, match=r"holds no text file \(\.txt"):
        _open(source="text", path=str(tmp_path), input_tokens=300)
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\xfe")
    with pytest.raises(BadInput, match=r"a\.txt: is not UTF-8 text"):
        _open(source="text", path=str(tmp_path), input_tokens=300)
    (tmp_path / "a.txt").write_text(" \n\n ")
    with pytest.raises(BadInput, match="holds no text that can be used"):
        _open(source="text", path=str(tmp_path / "a.txt"), input_tokens=300)


# --- data sets


def test_without_a_path_the_packaged_data_set_is_taken_cut_off_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "packaged.json"
    path.write_text(SAMPLE.read_text(encoding="utf-8")[:100_000])
    monkeypatch.setattr(sharegpt, "packaged", lambda: path)
    source = _open(path=None, input_tokens=100)
    assert source.count(source.prompt(0)) == 100
    (said,) = [w for w in source.warnings if "packaged.json" in w]
    assert re.fullmatch(
        r"packaged\.json: cut off after \d+ conversations \(the packaged data set ends there; the"
        r" whole conversations before it are used, and prompts\.path names another file\)",
        said,
    )
    again = _open(path=None, input_tokens=100)  # from the cache: the warning stays
    assert again.warnings == source.warnings
    with pytest.raises(BadInput, match=r"prompts\.allow_truncated: true"):
        _open(path=None, input_tokens=100, allow_truncated=False)
    with pytest.raises(BadInput, match=r"prompts\.allow_truncated: true"):
        _open(path=str(path), input_tokens=100)
    _open(path=str(path), input_tokens=100, allow_truncated=True)


def test_without_the_package_the_sample_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "packaged", lambda: None)
    source = _open(path=None, input_tokens=100)
    assert source.count(source.prompt(0)) == 100
    assert any(f"the small sample corpus {SAMPLE} is used" in w for w in source.warnings)


def test_a_missing_sample_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharegpt, "packaged", lambda: None)
    monkeypatch.setattr(conversational, "SAMPLE", "none.json")
    with pytest.raises(BadInput, match=r"sample corpus is missing .*tokenswarm\[sharegpt\]"):
        _open(path=None, input_tokens=100)


def test_a_missing_tokenizer_is_named() -> None:
    work = make_workload(_folder(), input_tokens=100).model_copy(update={"tokenizer": None})
    with pytest.raises(BadInput, match="tokenizer: is not set"):
        open_source(work)


def test_options_are_checked_all_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        _open(options={"salts": True, "verify": "yes", "salt": 1, "min_turns": 0}, input_tokens=50)
    assert [
        p.partition(": ")[0].removeprefix("prompts.options.") for p in caught.value.problems
    ] == [
        "salts",
        "verify",
        "salt",
        "min_turns",
    ]
    assert caught.value.problems[0].endswith("Did you mean 'salt'?")
    assert caught.value.problems[1].endswith("must be sampled or full, got 'yes'.")


# --- tokenswarm prompts


@pytest.mark.parametrize("chat", [False, True])
def test_show_prints_verified_prompts(chat: bool) -> None:
    out = io.StringIO()
    show(make_workload(_folder(), chat=chat, input_tokens=100), 3, True, out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert {(line["input_tokens"], line["output_tokens"]) for line in lines} == {(100, 20)}
    assert all(("messages" if chat else "prompt") in line for line in lines)
    out = io.StringIO()
    show(make_workload(_folder(), chat=chat, input_tokens=100), 3, False, out)
    assert out.getvalue().splitlines()[0].startswith("     0  in    100  out    20  ")


def test_show_prints_ids_sessions_and_unknown_lengths(tmp_path: Path) -> None:
    out = io.StringIO()
    show(make_workload(_folder(), input_tokens=50, as_token_ids=True), 1, True, out)
    assert len(json.loads(out.getvalue())["prompt"]) == 50
    out = io.StringIO()
    show(make_workload(_folder(), source="conversations", chat=True, input_tokens=50), 2, True, out)
    assert json.loads(out.getvalue().splitlines()[0])["session"] == 0
    out = io.StringIO()
    path = _lines(tmp_path, {"prompt": "x"})
    show(make_workload(None, source="jsonl", path=path, output_tokens=None), 1, False, out)
    assert out.getvalue().startswith("     0  in      ?  out  free  x\n")


def test_show_draws_a_fresh_nonce_unless_the_workload_has_one() -> None:
    def shown(nonce: str | None) -> str:
        out = io.StringIO()
        show(make_workload(_folder(), input_tokens=60, nonce=nonce), 2, False, out)
        return out.getvalue()

    assert shown("a") == shown("a")
    one, two = shown(None), shown(None)
    assert one.splitlines()[0] != two.splitlines()[0]
    assert "note: drawn with nonce " in one
    assert "note: drawn with nonce " not in shown("a")
