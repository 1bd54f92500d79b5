"""Where numbers go: one file a sink, one row of EXPORTERS each.

A row is a function (arg, out) -> Exporter that imports its sink only when it is asked for; the
first line of its docstring is its help. They are called in the order of the table, the console
last, so that what the others could not write is on the screen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenswarm.run import Exporter


def _prometheus(arg: str | None, out: Path | None) -> Exporter:
    """Serve /metrics for Prometheus: prometheus=[HOST:]PORT, prometheus=off for none."""
    from exporters.prometheus import Prometheus

    return Prometheus(arg)


def _timeline(arg: str | None, out: Path | None) -> Exporter:
    """Write timeline.jsonl, one line an interval."""
    from exporters.timeline import Timeline

    return Timeline(out)


def _summary(arg: str | None, out: Path | None) -> Exporter:
    """Write summary.json."""
    from exporters.summary import Summary

    return Summary(out)


def _junit(arg: str | None, out: Path | None) -> Exporter:
    """Write junit.xml, one case an SLO."""
    from exporters.junit import JUnit

    return JUnit(out)


def _html(arg: str | None, out: Path | None) -> Exporter:
    """Write report.html."""
    from exporters.html_file import HtmlFile

    return HtmlFile(out)


def _console(arg: str | None, out: Path | None) -> Exporter:
    """Show the run on the terminal while it goes on, and its summary at the end."""
    from exporters.console import Console

    return Console()


EXPORTERS: dict[str, Callable[[str | None, Path | None], Exporter]] = {
    "prometheus": _prometheus,
    "timeline": _timeline,
    "summary": _summary,
    "junit": _junit,
    "html": _html,
    "console": _console,
}


def help_of(name: str) -> str:
    """The one-line help of a row."""
    return (EXPORTERS[name].__doc__ or "").splitlines()[0]
