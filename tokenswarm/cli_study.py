"""The commands over many runs: search, sweep and calibrate, and what they print.

Options and output only; what is done is in study.py, study_search.py and calibrate.py. Nothing
heavy is imported before a command is run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tokenswarm.records import BadInput

_SEARCH = """\
examples:
  tokenswarm search workloads/demo.yaml --vary users --host http://127.0.0.1:8000 \\
      --slo 'p90(ttft)<500ms' --slo 'p90(tpot)<50ms' --high 256
  tokenswarm search workloads/open-loop.yaml --vary rate_per_s --start 5 --host http://127.0.0.1:8000

exit codes:
  0 found   1 no load meets the SLOs   2 bad input   3 no answer: invalid runs, our own limit
"""
_SWEEP = """\
examples:
  tokenswarm sweep workloads/studies/three-targets.yaml --simulated --out runs/three

files: study.json, study.csv, study.html, points/*: one run each

exit codes:
  0 all points are valid   2 bad input   3 some are not, or could not be run
"""
_CALIBRATE = """\
examples:
  tokenswarm calibrate
  tokenswarm calibrate --streams 2000 --tokens-per-s 60000 --json
"""


def _explain(parser: argparse.ArgumentParser, epilog: str) -> None:
    parser.epilog = epilog
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_set(parser: argparse.ArgumentParser) -> None:
    """`--set`, as `run` has it."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="key.path=value", dest="sets",
        help="change one value of the workload, e.g. prompts.input_tokens=1000; may be repeated",
    )  # fmt: skip


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """`--gpu`, as `run` has it."""
    parser.add_argument(
        "--gpu", choices=("nvml",),
        help="sample this machine's GPUs through NVML, beside the engine's metrics",
    )  # fmt: skip


def _warn_without_gpus(gpu: str | None, say: Any) -> None:
    """Each run says it too, into its own log."""
    if gpu is None:
        return
    from tokenswarm.server_side_nvml import LocalGpus

    gpus = LocalGpus()
    if not gpus.look():
        say(f"warning: {gpus.problem}; the runs go on without it")
    gpus.close()


def search_options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm search`."""
    _explain(parser, _SEARCH)
    add = parser.add_argument
    add("workload", metavar="WORKLOAD.yaml", help="workload file; with stages, each gets the level")
    add("--vary", required=True, choices=("users", "rate_per_s"), help="which load is searched")
    add("--host", required=True, metavar="URL", help="base URL of the server under test")
    add("--slo", action="append", default=[], dest="slos", metavar="TEXT",
        help="e.g. 'p99(ttft)<2s', beside those of the workload; may be repeated")  # fmt: skip
    add_set(parser)
    add("--start", type=float, metavar="N", help="first level (default: --low, or 1)")
    add("--low", type=float, metavar="N", help="lowest level that is tried (default 1 user, or a "
        "thousandth of the first rate)")  # fmt: skip
    add("--high", type=float, metavar="N", help="highest level that is tried (default: no limit)")
    add("--warm-start", metavar="DIR", help="begin near what an earlier search found")
    add("--precision", type=float, default=0.03, metavar="SHARE",
        help="how narrow the answer must be (default 0.03; users: never below 1)")  # fmt: skip
    add("--probes", type=int, default=30, metavar="N", help="most runs (default 30)")
    add("--workers", type=int, default=1, metavar="N", help="worker processes a run (default 1)")
    add_gpu(parser)
    add("--out", metavar="DIR", help="folder; one with probes in it is gone on with "
        "(default runs/search-<timestamp>-<name>/)")  # fmt: skip


def search(args: argparse.Namespace) -> int:
    """`tokenswarm search`; returns the exit code."""
    from tokenswarm.study import sayer
    from tokenswarm.study_search import Options
    from tokenswarm.study_search import search as run

    say = sayer(sys.stdout)
    options = Options(
        args.workload, args.vary, args.host, args.sets, args.slos, args.low, args.high, args.start,
        args.precision, args.probes, args.workers, args.out, args.warm_start,
        gpu=args.gpu,
    )  # fmt: skip
    _warn_without_gpus(args.gpu, say)
    found = run(options, say)
    report(found.folder, found.rows, {}, say)
    what = args.vary
    if found.why:
        say(f"NO ANSWER: {found.why}")
    if found.capacity is None:
        say(f"highest {what} that meets the SLOs: none found")
    else:
        above = "not probed above" if found.fails is None else f"{found.fails:g} does not"
        say(f"highest {what} that meets the SLOs: {found.capacity:g} ({above})")
    if found.knee is not None:
        say(f"knee of the throughput/latency curve: {what} {found.knee:g}")
    say(f"{len(found.rows)} probes, files in {found.folder}")
    return found.code


def sweep_options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm sweep`."""
    _explain(parser, _SWEEP)
    add = parser.add_argument
    add("study", metavar="STUDY.yaml", help="study file: targets, lengths, load, vary")
    add("--simulated", action="store_true",
        help="start the embedded engine with each target's `engine:` settings")  # fmt: skip
    add_gpu(parser)
    add("--out", metavar="DIR", help="folder; one with finished points is gone on with "
        "(default runs/<timestamp>-<name>/)")  # fmt: skip


def sweep(args: argparse.Namespace) -> int:
    """`tokenswarm sweep`; returns the exit code."""
    from tokenswarm.study import sayer
    from tokenswarm.study import sweep as run

    say = sayer(sys.stdout)
    _warn_without_gpus(args.gpu, say)
    folder, code, rows = run(args.study, args.out, args.simulated, say, args.gpu)
    labels = {Path(row["folder"]).name: row["target"] for row in rows if row["folder"]}
    report(folder, rows, labels, say)
    done = [row for row in rows if row["state"] == "done"]
    valid = sum(bool(row["valid"]) for row in done)
    say(f"{len(done)} of {len(rows)} points done, {valid} of them valid, files in {folder}")
    return code


def report(folder: Path, rows: list[dict[str, Any]], labels: dict[str, str], say: Any) -> None:
    """study.html beside study.json; a study without a finished point has none."""
    from exporters.study_report import build

    runs = [folder / row["folder"] for row in rows if row["folder"] and row["valid"]]
    if not runs:
        return
    try:
        (folder / "study.html").write_text(build(runs, labels), "utf-8")
    except (BadInput, OSError) as e:
        say(f"no study.html: {e}")


def calibrate_options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm calibrate`."""
    _explain(parser, _CALIBRATE)
    add = parser.add_argument
    add("--streams", type=float, metavar="N", help="a load: streams at the same time")
    add("--tokens-per-s", type=float, metavar="R", help="a load: token events a second in all")
    add("--bound-ms", type=float, default=2.0, metavar="MS",
        help="largest error of TTFT p99 that is fine (default 2 ms)")  # fmt: skip
    add("--seconds", type=float, default=55.0, metavar="S", help="most time it takes (default 55)")
    add("--json", action="store_true", help="one JSON object instead of the table")


def calibrate(args: argparse.Namespace) -> int:
    """`tokenswarm calibrate`; returns the exit code."""
    from tokenswarm import calibrate as module
    from tokenswarm.study import sayer
    from tokenswarm.study_server import Unfit

    problems = [
        f"--{name.replace('_', '-')}: must be above 0, got {value:g}"
        for name in ("streams", "tokens_per_s", "bound_ms", "seconds")
        if (value := getattr(args, name)) is not None and value <= 0
    ]
    if problems:
        raise BadInput(*problems)
    say = sayer(sys.stderr if args.json else sys.stdout)
    say(module.HEAD)
    try:
        found = module.calibrate(args.bound_ms / 1e3, args.seconds, say)
    except Unfit as e:
        say(f"tokenswarm: {e}")
        return 3
    if args.json:
        sys.stdout.write(found.to_json(args.streams, args.tokens_per_s) + "\n")
        return 0 if found.streams else 3
    for line in module.conclusion(found, args.streams, args.tokens_per_s):
        say(line)
    return 0 if found.streams else 3
