"""The exporters of a run, put together for tokenswarm.distributed, which knows none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from exporters import EXPORTERS, summary
from exporters.prometheus import Prometheus
from exporters.request_log import line as log_line
from tokenswarm.records import BadInput
from tokenswarm.run import Exporter, Run
from tokenswarm.validity import Verdict

__all__ = ["Kit", "log_line", "pages"]


class Kit:
    """See distributed.master.Outlets. Prometheus lives as long as the process, files as a run."""

    def __init__(self, options: Any) -> None:
        wanted: dict[str, str | None] = {}
        for text in options.exports:
            name, _, arg = text.partition("=")  # "" is asked for without a value, not unsaid
            if name not in EXPORTERS:
                raise BadInput(
                    f"--export {text}: unknown exporter '{name}'. "
                    f"Expected one of: {', '.join(EXPORTERS)}"
                )
            wanted[name] = arg
        self._wanted = wanted
        self._added: list[Exporter] = []
        self._prometheus = EXPORTERS["prometheus"](wanted.get("prometheus"), None)

    def open(self, out: Path | None) -> list[Exporter]:
        """The exporters of a run: the process's Prometheus, and new ones for its files."""
        made = [
            make(self._wanted.get(name), out)
            for name, make in EXPORTERS.items()
            if name != "prometheus"
        ]
        return [self._prometheus, *self._added, *made]

    def add(self, exporter: Exporter) -> None:
        """One more exporter for every run of this process."""
        self._added.append(exporter)

    def summarise(self, run: Run, verdict: Verdict) -> dict[str, Any]:
        """What summary.json holds."""
        return summary.build(run, verdict)

    def linger(self, seconds: float | None) -> None:
        """Keep /metrics served after a headless run."""
        assert isinstance(self._prometheus, Prometheus)
        self._prometheus.linger(seconds)

    def close(self) -> None:
        """The process ends."""
        self._prometheus.close()


def pages(environment: Any, master: Any, refused: Callable[[], tuple[str, ...]]) -> None:
    """What is added to Locust's web UI."""
    from exporters import web_tab

    web_tab.install(environment, master, refused)
