"""`tokenswarm k8s render`: options and output. Nothing heavy is imported before it is run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenswarm.records import BadInput


def options(parser: argparse.ArgumentParser) -> None:
    """Options of `tokenswarm k8s`."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, help="what to do with the manifests"
    )
    sub = actions.add_parser("render", help="print the manifests of an overlay of k8s/")
    add = sub.add_argument
    add("overlay", metavar="OVERLAY", help="e.g. smoke-cpu, headless, webui, soak")
    add("--image", metavar="IMAGE", help="image of tokenswarm (default: the overlay's)")
    add("--workers", type=_workers, metavar="N", help="worker pods (default: the overlay's)")
    add("--namespace", metavar="NS", help="namespace of all of it (default tokenswarm)")
    add("--workload", metavar="FILE", help="workload file (default: the overlay's)")
    add("--set", action="append", default=[], metavar="key.path=value", dest="sets",
        help="change one value of the workload, or a number of the overlay's run.yaml, e.g. "
        "MODEL=my/model (TOKENIZER follows where TOKENIZER_SOURCE is hf); repeatable")  # fmt: skip
    add("--out", metavar="DIR", help="write one file an object there, in the order to apply them")


def k8s(args: argparse.Namespace) -> int:
    """`tokenswarm k8s`; returns the exit code. Raises BadInput."""
    from tokenswarm.k8s_render import Changes, render, split

    if args.out is not None and (folder := Path(args.out)).exists() and any(folder.iterdir()):
        raise BadInput(f"--out {args.out}: is not empty; name a new folder")
    changes = Changes(args.image, args.workers, args.namespace, args.workload, tuple(args.sets))
    text = render(args.overlay, changes)
    if args.out is None:
        sys.stdout.write(text)
        return 0
    files = split(text)
    try:
        folder = Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, "utf-8")
    except OSError as e:
        raise BadInput(f"--out {args.out}: cannot write: {e.strerror}") from None
    print(f"{len(files)} manifests in {args.out}")
    return 0


def _workers(text: str) -> int:
    try:
        n = int(text)
    except ValueError:
        n = 0
    if n < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, got '{text}'")
    return n
