"""The command line: one table of commands, each with its options and what it does.

Nothing heavy is imported here: `tokenswarm --help` must answer in a blink. Output for people
goes to stdout, complaints and logs to stderr. Exit codes: 0 fine, 1 an SLO failed or a
regression, 2 bad usage or input, 3 the run is invalid, 4 an internal error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenswarm import __version__, cli_k8s, cli_results, cli_study
from tokenswarm.records import BadInput

_EXAMPLES = """\
examples:
  tokenswarm simulate --port 8000 &
  tokenswarm run workloads/demo.yaml --host http://127.0.0.1:8000 --workers 2
  tokenswarm check workloads/smoke.yaml --set load.users=8
  tokenswarm prompts workloads/demo.yaml -n 3
  tokenswarm report runs/20260101-120000-demo

exit codes:
  0 fine   1 an SLO failed   2 bad input, nothing sent   3 the run is invalid   4 internal error
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One row of COMMANDS: help, options, and the function that runs it."""

    help: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _workload_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD.yaml", help="workload file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key.path=value", dest="sets",
        help="change one value of the workload, e.g. prompts.input_tokens=1000; may be repeated",
    )  # fmt: skip


def _run_options(parser: argparse.ArgumentParser) -> None:
    _workload_options(parser)
    add = parser.add_argument
    add("--host", required=True, metavar="URL", help="base URL of the server under test")
    add("--workers", type=_workers, default=1, metavar="N",
        help="local worker processes; 0 = everything in one process (default 1)")  # fmt: skip
    add("--out", metavar="DIR", help="folder of the run (default runs/<timestamp>-<name>/)")
    add("--web", nargs="?", type=int, const=8089, metavar="PORT",
        help="Locust's web UI on 127.0.0.1, nothing starts by itself "
        "(default port 8089)")  # fmt: skip
    add("--export", action="append", default=[], metavar="NAME[=ARG]", dest="exports",
        help="e.g. prometheus=0.0.0.0:9646, prometheus=off "
        "(default prometheus=127.0.0.1:9646)")  # fmt: skip
    cli_study.add_gpu(parser)
    add("--wait-ready", type=float, metavar="SECONDS",
        help="wait so long for the server to give a first token (default 0)")  # fmt: skip
    add("--linger", type=float, metavar="SECONDS",
        help="how long /metrics stays served afterwards (default: until two more scrapes, at "
        "most 35 s, 0 when nobody scraped)")  # fmt: skip


def _workers(text: str) -> int:
    try:
        n = int(text)
    except ValueError:
        n = -1
    if not 0 <= n <= 1024:
        raise argparse.ArgumentTypeError(f"a whole number from 0 to 1024, got '{text}'")
    return n


def _run(args: argparse.Namespace) -> int:
    from tokenswarm.launch import launch

    return launch(args)


def _check(args: argparse.Namespace) -> int:
    from tokenswarm.check import check

    return check(args.workload, args.sets, sys.stdout)


def _prompts_options(parser: argparse.ArgumentParser) -> None:
    _workload_options(parser)
    parser.add_argument("-n", type=int, default=20, metavar="N", help="how many (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _prompts(args: argparse.Namespace) -> int:
    from tokenswarm import workload
    from tokenswarm.prompts.show import show

    if args.n < 1:
        raise BadInput(f"-n: must be at least 1, got {args.n}")
    show(workload.load(args.workload, args.sets), args.n, args.json, sys.stdout)
    return 0


def _simulate(args: argparse.Namespace) -> int:
    from tokenswarm.simulator.command import main as simulate

    return int(simulate(args.rest))


def _no_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


COMMANDS: dict[str, Command] = {
    "run": Command("run a workload and judge the result", _run_options, _run),
    "check": Command("validate a workload and print its plan; send nothing", _workload_options,
                     _check),
    "prompts": Command("print synthesised prompts with their verified token counts",
                       _prompts_options, _prompts),
    "simulate": Command("the embedded engine: an LLM server without a GPU", _no_options,
                        _simulate),
    "search": Command("find the highest load that meets the SLOs", cli_study.search_options,
                      cli_study.search),
    "sweep": Command("run a grid over targets, lengths, load and settings",
                     cli_study.sweep_options, cli_study.sweep),
    "calibrate": Command("measure how much load one worker of this machine can drive",
                         cli_study.calibrate_options, cli_study.calibrate),
    "report": Command(
        "(re)build the report of runs from their files", cli_results.report_options,
        cli_results.report,
    ),
    "compare": Command(
        "is NEW really different from BASE? exit 1 on a regression",
        cli_results.compare_options, cli_results.compare,
    ),
    "export": Command(
        "write a finished run in another tool's format", cli_results.export_options,
        cli_results.export,
    ),
    "k8s": Command("render Kubernetes manifests with an image, workers, a workload of yours",
                   cli_k8s.options, cli_k8s.k8s),
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="tokenswarm",
        description="A distributed load tester for LLM inference servers, built on Locust.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tokenswarm {__version__}")
    top.add_argument("-v", "--verbose", action="store_true", help="log what is done, on stderr")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        # simulate has options of its own, --help among them
        sub = commands.add_parser(name, help=command.help, add_help=name != "simulate")
        command.options(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] == "simulate":  # argparse.REMAINDER would swallow leading options wrongly
        args: Any = argparse.Namespace(command="simulate", rest=argv[1:], verbose=False)
    else:
        args = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        return COMMANDS[args.command].run(args)
    except BadInput as e:
        for problem in e.problems:
            print(f"tokenswarm: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception:  # Python's own exit code for it, 1, would say that an SLO failed
        logging.getLogger(__name__).exception("tokenswarm failed; this is a fault of its own")
        return 4


if __name__ == "__main__":
    sys.exit(main())
