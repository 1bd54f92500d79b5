import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import run_folder

from tokenswarm.records import BadInput
from tokenswarm.run_files import read_requests, read_summary, read_timeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rows = run_folder.rows(n=500, itl=True, error_share=0.1)
    return run_folder.write(tmp_path_factory.mktemp("run"), rows)


def lines(folder):
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_columns_hold_what_the_lines_say(folder):
    rows, found = lines(folder), read_requests(folder / "requests.jsonl")
    assert len(found) == 500
    assert (found.torn, found.stride) == (0, 1)
    for name in ("due", "ttft_s", "prompt_tokens", "connect_s"):
        wanted = [np.nan if r[name] is None else r[name] for r in rows]
        np.testing.assert_array_equal(found[name], wanted)
    ok = [r["outcome"] == "ok" for r in rows]
    np.testing.assert_array_equal(found.ok, ok)
    np.testing.assert_array_equal(found.measured, ok & ~np.array([r["warmup"] for r in rows]))


def test_gaps_belong_to_their_requests(folder):
    rows, found = lines(folder), read_requests(folder / "requests.jsonl")
    parts = np.split(found.itl, found.itl_ends[:-1])
    for row, part in zip(rows, parts, strict=True):
        np.testing.assert_array_equal(part, row.get("itl_s") or [])


def test_of_a_huge_log_every_kth_line_is_kept(folder):
    found = read_requests(folder / "requests.jsonl", most=100)
    assert found.stride == 5
    assert len(found) == 100
    assert list(found["index"][:3]) == [0, 5, 10]


def test_torn_and_foreign_lines_are_counted(folder, tmp_path):
    path = tmp_path / "requests.jsonl"
    text = (folder / "requests.jsonl").read_text()
    path.write_text("[1, 2]\n{}\n" + text + '{"index": 500, "outc')
    found = read_requests(path)
    assert (len(found), found.torn) == (500, 3)


def test_an_empty_log_has_no_requests(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text("")
    found = read_requests(path)
    assert len(found) == 0
    assert not found.ok.any()


def test_a_timeline_that_is_not_there_is_empty(tmp_path):
    assert read_timeline(None) == []
    assert read_timeline(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no summary.json there"),
        ("", "cannot be read"),
        ("{", r"cannot be read: .*; `tokenswarm report \S+` makes it"),
        ("\0", "cannot be read"),
        ("[]", "not the summary of a run: key 'metrics' is missing"),
        ('{"metrics": "none"}', "'metrics' is not an object"),
        ('{"metrics": {"ttft_s": [1]}}', r"'metrics\.ttft_s' is not an object"),
        ('{"metrics": {"ttft_s": {"p50": "1 s"}}}', r"'metrics\.ttft_s\.p50' is not a number"),
        ('{"metrics": {}, "run": "a"}', "'run' is not an object"),
        ('{"metrics": {}, "throughput": {"requests_per_s": []}}', "is not a number"),
        ('{"metrics": {}, "window": {"start": "now"}}', r"'window\.start' is not a number"),
    ],
)
def test_bad_summaries(tmp_path, text, problem):
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(BadInput, match=problem):
        read_summary(tmp_path)
