"""The commands over finished runs: report, compare, export, and what they print.

Options and output only. Nothing heavy is imported before a command is run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenswarm.records import BadInput


def report_options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm report`."""
    add = parser.add_argument
    add("dirs", nargs="+", metavar="DIR", help="folder of a run, also of one that crashed or runs")
    add("--study", metavar="FILE", help="also write one page over all of them: curves, prices, "
        "the price-speed chart")  # fmt: skip
    add("--label", action="append", default=[], metavar="DIR=NAME", dest="labels",
        help="name of the configuration that a folder belongs to, in the study")  # fmt: skip
    add("--baseline", metavar="NAME", help="configuration that others are measured against")
    add("--split", metavar="PRICE,SPEED", help="where the quadrants of the price-speed chart meet "
        "(default: the medians)")  # fmt: skip


def report(args: argparse.Namespace) -> int:
    """`tokenswarm report`; returns the exit code. Raises BadInput."""
    from exporters.rebuild import rebuild

    for folder in map(Path, args.dirs):
        summary = rebuild(folder)
        state = "valid" if summary["valid"] else "invalid"
        print(f"{folder / 'report.html'}: {summary['run']['name']}, {state}")
    if args.study is not None:
        from exporters.study_report import build

        labels = dict(_pair(text) for text in args.labels)
        page = build([Path(d) for d in args.dirs], labels, args.baseline, _split(args.split))
        _write(args.study, "--study", page)
        print(args.study)
    return 0


def _pair(text: str) -> tuple[str, str]:
    folder, sign, name = text.partition("=")
    if not sign or not name:
        raise BadInput(f"--label {text}: expected DIR=NAME")
    return Path(folder).name, name


def _split(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        price, speed = (float(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--split {text}: expected PRICE,SPEED such as 0.5,40") from None
    return price, speed


def compare_options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm compare`."""
    add = parser.add_argument
    add("base", metavar="BASE", help="folder of the run to compare with")
    add("new", nargs="+", metavar="NEW", help="folder of a run to judge")
    add("--tolerance", action="append", default=[], metavar="METRIC=SHARE", dest="tolerances",
        help="how much worse a figure may be, e.g. ttft_s=5%% or '*=3%%'; may be "
        "repeated")  # fmt: skip
    add("--markdown", metavar="FILE", help="write the comparison for a pull request")
    add("--html", metavar="FILE", help="write it as a page")
    add("--force", action="store_true", help="compare runs that differ in more than one thing")


def compare(args: argparse.Namespace) -> int:
    """`tokenswarm compare`: 1 on a regression. Raises BadInput."""
    from exporters import compare_report
    from tokenswarm.compare import compare as run
    from tokenswarm.compare import parse_tolerances

    found = run(Path(args.base), [Path(d) for d in args.new], parse_tolerances(args.tolerances),
                args.force)  # fmt: skip
    text = compare_report.markdown(found)
    if args.markdown is not None:
        _write(args.markdown, "--markdown", text)
    if args.html is not None:
        _write(args.html, "--html", compare_report.html(found))
    print(text)
    return found.exit_code


def export_options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm export`."""
    add = parser.add_argument
    add("dir", metavar="DIR", help="folder of a run")
    add("--format", required=True, metavar="NAME",
        help="csv, vllm-bench or openmetrics (for promtool backfill)")  # fmt: skip
    add("--output", metavar="FILE", help="file to write (default stdout)")


def export(args: argparse.Namespace) -> int:
    """`tokenswarm export`; returns the exit code. Raises BadInput."""
    from exporters.formats import export as write

    if args.output is None:
        write(Path(args.dir), args.format, sys.stdout.buffer)
        sys.stdout.flush()
        return 0
    try:
        with Path(args.output).open("wb") as out:
            write(Path(args.dir), args.format, out)
    except OSError as e:
        raise BadInput(f"--output {args.output}: {e.strerror or e}") from None
    return 0


def _write(path: str, option: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise BadInput(f"{option} {path}: {e.strerror or e}") from None
