"""The table of exporters, and the report's sink, which must survive its picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hand_made import record, run, worker

from exporters import EXPORTERS, help_of, html_file, summary


def test_the_console_comes_last_so_that_it_shows_what_the_others_could_not_do() -> None:
    assert list(EXPORTERS) == ["prometheus", "timeline", "summary", "junit", "html", "console"]


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_row_has_a_line_of_help(name: str) -> None:
    assert help_of(name).endswith(".")
    assert "\n" not in help_of(name)


def test_a_whole_run_goes_through_all_of_them(tmp_path: Path) -> None:
    found = run(worker(0, *[record(k) for k in range(30)]), out=tmp_path)
    made = [
        make("off" if name == "prometheus" else None, tmp_path) for name, make in EXPORTERS.items()
    ]
    for exporter in made:
        exporter.start(found)
    for exporter in made:
        exporter.interval(found)
    result = summary.build(found)
    for exporter in made:
        exporter.finish(found, result)
        exporter.close()
    assert {p.name for p in tmp_path.iterdir()} == {
        "timeline.jsonl", "summary.json", "junit.xml", "report.html",
    }  # fmt: skip
    assert not [w for w in result["warnings"] if "cannot" in w]


def test_a_report_that_cannot_be_drawn_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError("no pixels")

    monkeypatch.setattr("exporters.html_report.build", broken)
    found = run(worker(0, record()), out=tmp_path)
    result = summary.build(found)
    html_file.HtmlFile().finish(found, result)
    assert result["warnings"][-1] == (
        f"cannot draw {tmp_path / 'report.html'}: ZeroDivisionError: no pixels"
    )


def test_the_table_imports_no_sink_before_it_is_used() -> None:
    code = (
        "import sys, exporters; "
        "print([m for m in ('rich', 'numpy', 'jinja2', 'prometheus_client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
