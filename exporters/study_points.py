"""The runs of a study as points: configuration, lengths, load, speed and price of each.

It reads run folders and works out what the study report shows; it draws nothing. Runs of one
configuration and one pair of lengths make a curve over the load.

The one subtle rule: a run that is invalid is on no curve and wins nothing; it is listed, so that
a gap has a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenswarm import economics
from tokenswarm.compare_sides import Side, load
from tokenswarm.records import BadInput


@dataclass(frozen=True, slots=True)
class Point:
    """One run. Rates a second, times in seconds, prices in dollars a million tokens."""

    folder: str
    configuration: str
    hardware: str
    lengths: tuple[int, int]
    load: float
    load_kind: str  # users, or requests/s
    valid: bool
    slo_passed: bool | None
    output_rate: float | None
    total_rate: float | None
    request_rate: float | None
    user_speed: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    e2e_p50: float | None
    answer_s: float | None
    prices: Mapping[str, float | None]
    mbu: float | None
    mfu: float | None
    roof: tuple[economics.Hardware, economics.Model, float] | None
    batch: float | None

    @property
    def label(self) -> str:
        """configuration@hardware."""
        return f"{self.configuration}@{self.hardware}" if self.hardware else self.configuration

    @property
    def power(self) -> float | None:
        """Throughput over latency; a curve's knee is where it is highest (Kleinrock 1979)."""
        if not self.output_rate or not self.e2e_p50:
            return None
        return self.output_rate / self.e2e_p50


@dataclass(frozen=True, slots=True)
class Curve:
    """The valid runs of one configuration at one pair of lengths, by load."""

    label: str
    lengths: tuple[int, int]
    points: tuple[Point, ...]
    capacity: Point | None  # the highest load that meets its SLOs
    knee: Point | None


def read(
    folders: Sequence[Path], labels: Mapping[str, str] | None = None, answer_tokens: int = 512
) -> list[Point]:
    """The runs in these folders; labels: folder name -> configuration. Raises BadInput."""
    problems: list[str] = []
    points = []
    for folder in folders:
        try:
            points.append(point(load(Path(folder)), labels or {}, answer_tokens))
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    return points


def point(side: Side, labels: Mapping[str, str], answer_tokens: int) -> Point:
    """One run as a point."""
    summary, flat = side.summary, side.workload
    run, through = summary.get("run") or {}, summary.get("throughput") or {}
    metrics = summary.get("metrics") or {}
    level, kind = load_level(flat)
    spec = section(flat, "hardware")
    use, roof = _utilization(side, spec)
    return Point(
        folder=side.folder,
        configuration=labels.get(side.name) or str(run.get("name") or side.name),
        hardware=f"{spec.get('count') or 1}x{spec['gpu']}" if spec.get("gpu") else "",
        lengths=(_whole(metrics, "prompt_tokens"), _whole(metrics, "output_tokens")),
        load=level,
        load_kind=kind,
        valid=bool(summary.get("valid")),
        slo_passed=(summary.get("slo") or {}).get("passed"),
        output_rate=through.get("output_tokens_per_s"),
        total_rate=through.get("total_tokens_per_s"),
        request_rate=through.get("requests_per_s"),
        user_speed=_at(metrics, "tokens_per_s_per_user", "p50"),
        ttft_p50=_at(metrics, "ttft_s", "p50"),
        ttft_p99=_at(metrics, "ttft_s", "p99"),
        tpot_p50=_at(metrics, "tpot_s", "p50"),
        e2e_p50=_at(metrics, "e2e_s", "p50"),
        answer_s=economics.answer_time(summary, answer_tokens),
        prices=_prices(spec, through),
        mbu=use.get("mbu"),
        mfu=use.get("mfu"),
        roof=roof,
        batch=(use.get("inputs") or {}).get("batch"),
    )


def curves(points: Sequence[Point], answer_limit_s: float | None = None) -> list[Curve]:
    """Points grouped by configuration and lengths; answer_limit_s is one SLO more."""
    groups: dict[tuple[str, tuple[int, int]], list[Point]] = {}
    for p in points:
        if p.valid:
            groups.setdefault((p.label, p.lengths), []).append(p)
    found = []
    for (label, lengths), members in groups.items():
        members.sort(key=lambda p: p.load)
        good = [p for p in members if meets(p, answer_limit_s)]
        knees = [p for p in members if p.power is not None]
        knee = max(knees, key=lambda p: p.power or 0.0) if len(knees) > 2 else None
        found.append(Curve(label, lengths, tuple(members), good[-1] if good else None, knee))
    return sorted(found, key=lambda c: c.lengths)  # configurations stay in the order given


def meets(p: Point, answer_limit_s: float | None) -> bool:
    """Whether a run is valid, failed no SLO of its own, and answers fast enough."""
    if not p.valid or p.slo_passed is False:
        return False
    return answer_limit_s is None or (p.answer_s is not None and p.answer_s < answer_limit_s)


def load_level(flat: Mapping[str, Any]) -> tuple[float, str]:
    """The load of a workload's measured stages (the highest), and what it is counted in."""
    for key, kind in (("users", "users"), ("rate_per_s", "requests/s")):
        levels = [flat.get(f"load.{key}")]
        for path, value in flat.items():
            stage, _, name = path.rpartition(".")
            if path.startswith("load.stages.") and name == key and not flat.get(f"{stage}.warmup"):
                levels.append(value)
        known = [float(v) for v in levels if isinstance(v, int | float)]
        if known:
            return max(known), kind
    return 0.0, "users"


def section(flat: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of a flat workload as nested plain data."""
    found: dict[str, Any] = {}
    for path, value in flat.items():
        if path.startswith(name + ".") and value is not None:
            *parents, last = path.removeprefix(name + ".").split(".")
            holder = found
            for parent in parents:
                holder = holder.setdefault(parent, {})
            holder[last] = value
    return found


def _prices(spec: Mapping[str, Any], through: Mapping[str, Any]) -> dict[str, float | None]:
    """Dollars a million input, output and total tokens; empty without an hourly price."""
    cost = economics.cost(spec, through) or {}
    kinds = ("input", "output", "total")
    return {k: cost[f"usd_per_million_{k}_tokens"] for k in kinds} if cost else {}


def _utilization(
    side: Side, spec: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[economics.Hardware, economics.Model, float] | None]:
    """What the run used of its hardware, and what its roofline is drawn from."""
    described = economics.described(spec)
    if described is None:
        return side.summary.get("utilization") or {}, None
    use = side.summary.get("utilization") or economics.utilization(
        side.summary, *described, economics.running_of(side.summary, side.requests)
    )
    return use, (*described, economics.context_of(use["inputs"]))


def _at(metrics: Mapping[str, Any], name: str, key: str) -> float | None:
    value = (metrics.get(name) or {}).get(key)
    return None if value is None else float(value)


def _whole(metrics: Mapping[str, Any], name: str) -> int:
    return round(_at(metrics, name, "p50") or 0)
