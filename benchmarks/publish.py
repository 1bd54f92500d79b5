"""Put results where a reader finds them: JSON, a table and a picture in benchmarks/results.

Knows nothing about what was measured. The subtle rule: every file says when, with which versions
and on what kind of machine, in general words.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def circumstances(**versions: str) -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": _machine(),
        "versions": {
            "tokenswarm": version("tokenswarm"),
            "python": platform.python_version(),
            "linux": ".".join(platform.release().split(".")[:2]),
            **versions,
        },
    }


def _machine() -> str:
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    gigabytes = int(memory[1]) / 2**20 if memory else 0
    return f"{os.cpu_count()} cores ({cpu[1] if cpu else platform.machine()}), {gigabytes:.0f} GiB"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A markdown table; the keys of the first row are its head."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row[key] for key in head) + " |" for row in rows]
    return "\n".join(lines)


def publish(
    name: str, about: Mapping[str, Any], data: Any, markdown: str, figure: Any | None = None
) -> None:
    """Write NAME.json, NAME.md and, where Chromium is at hand, NAME.png."""
    RESULTS.mkdir(exist_ok=True)
    content = json.dumps(_plain({**about, "results": data}), indent=1, allow_nan=False)
    (RESULTS / f"{name}.json").write_text(content + "\n")
    versions = ", ".join(f"{key} {value}" for key, value in about["versions"].items())
    origin = f"Measured {about['date']} on {about['machine']}; {versions}."
    drawn = figure is not None and _draw(figure, RESULTS / f"{name}.png")
    picture = f"\n\n![{name}]({name}.png)" if drawn else ""
    (RESULTS / f"{name}.md").write_text(f"{markdown}{picture}\n\n{origin}\n")
    print(f"\n{markdown}\n\n{origin}")


def _plain(value: Any) -> Any:
    """The same for JSON: a number that is not one becomes null, others keep five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _draw(figure: Any, file: Path) -> bool:
    """A picture of a plotly figure, by Chromium; False when there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("no Chromium here (`make debian-tools`): the picture is left out")
        return False
    width, height = figure.layout.width, figure.layout.height
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        figure.write_html(page, include_plotlyjs=True, config={"staticPlot": True})
        text = page.read_text().replace("<body>", '<body style="margin:0">')
        page.write_text(text)
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
                "--no-first-run", "--disable-background-networking", "--disable-component-update",
                "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}", "--virtual-time-budget=10000",
                f"--screenshot={file}", page.as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    return True
