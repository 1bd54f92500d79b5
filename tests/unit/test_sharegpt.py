"""ShareGPT files in every state: the cases of tests/data/sharegpt_cases.json and a few more."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tokenswarm.prompts import sharegpt
from tokenswarm.prompts.conversational import passages_of

CASES = json.loads(
    (Path(__file__).parent.parent / "data" / "sharegpt_cases.json").read_text(encoding="utf-8")
)
ITEMS = [case for case in CASES if case["form"] == "item"]
FILES = [case for case in CASES if case["form"] == "file"]
GOOD = '{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}'


def test_every_case_is_an_item_or_a_file() -> None:
    assert len(ITEMS) + len(FILES) == len(CASES) == 47


@pytest.mark.parametrize("case", ITEMS, ids=lambda case: case["id"])
def test_item(case: dict[str, Any]) -> None:
    found = sharegpt.parse_item(json.loads(case["raw"]))
    if isinstance(found, str):
        got: dict[str, Any] = {"accepted": False, "skip_reason": found}
    else:
        got = {
            "accepted": True,
            "first_user_text": found.first_user,
            "first_reply_text": found.first_reply,
            "roles": [turn.role for turn in found.turns],
            "system_text": next((t.text for t in found.turns if t.role == "system"), None),
        }
    _check(case, got)


@pytest.mark.parametrize("case", FILES, ids=lambda case: case["id"])
def test_file(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(_content(case))
    tally = sharegpt.Tally()
    began = time.monotonic()
    try:
        found = list(sharegpt.read(path, allow_truncated=False, tally=tally))
    except sharegpt.BadData as error:
        got: dict[str, Any] = {
            "error": True,
            "error_kind": error.kind,
            "message_names_file": str(path) in str(error),
            "no_traceback": "Traceback" not in str(error),
        }
    else:
        got = {
            "error": False,
            "n_usable": len(found),
            "n_skipped": tally.skipped.total(),
            "first_user_text": found[0].first_user,
            "n_distinct_prompts": len({c.first_user for c in found}),
        }
    got["max_seconds"] = case["expect"].get("max_seconds")
    assert time.monotonic() - began < (got["max_seconds"] or 20)
    _check(case, got)


def _content(case: dict[str, Any]) -> bytes:
    if "raw_b64" in case:
        return base64.b64decode(case["raw_b64"])
    if "raw" in case:
        return str(case["raw"]).encode()
    parts = case["raw_template"]
    return str(parts["prefix"] + parts["repeat"] * parts["times"] + parts["suffix"]).encode()


def _check(case: dict[str, Any], got: dict[str, Any]) -> None:
    """The expectation holds, or one of its alternatives."""
    expected = {k: v for k, v in case["expect"].items() if k != "alternatives"}
    choices = [expected, *case["expect"].get("alternatives", [])]
    shown = [{key: got.get(key) for key in choice} for choice in choices]
    assert any(a == b for a, b in zip(choices, shown, strict=True)), got


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f'{GOOD}\n{{"id": "x", "conv\n{GOOD}\n')
    tally = sharegpt.Tally()
    assert len(list(sharegpt.read(path, allow_truncated=False, tally=tally))) == 2
    assert tally.first_skipped == {"broken_line": "line 2"}
    assert tally.notes(path) == [f"{path}: 1 items left out: 1 broken line (first: line 2)."]


def _truncated(tmp_path: Path) -> Path:
    path = tmp_path / "cut.json"
    path.write_text(f"[{GOOD}, {GOOD}, {GOOD[:60]}")
    return path


def test_a_file_that_ends_early_is_refused_with_the_place_and_the_way_out(tmp_path: Path) -> None:
    path = _truncated(tmp_path)
    with pytest.raises(sharegpt.BadData) as caught:
        list(sharegpt.read(path, allow_truncated=False, tally=sharegpt.Tally()))
    assert caught.value.kind == "truncated"
    assert str(caught.value) == (
        f"{path}: ends too early, in the middle of an item (byte {path.stat().st_size}, after 2"
        " whole conversations), as an interrupted download does. Fetch it again, or set"
        " prompts.allow_truncated: true to use what is whole."
    )


def test_a_file_that_ends_early_is_used_up_to_the_break_when_allowed(tmp_path: Path) -> None:
    path = _truncated(tmp_path)
    tally = sharegpt.Tally()
    assert len(list(sharegpt.read(path, allow_truncated=True, tally=tally))) == 2
    assert tally.cut_at == path.stat().st_size
    assert "the 2 whole conversations before it are used" in tally.notes(path)[0]


def test_nothing_whole_before_the_break_is_refused_even_when_allowed(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(f"[{GOOD[:60]}")
    with pytest.raises(sharegpt.BadData, match="after 0 whole conversations"):
        list(sharegpt.read(path, allow_truncated=True, tally=sharegpt.Tally()))


@pytest.mark.parametrize("items", [1, 3000])
def test_broken_json_is_named_by_its_byte(tmp_path: Path, items: int) -> None:
    path = tmp_path / "broken.json"
    before = "[" + ", ".join([GOOD] * items) + ", "
    path.write_text(f"{before}oops, {GOOD}]")
    with pytest.raises(sharegpt.BadData) as caught:
        list(sharegpt.read(path, allow_truncated=True, tally=sharegpt.Tally()))
    assert caught.value.kind == "json"
    assert f"at byte {len(before) + 1:,}, after {items:,} whole items" in str(caught.value)
    assert "invalid char in json text. Fetch the data set again." in str(caught.value)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "lfs", "Git LFS pointer"),
        ("<!DOCTYPE html><p>404", "json", "is a web page"),
        ("Not found", "json", "is not JSON (starts with 'Not found')"),
        (" \n ", "empty", "nothing but blanks (3 bytes)"),
        ('{"a": 1,\n "b": }', "json", "data.json:2: not valid JSON (column"),
    ],
)
def test_what_is_no_data_set_is_named(tmp_path: Path, content: str, kind: str, said: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(content)
    with pytest.raises(sharegpt.BadData) as caught:
        list(sharegpt.read(path, allow_truncated=False, tally=sharegpt.Tally()))
    assert caught.value.kind == kind
    assert said in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path, kind in ((tmp_path / "none.json", "missing"), (tmp_path, "not_a_file")):
        with pytest.raises(sharegpt.BadData) as caught:
            list(sharegpt.read(path, allow_truncated=False, tally=sharegpt.Tally()))
        assert caught.value.kind == kind
        assert str(path) in str(caught.value)


def test_wrong_bytes_are_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(b'[{"conversations": [{"from": "human", "value": "Tw\xffo"}]}]')
    tally = sharegpt.Tally()
    (found,) = sharegpt.read(path, allow_truncated=False, tally=tally)
    assert found.first_user == "Two"
    assert tally.notes(path) == [f"{path}: 1 bytes are not UTF-8 and were dropped."]


def test_passages_are_the_users_turns_with_the_answers_that_follow() -> None:
    turns = [("user", "A"), ("user", "B"), ("assistant", "b"), ("user", "C")]
    conversation = sharegpt.Conversation(tuple(sharegpt.Turn(*turn) for turn in turns))
    found = [(p.text, p.reply, p.first) for p in passages_of(conversation)]
    assert found == [("A", None, True), ("B", "b", False), ("C", None, False)]
