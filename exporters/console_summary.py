"""The summary of a run as tables for the terminal, at most 100 columns wide.

It knows summary.json's keys and nothing of a Run. The one subtle rule: the verdict comes first,
because figures of a run that cannot be believed must not be read without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from exporters.units import NONE, number, seconds, share
from tokenswarm.measure import METRICS

WIDTH = 100
_ROWS = ("ttft_s", "ttft_due_s", "itl_s", "tpot_s", "e2e_s", "e2e_due_s", "send_delay_s",
         "connect_s", "longest_gap_s", "prompt_tokens", "output_tokens",
         "tokens_per_s_per_user")  # fmt: skip
_COLUMNS = ("mean", "p50", "p90", "p99", "max")
_MOST_ERRORS = 5
_MOST_WARNINGS = 30


def render(summary: dict[str, Any], out: str | None) -> Iterator[Any]:
    """The parts of the summary, in the order in which they are printed."""
    yield _verdict(summary)
    yield _figures(summary)
    yield _metrics(summary)
    if len(summary["stages"]) > 1:
        yield _stages(summary)
    yield from _errors(summary)
    yield from _checks(summary)
    yield from _warnings(summary)
    if out is not None:
        yield Text(f"Files in {out}", overflow="fold")
    # Last, since the end of a log is what `kubectl describe` shows of a failed pod.
    codes = ", ".join(dict.fromkeys(r["code"] for r in summary["invalid_reasons"]))
    failed = ", ".join(c["text"] for c in summary["slo"]["checks"] if c["passed"] is False)
    why = codes or failed
    yield Text(f"exit code {summary['exit_code']}{f': {why}' if why else ''}", overflow="fold")


def _verdict(summary: dict[str, Any]) -> Text:
    text = Text()
    if summary["valid"]:
        passed = summary["slo"]["passed"]
        text.append(
            "VALID RUN, SLOs passed" if passed else "VALID RUN, an SLO failed",
            style="bold green" if passed else "bold red",
        )
        return text
    text.append("INVALID RUN: its numbers must not be used", style="bold red")
    for reason in summary["invalid_reasons"]:
        text.append(f"\n  {reason['code']}: {reason['detail']}")
    return text


def _table(title: str, first: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                  collapse_padding=True)  # fmt: skip
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figures(summary: dict[str, Any]) -> Table:
    """Counts of the whole run and rates of the measured window."""
    requests, rates, tokens = summary["requests"], summary["throughput"], summary["tokens"]
    slo, window = summary["slo"], summary["window"]
    table = Table(show_header=False, box=None)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    shown = {k: requests[k] for k in ("ok", "failed", "dropped", "lost")}
    shown |= {k: n for k, n in requests["by_outcome"].items() if k == "cancelled"}
    counts = ", ".join(f"{n:,} {k}" for k, n in shown.items())
    table.add_row("requests", f"{requests['due']:,} due, {requests['sent']:,} sent: {counts}")
    table.add_row("tokens", f"{tokens['prompt']:,} in, {tokens['output']:,} out")
    table.add_row("measured window", seconds(window["seconds"]))
    table.add_row("throughput", _rates(rates))
    if slo["attainment"] is not None:
        rate = slo["goodput_per_s"]
        met = f"{share(slo['attainment'])} of requests met every SLO"
        table.add_row(
            "attainment" if rate is None else "goodput",
            met if rate is None else f"{number(rate)} good requests/s, {met}",
        )
    cost = summary.get("cost")
    if cost:
        table.add_row("price", _price(cost))
    use = summary.get("utilization")
    if use and use["mbu"] is not None:
        table.add_row("utilization", _utilization(use))
    prompts = summary["prompts"]
    if prompts["compared"]:
        exact = f"{prompts['exact']:,} of {prompts['compared']:,} exactly as long as asked"
        table.add_row("prompts", exact)
    return table


def _rates(rates: dict[str, Any]) -> str:
    per_gpu = rates["output_tokens_per_s_per_gpu"]
    gpu = f", {number(per_gpu)} out per GPU" if per_gpu is not None else ""
    return (f"{number(rates['requests_per_s'])} requests/s; tokens/s: "
            f"{number(rates['output_tokens_per_s'])} out, "
            f"{number(rates['total_tokens_per_s'])} in and out{gpu}")  # fmt: skip


def _price(cost: dict[str, Any]) -> str:
    kinds = ("input", "output", "total")
    prices = [(k, cost[f"usd_per_million_{k}_tokens"]) for k in kinds]
    return "USD per million tokens: " + ", ".join(
        f"{price:.3g} {kind}" for kind, price in prices if price is not None
    )


def _utilization(use: dict[str, Any]) -> str:
    """Shares of the hardware's peaks, with the batch that they hold for."""
    inputs = use["inputs"]
    return (f"MBU {share(use['mbu'])}, MFU {share(use['mfu'])} of {inputs['count']} x "
            f"{inputs['gpu']}; {number(inputs['batch'])} sequences a replica")  # fmt: skip


