"""The "LLM" tab of Locust's own web UI: live charts, figures by stage, and the run's files.

It uses Locust's extension points only: a tab and a table in `template_args`, rows in the answer
of /stats/requests, a script added to the page, a blueprint for data and downloads. The charts
are drawn by web_tab.js in the browser; nothing is fetched from elsewhere.

The one subtle rule: its numbers are the timeline's and the summary's, never counted anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from exporters.timeline import Timeline
from tokenswarm.figures import distribution
from tokenswarm.measure import METRICS
from tokenswarm.run import Run
from tokenswarm.snapshot import StageStats

KEY = "llm"
_POINTS = 900  # a quarter of an hour at one a second
_FILES = ("report.html", "summary.json", "requests.jsonl", "timeline.jsonl", "junit.xml",
          "workload.yaml", "workers.json")  # fmt: skip
_SHOWN = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
_COLUMNS = (
    ("stage", "Stage"), ("metric", "Metric"), ("count", "Samples"), ("mean", "Mean"),
    ("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("max", "Max"),
)  # fmt: skip
_SCRIPT = Path(__file__).with_name("web_tab.js")


class _Memory:
    """The latest timeline rows, as JSON, for the browser."""

    def __init__(self) -> None:
        self.rows: deque[bytes] = deque(maxlen=_POINTS)
        self.count = 0  # of all rows of the run, those that were forgotten too
        self.lost = 0

    def append(self, piece: bytes) -> bool:
        self.rows.append(piece.rstrip())
        self.count += 1
        return True

    def clear(self) -> None:
        self.rows.clear()
        self.count = 0

    def since(self, count: int) -> list[bytes]:
        """What came after the first `count` rows and is still known."""
        return list(self.rows)[max(0, count - self.count + len(self.rows)) :]

    def close(self) -> None:
        """Rows stay until the next run begins."""


class WebTab:
    """An exporter that remembers the latest intervals and the last verdict.

    master: says whether a run is being prepared; refused: why the last start was none.
    """

    def __init__(self, master: Any, refused: Callable[[], tuple[str, ...]]) -> None:
        self.memory = _Memory()
        self.run: Run | None = None
        self.summary: dict[str, Any] | None = None
        self._master, self._refused = master, refused
        self._timeline = Timeline(sink=self.memory)

    def start(self, run: Run) -> None:
        """Forget the run before."""
        self.memory.clear()
        self.run, self.summary = run, None
        self._timeline.start(run)

    def interval(self, run: Run) -> None:
        """Remember one more interval."""
        self._timeline.interval(run)

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """Remember the rest and the verdict."""
        self._timeline.finish(run, summary)
        self.summary = summary

    def close(self) -> None:
        """Nothing is held open."""

    def state(self, run_id: str = "", count: int = 0, brief: bool = False) -> bytes:
        """What the page polls, as JSON; it has `count` rows of a run already.

        brief: without rows, for a page that shows another tab.
        """
        run = self.run
        head: dict[str, Any] = {
            "run": _about(run, self.files()) if run is not None else None,
            "verdict": _verdict(self.summary) if self.summary is not None else None,
            "preparing": self._master.active and self._master.run is not run,
            "refused": self._refused(),
            "count": self.memory.count,
            "rows": [],
        }
        known = count if run is not None and run.id == run_id else 0
        rows = [] if brief else self.memory.since(known)
        text: bytes = orjson.dumps(head)
        return text.replace(b'"rows":[]', b'"rows":[' + b",".join(rows) + b"]", 1)

    def table(self) -> list[dict[str, Any]]:
        """Rows of the table: the latency metrics of each stage."""
        run = self.run
        if run is None:
            return []
        snapshot = run.merged
        return [
            row
            for index, stage in enumerate(run.stages)
            if index < len(snapshot.stages)
            for row in _stage_rows(_title(stage.name, stage.warmup), snapshot.stages[index])
        ]

    def files(self) -> list[str]:
        """Files of the run that can be downloaded."""
        run = self.run
        if run is None or run.out is None:
            return []
        return [name for name in _FILES if (run.out / name).is_file()]

    def file(self, name: str) -> Path | None:
        """The path of one of the run's files; None for anything else."""
        run = self.run
        return run.out / name if run is not None and run.out and name in self.files() else None


