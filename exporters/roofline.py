"""The roofline: what memory and arithmetic allow at each batch, and what was measured there.

    bandwidth roof = batch x B / (W + batch x C x K)
    compute roof   = F / (2 x P)

Tokens a second of one replica; the letters stand under the picture with their values. The
formulas are those of economics.roofline. It knows nothing about runs or studies.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from exporters.charts import Chart, Line, Points, Rule, figure
from exporters.quantities import billions, number, percent, size
from exporters.scales import Axis, log_edges
from tokenswarm.economics import Hardware, Model, Roof, largest_batch, roofline

_FORMULAS = {  # with spaces at which no line ends
    "Bandwidth": "batch x B / (W + batch x C x K)".replace(" ", "\u00a0"),
    "Compute": "F / (2 x P)".replace(" ", "\u00a0"),
}
_LEAST_REACH = 64  # sequences: how far the roofs are drawn at least


def picture(
    ident: str, title: str, hardware: Hardware, model: Model, context: float,
    points: Sequence[tuple[float, float]], color: int = 0,
) -> Markup:  # fmt: skip
    """The roofs of a replica and points of (sequences, output tokens/s) of one replica.

    context: tokens that each sequence holds. There must be a point, and none may be 0.
    """
    at = [batch for batch, _ in points]
    batches = log_edges(min(1.0, *at), max(4 * max(at), _LEAST_REACH), 40)
    roofs = roofline(hardware, model, context, batches)
    room = largest_batch(hardware, model, context)
    lowest = min(roofs[0].by_bandwidth, *(rate for _, rate in points))
    rules = (Rule(room, "memory full", True),) if room and 1 < room < batches[-1] else ()
    return figure(Chart(
        ident, title, Axis("sequences of one replica", "", "log"),
        Axis("output tokens/s of one replica", "", "log", low=0.7 * lowest),  # room for a dot
        [Line("bandwidth", batches, [r.by_bandwidth for r in roofs], 1),
         Line("compute", batches, [r.by_compute for r in roofs], 4),
         Points("measured", at, [rate for _, rate in points], color, large=True)],
        rules=rules, note=_note(hardware, model, context, points)))  # fmt: skip


def _note(
    hardware: Hardware, model: Model, context: float, points: Sequence[tuple[float, float]]
) -> Markup:
    """What was measured, both formulas and what went into them."""
    roofs = roofline(hardware, model, context, [batch for batch, _ in points])
    lines = [
        _nearest(points, roofs),
        *(f"{roof} roof: {formula}." for roof, formula in _FORMULAS.items()),
        *_inputs(hardware, model, context, max(batch for batch, _ in points)),
    ]
    return Markup("<br>").join(lines)


def _nearest(points: Sequence[tuple[float, float]], roofs: Sequence[Roof]) -> str:
    """The point that makes most of what is possible at its batch."""
    shares = [rate / roof.best for (_, rate), roof in zip(points, roofs, strict=True)]
    best = max(range(len(shares)), key=lambda k: shares[k])
    batch, rate = points[best]
    roof = "bandwidth" if roofs[best].by_bandwidth < roofs[best].by_compute else "compute"
    text = (
        f"{'Measured' if len(points) == 1 else 'Nearest to a roof'}: {number(rate)} tokens/s at "
        f"{number(batch)} sequences, {percent(shares[best])} of the {roof} roof."
    )
    if shares[best] > 1:
        text += " More than is possible: hardware or model are not those described."
    return text


def _inputs(hardware: Hardware, model: Model, context: float, batch: float) -> list[str]:
    peak = number(hardware.flops * hardware.replica / 1e12)
    read = f"W = {size(model.bytes_read(batch))}, parameters read a step"
    if model.experts:
        read += f" (of experts, those that {number(batch)} sequences need)"
    return [
        f"B = {size(hardware.bandwidth * hardware.replica)}/s, F = {peak} TFLOPS: peaks of a "
        f"replica ({hardware.replica} x {hardware.name}).",
        f"{read}; P = {billions(model.active)}, parameters at work for a token.",
        f"C = {number(context)} tokens, context of a sequence (time average); "
        f"K = {size(model.kv_bytes)}, KV cache of a token.",
    ]
