import json
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import run_folder

from exporters import compare_report
from tokenswarm import cli, compare, compare_sides, resampling, samples
from tokenswarm.records import BadInput
from tokenswarm.run_files import read_requests

TIMES = ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "e2e_due_s", "longest_gap_s")


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """side(seed, ...): a run in memory."""
    path = tmp_path_factory.mktemp("sides") / "requests.jsonl"

    def side(seed, n=360, memory=0.8, **more):
        found = list(run_folder.rows(n=n, seed=seed, memory=memory, error_share=0.01, **more))
        path.write_text("".join(json.dumps(r) + "\n" for r in found))
        workload = {"seed": 1} if more.get("plan") is not None else {}
        window = {"start": run_folder.START + 30, "end": run_folder.START + 90, "seconds": 60}
        measured = [r for r in found if not r["warmup"]]
        run = {"tokenizer": "tiktoken:cl100k_base", "load": "closed"}
        summary = {"valid": True, "run": run, "window": window, **run_folder.part(measured, 60)}
        return compare_sides.Side(f"runs/r{seed}", summary, read_requests(path), workload)

    return side


def slower(side, factor):
    """The same run, had everything taken `factor` times as long."""
    numbers = dict(side.requests.numbers)
    for name in TIMES:
        numbers[name] = numbers[name] * factor
    numbers["first_token"] = numbers["sent"] + numbers["ttft_s"]
    numbers["last_token"] = numbers["sent"] + numbers["e2e_s"]
    metrics = {
        name: {k: v * factor if isinstance(v, float) else v for k, v in figures.items()}
        if name in TIMES or name == "itl_s" else figures
        for name, figures in side.summary["metrics"].items()
    }  # fmt: skip
    return replace(side, summary={**side.summary, "metrics": metrics},
                   requests=replace(side.requests, numbers=numbers))  # fmt: skip


def flagged(pair):
    return [row.key for row in pair.rows if row.verdict == compare.DIFFERENT]


def test_equal_runs_rarely_differ_and_20_percent_is_always_found(make):
    """40 pairs of runs whose requests hang together in time, 400 measured requests each.

    At most 2 pairs in 40 with a false alarm are promised, 5 are allowed: chance exceeds that once
    in 70. Seeds are fixed.
    """
    alarms, found = 0, 0
    runs = [make(seed, n=600, memory=0.5) for seed in range(41)]
    for base, new in pairwise(runs):
        alarms += bool(flagged(compare.pair(base, new, compare.TOLERANCES)))
        pair = compare.pair(base, slower(new, 1.2), compare.TOLERANCES)
        found += bool(pair.regressions)
    assert alarms <= 5
    assert found == 40


def test_the_change_is_the_ratio_of_the_summaries(make):
    base, new = make(1), make(2)
    for row in compare.pair(base, new, compare.TOLERANCES).rows:
        if row.figure and row.change is not None:
            a, b = (s.summary["metrics"][row.metric][row.figure] for s in (base, new))
            assert (row.base, row.new) == (a, b)
            assert row.change == pytest.approx(b / a - 1)
            assert row.low is None or row.low <= row.change <= row.high


def test_a_run_does_not_differ_from_itself(make):
    base = make(3)
    pair = compare.pair(base, base, compare.TOLERANCES)
    assert flagged(pair) == []
    assert {row.change for row in pair.rows if row.change is not None} == {0}


def test_better_is_not_a_regression_and_worse_is_one(make):
    base, new = make(4, memory=0), make(5, memory=0)
    worse = compare.Comparison(base, (compare.pair(base, slower(new, 1.3), compare.TOLERANCES),))
    better = compare.Comparison(base, (compare.pair(base, slower(new, 0.7), compare.TOLERANCES),))
    assert "mean(tpot_s)" in flagged(worse.pairs[0])
    assert "mean(tpot_s)" in flagged(better.pairs[0])
    assert (worse.exit_code, better.exit_code) == (1, 0)
    assert compare_report.answer(worse).startswith("Regression: ")
    assert compare_report.answer(better).startswith("No regression; really different: ")


def test_a_tolerance_decides_what_a_regression_is(make):
    base, new = make(6, memory=0), slower(make(7, memory=0), 1.3)
    loose = compare.pair(base, new, {**compare.TOLERANCES, "*": 0.6})
    assert flagged(loose)
    assert loose.regressions == []
    strict = compare.pair(base, new, {**compare.TOLERANCES, "*": 0.6, "mean(tpot_s)": 0.1})
    assert [r.key for r in strict.regressions] == ["mean(tpot_s)"]