def _value(name: str, value: float | None) -> str:
    return seconds(value) if METRICS[name].unit == "s" else number(value)


def _metrics(summary: dict[str, Any]) -> Table:
    table = _table("Measured stages", "", ("count", *_COLUMNS))
    for name in _ROWS:
        figures = summary["metrics"].get(name)
        if figures and figures["count"]:
            values = [_value(name, figures[column]) for column in _COLUMNS]
            table.add_row(name, number(figures["count"]), *values)
    return table


def _stages(summary: dict[str, Any]) -> Table:
    columns = ("load", "due", "ok", "failed", "tok/s", "TTFT\np50", "\np99", "ITL\np50", "\np99")
    table = _table("Stages (* warm-up)", "", columns)
    for stage in summary["stages"]:
        requests, metrics = stage["requests"], stage["metrics"]
        rate = stage["rate_per_s"]
        load = f"{number(rate)}/s" if rate is not None else number(stage["users"])
        name = f"{stage['name'][:18]}{' *' if stage['warmup'] else ''}"
        table.add_row(
            name, load, number(requests["due"]), number(requests["ok"]),
            number(requests["failed"]), number(stage["throughput"]["output_tokens_per_s"]),
            *(seconds(metrics[m][p]) for m in ("ttft_s", "itl_s") for p in ("p50", "p99")),
        )  # fmt: skip
    return table


def _errors(summary: dict[str, Any]) -> Iterator[Text]:
    """The most frequent error texts."""
    errors = summary["errors"]
    if not errors:
        return
    text = Text("Errors", style="bold")
    for error in errors[:_MOST_ERRORS]:
        line = f"{error['count']:,} {error['outcome']}: {error['error']}"
        text.append(f"\n  {line[: 2 * WIDTH]}", style="not bold")
    if len(errors) > _MOST_ERRORS:
        text.append(f"\n  and {len(errors) - _MOST_ERRORS} other texts", style="not bold")
    yield text


def _checks(summary: dict[str, Any]) -> Iterator[Text]:
    """One line an SLO."""
    words = {True: ("PASS", "green"), False: ("FAIL", "red"), None: ("????", "yellow")}
    for check in summary["slo"]["checks"]:
        word, color = words[check["passed"]]
        text = Text()
        text.append(word, style=f"bold {color}")
        text.append(f" {check['text']}: {check['detail'] or NONE}")
        yield text


def _warnings(summary: dict[str, Any]) -> Iterator[Text]:
    warnings = summary["warnings"]
    for warning in warnings[:_MOST_WARNINGS]:
        text = warning if len(warning) <= 3 * WIDTH else f"{warning[: 3 * WIDTH]} ..."
        yield Text.assemble(("warning", "bold yellow"), f": {text}", overflow="fold")
    if len(warnings) > _MOST_WARNINGS:
        yield Text(f"and {len(warnings) - _MOST_WARNINGS} more warnings in summary.json")
