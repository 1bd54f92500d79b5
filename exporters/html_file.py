"""report.html of a run that ended: the sink around html_report.build, which draws the page.

It knows which files the page is made of. The one subtle rule: a report that cannot be drawn or
written must not cost the run its other results.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from exporters import files
from exporters.summary import REQUESTS
from exporters.timeline import FILE as TIMELINE
from tokenswarm.run import Run

FILE = "report.html"
_log = logging.getLogger(__name__)


def write(out: Path, summary: dict[str, Any], run: Run | None = None) -> str | None:
    """Draw and write the report of a folder; None when it is there, else why not."""
    try:
        # jinja2 and numpy: not before a run is over
        from exporters.html_report import build

        page = build(summary, _there(out / REQUESTS), _there(out / TIMELINE))
    except Exception as error:  # noqa: BLE001 - the page is a picture of results that must survive it
        _log.exception("cannot draw %s", out / FILE)
        return f"cannot draw {out / FILE}: {type(error).__name__}: {error}"
    return files.try_write(out / FILE, page.encode(), run)


def _there(path: Path) -> Path | None:
    return path if path.is_file() else None


class HtmlFile(files.FileAtEnd):
    """Writes report.html when a run ends."""

    def write(self, out: Path, run: Run, summary: dict[str, Any]) -> str | None:
        """Draw the page and write it."""
        return write(out, summary, run)