def test_the_same_plan_is_compared_request_by_request(make):
    """Lengths from 50 to 6,000 tokens scatter TTFT; the same ones in both runs cancel out."""
    wide = {"lengths": (50, 6000), "memory": 0, "n": 500}
    with_plan = compare.pair(make(10, plan=3, **wide), make(11, plan=3, **wide), compare.TOLERANCES)
    without = compare.pair(make(12, **wide), make(13, **wide), compare.TOLERANCES)
    widths = []
    for pair, method in ((with_plan, compare.PAIRED), (without, compare.IN_TIME)):
        row = next(r for r in pair.rows if r.key == "mean(ttft_s)")
        assert row.method == method
        widths.append(row.high - row.low)
    assert widths[0] < 0.7 * widths[1]


def test_few_samples_are_said(make):
    pair = compare.pair(make(20, n=120), make(21, n=120), compare.TOLERANCES)
    verdicts = {row.key: row.verdict for row in pair.rows}
    assert verdicts["p99(ttft_s)"] == compare.TOO_FEW
    assert verdicts["mean(ttft_s)"] == compare.NOT_SHOWN
    tiny = compare.pair(make(22, n=12), make(23, n=12), compare.TOLERANCES)
    assert {r.verdict for r in tiny.rows if r.figure} <= {compare.TOO_FEW, compare.NO_INTERVAL}


def test_more_errors_are_found(make, tmp_path):
    folders = [
        run_folder.write(tmp_path / name, run_folder.rows(n=800, seed=k, error_share=share))
        for k, (name, share) in enumerate((("base", 0.01), ("new", 0.12)))
    ]
    found = compare.compare(folders[0], [folders[1]])
    row = next(r for r in found.pairs[0].rows if r.metric == "error_ratio")
    assert row.regression
    assert row.low < 0.11 < row.high
    assert row.low > 0.05


def of_itl(pair):
    return {row.figure: row for row in pair.rows if row.metric == "itl_s"}


def test_recorded_gaps_give_itl_intervals_by_request(make):
    pair = compare.pair(make(30, itl=True), make(31, itl=True), compare.TOLERANCES)
    assert pair.warnings == ()
    for figure, row in of_itl(pair).items():
        assert (row.verdict, row.method) == (compare.NOT_SHOWN, "blocks of whole requests"), figure
        assert -0.3 < row.low < row.change < row.high < 0.3, figure


def test_the_tokens_of_a_request_stay_together(make):
    """ITL differs between requests far more than chance among 26,000 single gaps would have it."""
    pair = compare.pair(make(30, itl=True, memory=0), make(31, itl=True, memory=0),
                        compare.TOLERANCES)  # fmt: skip
    row = of_itl(pair)["mean"]
    gaps = [len(side.requests.itl) for side in (make(30, itl=True), make(31, itl=True))]
    single = 2 * 1.96 * math.sqrt(2) * 0.3 / math.sqrt(min(gaps))  # had each been drawn alone
    assert row.high - row.low > 2 * single


def test_the_same_plan_is_paired_for_itl_too(make):
    same = {"plan": 3, "itl": True}
    pair = compare.pair(make(30, **same), make(31, **same), compare.TOLERANCES)
    assert {row.method for row in of_itl(pair).values()} == {compare.PAIRED}
    assert all(row.low < row.high for row in of_itl(pair).values())


@pytest.mark.parametrize(
    ("base", "new", "names"),
    [(False, False, "r30 and r31"), (True, False, "r31"), (False, True, "r30")],
)
def test_itl_without_recorded_gaps_says_what_is_missing_and_how_to_get_it(make, base, new, names):
    one, two = make(30, itl=base), make(31, itl=new)
    pair = compare.pair(one, two, compare.TOLERANCES)
    rows = of_itl(pair)
    assert rows["mean"].verdict == compare.NOT_SHOWN  # first to last token is always known
    for figure in ("p50", "p99"):
        assert (rows[figure].verdict, rows[figure].method) == (
            "no interval", "needs record.itl: true",
        )  # fmt: skip
        assert rows[figure].low is rows[figure].high is None
    (warning,) = pair.warnings
    assert warning == (
        f"no intervals for the percentiles of itl_s: {names} did not record the gaps between "
        "tokens; turn it on in the workload (record: {itl: true}) or with --set record.itl=true"
    )
    found = compare.Comparison(one, (pair,), compare.TOLERANCES)
    assert f"- {warning}" in compare_report.markdown(found)
    assert "| no interval | needs record.itl: true |" in compare_report.markdown(found)
    assert f"<li>{warning}</li>" in compare_report.html(found)
    assert compare_report.html(found).count("<td class=note>needs record.itl: true") == 2


