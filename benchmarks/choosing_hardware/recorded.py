"""The study of this folder, recorded, and the pictures drawn from it.

    tokenswarm sweep benchmarks/choosing_hardware/study.yaml --simulated --out DIR
    python -m benchmarks.choosing_hardware.recorded keep DIR     DIR -> recorded.json
    python -m benchmarks.choosing_hardware.recorded draw         recorded.json -> the SVG files

It knows which parts of a run the study report reads and keeps no others. The one subtle rule:
what is drawn is a function of recorded.json alone, so a test can draw it again and compare.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exporters import study_report, svg_file

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
PICTURES = {"quadrants-512-32": "price-speed.svg"}
_KEPT = ("schema", "run", "valid", "window", "throughput", "makespan_s", "slo", "cost",
         "utilization")  # fmt: skip
_METRICS = ("ttft_s", "tpot_s", "e2e_s", "tokens_per_s_per_user", "prompt_tokens", "output_tokens")


def keep(study: Path) -> None:
    """Record a finished study."""
    rows = json.loads((study / "study.json").read_text("utf-8"))["points"]
    points = [_point(study / row["folder"], row["target"]) for row in rows]
    RECORDED.write_text("[\n" + ",\n".join(json.dumps(p) for p in points) + "\n]\n", "utf-8")


def _point(folder: Path, target: str) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    kept = {key: summary[key] for key in _KEPT}
    kept["metrics"] = {
        name: {k: v for k, v in summary["metrics"][name].items() if k != "ci95"}
        for name in _METRICS
    }
    workload = (folder / "workload.yaml").read_text("utf-8")
    return {"folder": folder.name, "target": target, "summary": kept, "workload": workload}


def unpack(into: Path) -> dict[Path, str]:
    """The recorded runs as folders, each with its target."""
    found = {}
    for point in json.loads(RECORDED.read_text("utf-8")):
        folder = into / point["folder"]
        folder.mkdir()
        (folder / "summary.json").write_text(json.dumps(point["summary"]), "utf-8")
        (folder / "workload.yaml").write_text(point["workload"], "utf-8")
        found[folder] = point["target"]
    return found


def page(into: Path) -> str:
    """The study report of the recorded runs."""
    found = unpack(into)
    return study_report.build(list(found), {folder.name: t for folder, t in found.items()})


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    with TemporaryDirectory() as folder:
        html = page(Path(folder))
    return {name: svg_file.standalone(html, ident) for ident, name in PICTURES.items()}


def main(argv: list[str]) -> int:
    """keep DIR, or draw."""
    if argv[:1] == ["keep"] and len(argv) == 2:
        keep(Path(argv[1]))
    elif argv == ["draw"]:
        for name, svg in pictures().items():
            (HERE / name).write_text(svg, "utf-8")
    else:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
