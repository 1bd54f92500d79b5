"""tokenswarm's options beside Locust's own, on every command line that loads our locustfile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenswarm.records import BadInput

_LOCUST_LOAD = {"num_users": "-u/--users", "spawn_rate": "-r/--spawn-rate",
                "run_time": "-t/--run-time"}  # fmt: skip
GPU_SOURCES = ("nvml",)
_INSTEAD = {
    "num_users": "--set load.users=N",
    "spawn_rate": "a ramp in load.stages",
    "run_time": "--set load.duration=60s",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for, apart from the workload itself."""

    workload: str
    sets: tuple[str, ...]
    exports: tuple[str, ...]
    out: str | None
    linger_s: float | None
    wait_ready_s: float
    rate_per_s: float
    plain: bool
    gpu: str | None = None


def add_arguments(parser: Any) -> None:
    """Add the options to Locust's parser (listener of init_command_line_parser)."""
    add = parser.add_argument
    add(
        "--workload", default="", metavar="FILE.yaml", env_var="TOKENSWARM_WORKLOAD",
        help="Workload file: model, prompts, load, SLOs",
    )  # fmt: skip
    add(
        "--set", action="append", default=[], dest="workload_set", metavar="key.path=value",
        include_in_web_ui=False, help="Change one value of the workload; may be repeated",
    )  # fmt: skip
    add(
        "--export", action="append", default=[], dest="export", metavar="NAME[=ARG]",
        include_in_web_ui=False,
        help="Where numbers go beside the run's folder, e.g. prometheus=0.0.0.0:9646 or "
        "prometheus=off (default: prometheus=127.0.0.1:9646)",
    )  # fmt: skip
    add(
        "--out", default="", metavar="DIR", include_in_web_ui=False,
        help="Folder of the run, exactly; default runs/<timestamp>-<name>/",
    )  # fmt: skip
    add(
        "--gpu", default="", choices=("", *GPU_SOURCES), include_in_web_ui=False,
        help="nvml: sample this machine's GPUs (use, memory, power, temperature) beside the "
        "engine's metrics, every server.interval",
    )  # fmt: skip
    add(
        "--linger", type=float, default=-1.0, metavar="SECONDS", include_in_web_ui=False,
        help="How long /metrics stays served after a headless run; default: until two more "
        "scrapes were seen, at most 35 s, not at all when nobody scraped",
    )  # fmt: skip
    add(
        "--wait-ready", type=float, default=0.0, metavar="SECONDS", include_in_web_ui=False,
        help="Wait so long for the server to give a first token before the load starts",
    )  # fmt: skip
    add(
        "--rate-per-s", type=float, default=0.0, metavar="RATE",
        help="Web UI only: rate of an open-loop workload without stages; 0 = the workload's",
    )  # fmt: skip


def read(parsed: Any, env_plain: bool) -> Options:
    """Options from Locust's parsed ones. Raises BadInput for contradictions, all at once."""
    problems = [
        f"{flag}: the workload file decides the load; leave it out and use {_INSTEAD[name]}"
        for name, flag in _LOCUST_LOAD.items()
        if getattr(parsed, name, None) is not None
    ]
    if parsed.rate_per_s and parsed.headless:
        problems.append("--rate-per-s: is for the web UI; use --set load.rate_per_s=N")
    if not parsed.workload:
        problems.append(
            "--workload: missing; name a workload file, e.g. --workload workloads/demo.yaml"
        )
    if parsed.wait_ready < 0:
        problems.append(f"--wait-ready: must be 0 or more seconds, got {parsed.wait_ready:g}")
    if problems:
        raise BadInput(*problems)
    return Options(
        workload=parsed.workload,
        sets=tuple(parsed.workload_set or ()),
        exports=tuple(parsed.export or ()),
        out=parsed.out or None,
        linger_s=None if parsed.linger < 0 else parsed.linger,
        wait_ready_s=parsed.wait_ready,
        rate_per_s=parsed.rate_per_s,
        plain=env_plain,
        gpu=parsed.gpu or None,
    )