def test_runs_without_a_request_log_say_what_is_missing(make):
    base, new = make(30, itl=True), replace(make(31, itl=True), requests=None)
    pair = compare.pair(base, new, compare.TOLERANCES)
    assert {(row.verdict, row.method) for row in pair.rows} == {
        ("no interval", "needs record.requests: true")
    }
    assert pair.warnings == (
        "no intervals: r31 recorded no requests (requests.jsonl); turn it on in the workload "
        "(record: {requests: true}) or with --set record.requests=true",
    )


@pytest.mark.parametrize(
    ("base", "new", "refused", "warned"),
    [
        ({}, {}, 0, 0),
        ({"nonce": 1, "name": "a", "backend.model": "x"}, {"nonce": 2, "name": "b"}, 0, 0),
        ({"load.users": 8}, {"load.users": 16}, 0, 1),
        ({"load.users": 8, "prompts.input_tokens": 100},
         {"load.users": 16, "prompts.input_tokens": 200}, 1, 0),
        ({"backend.extra_body.temperature": 0}, {"backend.extra_body.temperature": 1}, 0, 1),
    ],
)  # fmt: skip
def test_workloads_that_differ(make, base, new, refused, warned):
    one, two = make(40), make(41)
    one, two = (replace(s, workload={"x": 0, **w}) for s, w in ((one, base), (two, new)))
    found = compare_sides.comparable(one, two)
    assert [len(texts) for texts in found] == [refused, warned]


def test_an_invalid_run_is_refused_unless_forced(tmp_path):
    good = run_folder.write(tmp_path / "good", run_folder.rows(n=100))
    bad = run_folder.write(tmp_path / "bad", run_folder.rows(n=100), valid=False,
                           invalid_reasons=[{"code": "worker_lost", "detail": "w1"}])  # fmt: skip
    refused = compare.compare(good, [bad])
    assert refused.exit_code == 3
    assert refused.pairs[0].refused == ("bad is invalid (worker_lost)",)
    assert refused.pairs[0].rows == ()
    assert "Not compared: bad is invalid" in compare_report.markdown(refused)
    forced = compare.compare(good, [bad], force=True)
    assert forced.exit_code == 0
    assert forced.pairs[0].rows
    assert "bad is invalid (worker_lost)" in forced.pairs[0].warnings


def test_tokens_of_other_tokenizers_are_not_compared(make):
    base, new = make(50), make(51)
    run = {**new.summary["run"], "tokenizer": "hf:other"}
    pair = compare.pair(base, replace(new, summary={**new.summary, "run": run}), compare.TOLERANCES)
    verdicts = {row.key: row.verdict for row in pair.rows}
    assert verdicts["mean(tpot_s)"] == verdicts["output_tokens_per_s"] == compare.NOT_COMPARABLE
    assert verdicts["output_chars_per_s"] == compare.NOT_SHOWN
    assert any("tokenizers differ" in text for text in pair.warnings)


def test_open_loop_compares_latency_from_due(make):
    base = make(52)
    summary = {**base.summary, "run": {**base.summary["run"], "load": "open"}}
    base = replace(base, summary=summary)
    metrics = {r.metric for r in compare.pair(base, base, compare.TOLERANCES).rows}
    assert {"ttft_due_s", "e2e_due_s"} <= metrics
    assert not {"ttft_s", "e2e_s"} & metrics


