"""`tokenswarm check`: the resolved workload and its plan, printed; nothing is sent.

Loads what a run would load (tokenizer, data set), so that a missing file is found here.
"""

from __future__ import annotations

import itertools
from typing import Any, TextIO

from tokenswarm import arrivals, economics, workload

_SHOWN = 8
_COUNTED = 100_000


def check(path: str, sets: list[str], out: TextIO) -> int:
    """Validate and print; returns the exit code. Raises BadInput with every mistake."""
    from tokenswarm import backends, prompts

    work = workload.load(path, sets)
    objectives = work.objectives()
    unknowns = _unknowns(work)
    backend = backends.make(work)
    source = prompts.open_source(work)
    out.write(workload.dump(work))
    out.write("\n# The plan\n")
    out.write(f"#   requests go to POST <host>{backend.path}\n")
    for line in (*_stages(work), *_arrivals(work), *_lengths(work, source)):
        out.write(f"#   {line}\n")
    for objective in objectives:
        each = "each request" if objective.per_request else "over the run"
        out.write(f"#   SLO {objective.text} ({each})\n")
    for warning in (*work.notes, *source.warnings, *unknowns):
        out.write(f"#   warning: {warning}\n")
    return 0


def _unknowns(work: Any) -> list[str]:
    """What MBU and MFU must do without. Raises BadInput where they cannot be reckoned at all."""
    hardware = work.hardware.model_dump() if work.hardware is not None else {}
    described = economics.described(hardware)
    return economics.unknowns(described[1], hardware) if described is not None else []


def _stages(work: Any) -> list[str]:
    lines = []
    for stage in work.load.resolved_stages():
        end = (
            f"{stage.duration:g} s" if stage.duration is not None else f"{stage.requests} requests"
        )
        if work.load.mode == "closed":
            load = f"up to {stage.most_users} users"
        elif stage.rate_per_s is not None:
            load = f"{stage.rate_per_s:g} requests/s"
        else:
            load = "a trace" if stage.profile is None else f"shape {type(stage.profile).__name__}"
        kind = "warm-up" if stage.warmup else "measured"
        lines.append(f"stage {stage.name}: {load} for {end} ({kind})")
    return lines


def _arrivals(work: Any) -> list[str]:
    if work.load.mode != "open":
        return []
    plan = list(itertools.islice(arrivals.schedule(work.load, work.seed), _COUNTED + 1))
    more = "more than " if len(plan) > _COUNTED else ""
    shown = ", ".join(f"{a.due_ns / 1e9:.4f}" for a in plan[:_SHOWN])
    return [
        f"{more}{min(len(plan), _COUNTED)} arrivals ({work.load.arrivals})",
        f"first due at (s): {shown}{', ...' if len(plan) > _SHOWN else ''}",
    ]


def _lengths(work: Any, source: Any) -> list[str]:
    drawn = [work.prompts.draw(work.seed, i) for i in range(_SHOWN)]
    shown = ", ".join(f"{a if a is not None else '?'}+{b if b is not None else '?'}"
                      for a, b in drawn)  # fmt: skip
    first = source.prompts(range(2))
    proof = ", ".join(str(source.count(p)) for p in first)
    return [
        f"first lengths (input+output tokens): {shown}, ...",
        f"first prompts, counted anew: {proof} tokens",
    ]