def _about(run: Run, files: list[str]) -> dict[str, Any]:
    total = run.totals()
    return {
        "id": run.id, "name": run.workload.name, "state": run.state, "host": run.host,
        "mode": run.workload.load.mode, "model": run.workload.backend.model, "files": files,
        "requests": {"due": total.due, "ok": total.ok, "failed": total.failed,
                     "dropped": total.dropped, "lost": total.lost},
        "errors": [[o, t, n] for (o, t), n in total.errors.most_common(8)],
        "workers": {w.id: {"index": w.index, "host": w.host, "state": w.state}
                    for w in run.workers.values()},
    }  # fmt: skip


def _verdict(summary: dict[str, Any]) -> dict[str, Any]:
    """The verdict, and the figures of the whole run in the place of the last interval's."""
    rates, metrics = summary["throughput"], summary["metrics"]
    return {
        "valid": summary["valid"],
        "passed": summary["slo"]["passed"],
        "reasons": [f"{r['code']}: {r['detail']}" for r in summary["invalid_reasons"]],
        "checks": [[c["passed"], c["text"], c["detail"]] for c in summary["slo"]["checks"]],
        "requests_per_s": rates["requests_per_s"],
        "output_tokens_per_s": rates["output_tokens_per_s"],
        **{name: {q: metrics[name][q] for q in ("p50", "p99")} for name in ("ttft_s", "itl_s")},
    }


def _title(stage: str, warmup: bool) -> str:
    """A stage's name, with a word about a warm-up whose name does not tell."""
    return f"{stage} (warm-up)" if warmup and "warm" not in stage.lower() else stage


def _stage_rows(stage: str, stats: StageStats) -> list[dict[str, Any]]:
    """The summary's figures in ms; percentiles that rest on less than one value are a dash."""
    rows = []
    for name in _SHOWN:
        figures = distribution(stats.histograms.get(name), METRICS[name].scale)
        if figures["count"]:
            rows.append({
                "stage": stage, "metric": f"{name.removesuffix('_s').upper()} (ms)",
                "count": figures["count"],
                **{key: "-" if figures[key] is None else round(1000 * figures[key], 3)
                   for key in ("mean", "p50", "p90", "p99", "max")},
            })  # fmt: skip
    return rows


def install(environment: Any, master: Any, refused: Callable[[], tuple[str, ...]]) -> WebTab:
    """Add the tab to a Locust web UI that has not started yet."""
    from flask import Blueprint, Response, request, send_file

    ui = environment.web_ui
    tab = WebTab(master, refused)
    master.outlets.add(tab)
    base = (environment.parsed_options.web_base_path or "").rstrip("/")
    ui.template_args["extended_tabs"] = [{"title": "LLM", "key": KEY}]
    ui.template_args["extended_tables"] = [
        {"key": KEY, "structure": [{"key": key, "title": title} for key, title in _COLUMNS]}
    ]
    pages = Blueprint("tokenswarm", __name__, url_prefix=f"{base}/tokenswarm")

    @pages.route("/live.json")
    @ui.auth_required_if_enabled
    def live() -> Response:
        ask = request.args
        seen = tab.state(ask.get("run", ""), ask.get("count", 0, int), "brief" in ask)
        return Response(seen, mimetype="application/json")

    @pages.route("/tab.js")
    @ui.auth_required_if_enabled
    def script() -> Response:
        return Response(_SCRIPT.read_bytes(), mimetype="text/javascript")

    @pages.route("/files/<name>")
    @ui.auth_required_if_enabled
    def download(name: str) -> Response:
        path = tab.file(name)
        if path is None:
            return Response("no such file of this run\n", 404, mimetype="text/plain")
        return send_file(path.resolve(), as_attachment=name != "report.html")

    @ui.app.after_request
    def extend(response: Any) -> Any:
        if request.path == f"{base}/stats/requests" and response.is_json:
            stats = response.get_json()
            stats["extended_stats"] = [{"key": KEY, "data": tab.table()}]
            response.set_data(orjson.dumps(stats))
        elif request.path == f"{base}/" and response.status_code == 200:
            page = response.get_data(as_text=True)
            tag = f'<script src="{base}/tokenswarm/tab.js" data-base="{base}"></script></body>'
            response.set_data(page.replace("</body>", tag))
        return response

    ui.app.register_blueprint(pages)
    return tab