def test_folders_without_a_run_are_an_error(tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        compare.compare(tmp_path / "none", [tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no summary\.json there"):
        compare.compare(tmp_path / "empty", [])


def test_every_folder_that_cannot_be_compared_is_named_at_once(tmp_path, capsys):
    good = run_folder.write(tmp_path / "good", run_folder.rows(n=60))
    broken = run_folder.write(tmp_path / "broken", run_folder.rows(n=60))
    (broken / "summary.json").write_text('{"valid": true, "metr')
    crashed = run_folder.write(tmp_path / "crashed", run_folder.rows(n=60))
    (crashed / "summary.json").unlink()
    folders = [good, broken, tmp_path, good / "summary.json", tmp_path / "none", crashed, broken]
    assert cli.main(["compare", *map(str, folders)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["tokenswarm"] * 5
    at = str(tmp_path)
    assert lines[0].startswith(f"tokenswarm: {at}/broken/summary.json: cannot be read: unexpected")
    assert f"`tokenswarm report {at}/broken` makes it" in lines[0]
    assert lines[1:] == [
        f"tokenswarm: {at}: no summary.json there; give the folder of a run, such as {at}/broken",
        f"tokenswarm: {at}/good/summary.json: not a folder; give the folder of a run (`--out`)",
        f"tokenswarm: {at}/none: no such folder; give the folder of a run (`--out`)",
        f"tokenswarm: {at}/crashed: no summary.json there: the run goes on or has crashed; "
        f"`tokenswarm report {at}/crashed` makes it from the run's records, where there are any",
    ]


def test_a_run_compared_with_itself_is_a_warning(tmp_path, capsys):
    folder = run_folder.write(tmp_path / "a", run_folder.rows(n=200))
    assert cli.main(["compare", str(folder), f"{folder}/../a"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("**No difference shown**")
    assert f"- {folder}/../a is compared with itself: nothing can differ" in said


def test_a_folder_named_twice_is_a_warning(tmp_path, capsys):
    base, new = (run_folder.write(tmp_path / n, run_folder.rows(n=100)) for n in ("a", "b"))
    assert cli.main(["compare", str(base), str(new), str(new)]) == 0
    said = capsys.readouterr().out
    assert said.count(f"- {new} is named twice: this is the same comparison once more") == 1
    assert "compared with itself" not in said


def with_workload(folder, load, prompts):
    run_folder.write(folder, run_folder.rows(n=200))
    (folder / "workload.yaml").write_text(
        f"seed: 7\nload: {{users: {load}}}\nprompts: {{input_tokens: {prompts}}}\n"
    )
    return str(folder)


def test_workloads_that_differ_in_one_thing_are_a_warning_in_more_exit_2(tmp_path, capsys):
    base = with_workload(tmp_path / "base", 8, 100)
    load = with_workload(tmp_path / "load", 16, 100)
    more = with_workload(tmp_path / "more", 16, 200)
    assert cli.main(["compare", base, load]) == 0
    said = capsys.readouterr().out
    text = "the workloads differ, so this compares that: load: load.users is 8 in base, 16 in load"
    assert f"- {text}" in said
    assert cli.main(["compare", base, more]) == 2
    said = capsys.readouterr().out
    assert said.startswith("**Not compared: the workloads differ in more than one thing: prompts: ")
    assert "prompts.input_tokens is 100 in base, 200 in more" in said
    assert "load.users is 8 in base, 16 in more" in said
    assert "| figure |" not in said
    assert cli.main(["compare", base, more, "--force"]) == 0
    assert "- the workloads differ in more than one thing: " in capsys.readouterr().out


def test_a_run_without_its_workload_is_a_warning_and_a_broken_one_exit_2(tmp_path, capsys):
    base = with_workload(tmp_path / "base", 8, 100)
    new = with_workload(tmp_path / "new", 8, 100)
    (tmp_path / "new" / "workload.yaml").unlink()
    assert cli.main(["compare", base, new]) == 0
    said = capsys.readouterr().out
    assert "- new has no workload.yaml: whether the workloads are the same is not known" in said
    (tmp_path / "new" / "workload.yaml").write_text("a: [")
    assert cli.main(["compare", base, new]) == 2
    assert f"tokenswarm: {new}/workload.yaml: cannot be read: " in capsys.readouterr().err


def test_a_run_that_recorded_nothing_is_compared_without_a_crash(tmp_path, capsys):
    base = run_folder.write(tmp_path / "base", run_folder.rows(n=100))
    new = run_folder.write(tmp_path / "new", run_folder.rows(n=100))
    (new / "requests.jsonl").write_text("")
    assert cli.main(["compare", str(base), str(new)]) == 0
    assert "no interval" in capsys.readouterr().out


def test_tolerances_are_read():
    assert compare.parse_tolerances(["ttft_s=5%", "p99(e2e_s)=0.2", "*=3%"]) == {
        "ttft_s": 0.05, "p99(e2e_s)": 0.2, "*": 0.03,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["ttft_s", "ttft_s=", "=5%", "ttft_s=-1%", "ttfs=5%", "ttft_s=x"])
def test_bad_tolerances_are_an_error(text):
    with pytest.raises(BadInput, match="--tolerance"):
        compare.parse_tolerances([text])


def test_markdown_has_a_row_a_figure_and_the_answer_first(make):
    base = make(60)
    pair = compare.pair(base, slower(make(61), 1.5), compare.TOLERANCES)
    found = compare.Comparison(base, (pair,), compare.TOLERANCES)
    lines = compare_report.markdown(found).splitlines()
    assert lines[0].startswith("**Regression: ")
    assert sum(line.startswith("| `") for line in lines) == len(pair.rows)
    html = compare_report.html(found)
    assert html.count("<th scope=row>") == len(pair.rows)


def test_independent_values_need_short_blocks_and_waves_long_ones():
    rng = np.random.default_rng(1)
    noise = rng.normal(size=2000)
    wave = np.convolve(rng.normal(size=2199), np.ones(200), "valid")
    one = np.zeros(2000, dtype=np.int64)
    assert resampling.block_length(noise, one) <= 20
    assert resampling.block_length(wave, one) >= 100


def test_a_step_between_stages_is_not_correlation():
    rng = np.random.default_rng(2)
    stage = np.repeat([0, 1], 500)
    values = rng.normal(size=1000) + 100 * stage
    assert resampling.block_length(values, stage) <= 20


def test_resampled_means_scatter_as_theory_says():
    """Independent values: the mean's standard error is s / sqrt(n), here within 10 %."""
    rng = np.random.default_rng(3)
    values = rng.exponential(size=4000)
    ones = np.ones(4000)
    draws = resampling.draw(np.zeros(4000, dtype=np.int64), 4, seed=1)
    means = resampling.means(draws, values, ones)
    assert means.std() == pytest.approx(values.std() / math.sqrt(4000), rel=0.1)
    assert means.mean() == pytest.approx(values.mean(), rel=0.01)


def test_resampled_quantiles_are_quantiles():
    rng = np.random.default_rng(4)
    values = rng.lognormal(size=30_000)
    draws = resampling.draw(np.zeros(30_000, dtype=np.int64), 1, seed=1)
    p50, p99 = resampling.quantiles(draws, draws.cell_of, values, [0.5, 0.99])
    assert np.median(p50) == pytest.approx(np.quantile(values, 0.5), rel=0.01)
    assert np.median(p99) == pytest.approx(np.quantile(values, 0.99), rel=0.02)


def test_runs_of_very_different_length_can_be_compared():
    rng = np.random.default_rng(5)
    made = []
    for n in (1000, 250_000):
        values, number = rng.lognormal(size=n), np.arange(n)
        made.append(samples.Series(number * 1.0, values, np.ones(n), values, number,
                                   np.zeros(n, dtype=np.int64)))  # fmt: skip
    spreads, _ = samples.spread_of_ratio(*made, {"p90": 0.9}, paired=False)
    theory = math.sqrt(0.9 * 0.1 / 1000) / 0.1755  # of the log; density of the normal at p90
    assert spreads["p90"] == pytest.approx(theory, rel=0.25)


def test_holm_steps_down():
    assert resampling.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_interval_of_a_difference_of_shares_is_newcombes():
    """56/70 against 48/80: 0.0524 to 0.3339 (Newcombe 1998, table II, method 10); wider where
    failures seem to come in bursts, as they do in a few of these by chance.
    """

    def series(k, n):
        sums = np.zeros(n)
        sums[np.linspace(0, n - 1, k).astype(int)] = 1
        rng = np.random.default_rng(0)
        rng.shuffle(sums)
        number = np.arange(n)
        return samples.Series(number * 1.0, sums, np.ones(n), None, number, np.zeros(n, dtype=int))

    low, high = samples.difference_of_shares(series(48, 80), series(56, 70))
    assert 0.0524 - 0.05 < low < 0.0525
    assert 0.3338 < high < 0.3339 + 0.05
