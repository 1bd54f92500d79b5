"""report.html: one run as a page that opens anywhere, verdict first.

`build` turns the summary, the request log and the timeline into one self-contained file: style,
script and pictures are inside, a Content-Security-Policy forbids everything else, so it shows
the same with no network. It knows nothing about how numbers were measured or judged.

The one subtle rule: every figure on the page is the summary's own; the request log and the
timeline only draw pictures. Nothing here computes a percentile that is printed as a figure.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exporters.quantities import NONE, billions, redact, short_name, show, size
from tokenswarm import slo
from tokenswarm.measure import METRICS

_HERE = Path(__file__).parent

# What is in the big tiles: label, path into the summary, unit, the word it is defined under.
_TILES: tuple[tuple[str, tuple[tuple[str, ...], ...], str, str], ...] = (
    ("Requests ok", (("requests", "ok"),), "count", "outcome"),
    ("Not ok", (("requests", "failed"),), "count", "outcome"),
    ("Output tokens/s", (("throughput", "output_tokens_per_s"),), "", "throughput"),
    ("Requests/s", (("throughput", "requests_per_s"),), "", "throughput"),
    ("TTFT p50 · p99", (("metrics", "ttft_s", "p50"), ("metrics", "ttft_s", "p99")), "s", "ttft_s"),
    ("ITL p50 · p99", (("metrics", "itl_s", "p50"), ("metrics", "itl_s", "p99")), "s", "itl_s"),
    ("TPOT p50 · p99", (("metrics", "tpot_s", "p50"), ("metrics", "tpot_s", "p99")), "s", "tpot_s"),
    ("E2E p50 · p99", (("metrics", "e2e_s", "p50"), ("metrics", "e2e_s", "p99")), "s", "e2e_s"),
    ("Goodput", (("slo", "goodput_per_s"),), "1/s", "goodput"),
    ("SLO attainment", (("slo", "attainment"),), "share", "goodput"),
    ("$ per 1M output tokens", (("cost", "usd_per_million_output_tokens"),), "usd", "cost"),
    ("MBU", (("utilization", "mbu"),), "share", "utilization"),
)  # fmt: skip

# Pictures whose name does not end in the metric that they show -> the word they are defined under.
_PICTURE_WORDS = {
    "percentiles": "pX", "throughput": "throughput", "completions": "throughput",
    "in-flight": "in flight", "rates": "due", "send-delay": "send_delay_s", "errors": "outcome",
    "stalls": "longest_gap_s", "worker-cpu": "loop lag", "worker-lag": "loop lag",
    "roofline": "utilization",
}  # fmt: skip

# Columns of the stages' table: title and the word it is defined under.
_STAGE_COLUMNS = (
    ("ok", "outcome"), ("not ok", "outcome"), ("output tok/s", "throughput"),
    ("TTFT p50", "ttft_s"), ("TTFT p99", "ttft_s"), ("ITL p50", "itl_s"), ("ITL p99", "itl_s"),
    ("E2E p50", "e2e_s"), ("E2E p99", "e2e_s"),
)  # fmt: skip

# Words of SLOs that are not metrics -> the word they are defined under.
_SLO_WORDS = {"error_ratio": "error ratio", "ok_requests": "outcome", "goodput": "goodput",
              "attainment": "goodput"}  # fmt: skip
_PERCENTILES = ("p50", "p90", "p95", "p99", "p999")

# Words of the page that are not metrics; those of measure.METRICS are added below them.
_WORDS = {
    "due": "When the plan wanted the request sent. In a closed loop: the end of this user's "
           "previous request plus its think time.",
    "sent": "Just before the first byte of the request was written to a connected socket. "
            "Connecting comes before it and is its own metric.",
    "in flight": "Requests that were sent and have not ended.",
    "token event": "A streamed event that carries generated text of any channel: answer, "
                   "reasoning or tool call.",
    "outcome": "What became of a request: ok, or the way in which it failed. A failed request "
               "has no latency and is in none of the latency figures.",
    "throughput": "Tokens and requests a second inside the measured window: token events count "
                  "when they arrived, warm-up and drain are left out.",
    "goodput": "Requests a second that met every per-request SLO; attainment is their share of "
               "all that were due. In a closed loop only attainment is given.",
    "error ratio": "(failed + dropped) / due; requests cancelled by the end of the run left out.",
    "pX": "The X-th percentile: X % of the values are at most this. Not given when it would rest "
          "on less than one sample.",
    "95 % interval": "Where the true value lies in 95 of 100 such runs; correlation in time, and "
                     "between the tokens of a request, is respected.",
    "cost": "Hourly price over measured throughput and the utilisation factor of the workload.",
    "utilization": "MBU: bytes that must be read for each token over what the memory could have "
                   "delivered in that time. MFU: the same for arithmetic.",
    "coalesced share": "Reads that brought several token events while the generator's own loop "
                       "lagged: their stamps are less exact.",
    "kernel stamps": "Share of reads whose arrival was stamped by the kernel rather than by the "
                     "process.",
    "loop lag": "How late a timer fires in a worker: how busy the generator itself was.",
}  # fmt: skip


def build(summary: dict[str, Any], requests: Path | None, timeline: Path | None) -> str:
    """The page for one run; requests.jsonl and timeline.jsonl may be missing."""
    # numpy takes 0.1 s to import, so only here
    from exporters import report_pictures, report_server
    from exporters.report_view import look

    view = look(summary, requests, timeline)
    sections: list[tuple[str, Sequence[str]]] = []
    for title, pictures in report_pictures.PICTURES.items():
        drawn = [linked(p) for p in (draw(view) for draw in pictures) if p]
        sections.append((title, drawn))
    sections.append(("Server", report_server.pictures(view)))
    workers = worker_rows(summary)
    notes = log_notes(view.requests) if view.requests is not None else []
    return page(
        "report.html.j2",
        title=f"{_run(summary).get('name') or 'run'}: tokenswarm report",
        name=_run(summary).get("name") or "run",
        model=_run(summary).get("model"),
        warnings=summary.get("warnings") or [],
        verdict=verdict(summary),
        checks=[check_row(c) for c in _checks(summary)],
        tiles=tiles(summary),
        scope=scope(summary),
        metrics=metric_rows(summary.get("metrics") or {}),
        facts=facts(summary),
        sections=[(t, d) for t, d in sections if d or (t == "Load generator" and workers)],
        outcomes=sorted(
            _dict(_dict(summary, "requests"), "by_outcome").items(),
            key=lambda item: (item[0] != "ok", -item[1]),
        ),
        stages=stage_rows(summary),
        stage_columns=_STAGE_COLUMNS,
        errors=summary.get("errors") or [],
        workers=workers,
        workload=workload_text(requests or timeline),
        notes=notes,
        definitions=definitions(),
    )


def page(template: str, **values: Any) -> str:
    """A template of this folder filled in, with the style and the script inside it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["show"] = show
    environment.filters["slug"] = slug
    script = (_HERE / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        style=(_HERE / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=digest,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **values,
    )


def verdict(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The one sentence that matters, its colour, and why."""
    reasons = [
        (str(r.get("code")), str(r.get("detail"))) for r in summary.get("invalid_reasons") or []
    ]
    checks = _checks(summary)
    failed = [check_row(c) for c in checks if c.get("passed") is False]
    if not summary.get("valid", False):
        text, kind = "Invalid run: its numbers must not be used", "bad"
    elif failed:
        count = f"{len(failed)} of {len(checks)} SLOs" if len(checks) > 1 else "the SLO"
        text, kind = f"Valid run, but it fails {count}", "bad"
    elif not checks:
        text, kind = "Valid run, no SLOs were checked", "plain"
    elif all(c.get("passed") for c in checks):
        text, kind = "Valid run, all SLOs met", "good"
    else:
        text, kind = "Valid run, but not every SLO could be judged", "plain"
    reasons += [(c["name"], f"{c['actual']}, wanted {c['wanted']}") for c in failed]
    return {"text": text, "kind": kind, "reasons": reasons}


def check_row(check: Mapping[str, Any]) -> dict[str, str]:
    """One SLO check in words."""
    key, passed, actual = str(check.get("key") or ""), check.get("passed"), check.get("actual")
    return {
        "state": "PASS" if passed else "FAIL" if passed is False else "NOT JUDGED",
        "kind": "good" if passed else "bad" if passed is False else "plain",
        "name": key,
        "word": slo_word(key, str(check.get("metric") or "")),
        "wanted": str(check.get("text") or "").removeprefix(key).strip(),
        "actual": show(actual, slo_unit(key)),
        "detail": str(check.get("detail") or "") if actual is None else "",
    }


def slug(text: str) -> str:
    """The part of a page's address that stands for a word."""
    return re.sub(r"\W+", "-", text)


def linked(picture: str) -> str:
    """A picture whose title leads to the definition of what it shows."""
    from markupsafe import Markup

    ident = re.search(r'<figure id="([^"]+)"', picture)
    name = ident[1] if ident else ""
    word = _PICTURE_WORDS.get(name, name.rpartition("-")[2])
    if word not in METRICS and word not in _WORDS:
        return picture
    link = rf'<h3><a href="#word-{slug(word)}">\1</a></h3>'
    # str: parts of a Markup would be escaped when they are put together
    return Markup(re.sub("<h3>(.*?)</h3>", link, str(picture), count=1))


def slo_word(key: str, metric: str = "") -> str:
    """The word under which the metric of an SLO's key is defined; '' when there is none.

    metric: what the check says it was (in open loop `ttft` means `ttft_due_s`).
    """
    if metric in METRICS:
        return metric
    words = re.findall(r"\w+", key.rpartition("(")[2].rpartition(":")[2])
    word = words[-1] if words else ""
    if word in slo.METRICS:
        return slo.METRICS[word][0]
    return _SLO_WORDS.get(word, "throughput" if word in slo.FIGURES else "")


def slo_unit(key: str) -> str:
    """The unit in which an SLO's value is shown, from the word in its key."""
    words = re.findall(r"\w+", key.rpartition("(")[2])
    known = {**slo.METRICS, **slo.FIGURES}.get(words[-1] if words else "")
    return {"time": "s", "share": "share", "rate": "1/s", "count": "count"}.get(
        known[1] if known else "", ""
    )


def tiles(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The big figures; those that the run does not have are left out."""
    found = []
    for label, paths, unit, word in _TILES:
        values = [_at(summary, path) for path in paths]
        if values[0] is not None:
            help_ = METRICS[word].help if word in METRICS else _WORDS[word]
            kind = "bad" if label == "Not ok" and values[0] else ""
            shown = [show(v, unit) for v in values]
            found.append({"label": label, "values": shown, "word": word, "help": help_,
                          "kind": kind})  # fmt: skip
    return found


def scope(summary: Mapping[str, Any]) -> str:
    """Why there are more requests than latencies; '' where both are of the whole run."""
    stages = [s for s in summary.get("stages") or [] if s.get("warmup")]
    warm = sum(_dict(s, "requests").get("ok") or 0 for s in stages)
    ok = _dict(summary, "requests").get("ok") or 0
    if not warm:
        return ""
    return (f"Requests are counted over the whole run: {show(warm, 'count')} of the "
            f"{show(ok, 'count')} ok were warm-up. Rates and latencies leave the warm-up out, so "
            "fewer requests stand behind them.")  # fmt: skip


def metric_rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of all metrics, in the order of measure.METRICS."""
    rows = []
    names = [n for n in METRICS if n in metrics] + [n for n in metrics if n not in METRICS]
    for name in names:
        figures = metrics[name] or {}
        if not figures.get("count"):
            continue
        unit = METRICS[name].unit if name in METRICS else ""
        unit = "" if unit in ("tokens", "tokens/s") else unit
        columns = ("mean", "min", *_PERCENTILES, "max")
        rows.append({
            "name": name,
            "help": METRICS[name].help if name in METRICS else "",
            "count": show(figures.get("count"), "count"),
            "values": [(show(figures.get(c), unit), _interval(figures, c, unit)) for c in columns],
        })  # fmt: skip
    return rows


def _interval(figures: Mapping[str, Any], key: str, unit: str) -> str:
    ends = (figures.get("ci95") or {}).get(key) if isinstance(figures.get("ci95"), dict) else None
    if not ends or None in ends:
        return ""
    return f"95 % interval: {show(ends[0], unit)} to {show(ends[1], unit)}"


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was run against what: the small print at the top."""
    run, window, prompts = (_dict(summary, k) for k in ("run", "window", "prompts"))
    requests, cost, use = (_dict(summary, k) for k in ("requests", "cost", "utilization"))
    compared = prompts.get("compared")
    return [
        ("Server", redact(str(run.get("host") or NONE))),
        ("Protocol", str(run.get("backend") or NONE)),
        ("Model", str(run.get("model") or NONE)),
        ("Tokenizer", _short(run.get("tokenizer"))),
        ("Started", _when(run.get("started"))),
        ("Measured window", show(window.get("seconds"), "s")),
        ("Makespan", show(summary.get("makespan_s"), "s")),
        ("Workers", _short(run.get("workers"))),
        ("Seed", _short(run.get("seed"))),
        ("Due / sent / dropped / lost", " / ".join(
            show(requests.get(k), "count") for k in ("due", "sent", "dropped", "lost"))),
        ("Prompt lengths as asked", f"{show(prompts.get('exact'), 'count')} of "
         f"{show(compared, 'count')} that the server counted" if compared
         else "not counted by the server"),
        *[(f"Cost: {k}", show(v, "usd")) for k, v in cost.items() if _is_number(v)
          and k.startswith("usd")],
        *utilization_rows(use),
        *[(f"Version: {k}", str(v)) for k, v in (run.get("versions") or {}).items()],
        ("Run", str(run.get("id") or NONE)),
    ]  # fmt: skip


def utilization_rows(use: Mapping[str, Any]) -> list[tuple[str, str]]:
    """MBU and MFU as formulas with the figures that went into them."""
    inputs = _dict(use, "inputs")
    if not inputs:
        return []
    weights, cache, bandwidth = (
        size(inputs.get(k))
        for k in ("weight_bytes_read", "kv_cache_bytes", "peak_bandwidth_bytes_per_s")
    )
    tpot, flops = show(inputs.get("tpot_p50_s"), "s"), inputs.get("peak_flops")
    peak = show(None if flops is None else flops / 1e12, "")
    active, replicas = billions(inputs.get("active_parameters")), inputs.get("replicas")
    mbu, mfu, prefill = (show(use.get(k), "share") for k in ("mbu", "mfu", "mfu_prefill"))
    return [
        ("MBU", f"{mbu} = ({weights} of parameters + {cache} of KV cache) / TPOT p50 {tpot} / "
         f"{bandwidth}/s"),
        ("MFU", f"{mfu} = 2 x {active} parameters x all tokens/s / ({peak} TFLOPS x "
         f"{show(replicas, '')})"),
        ("MFU of a prefill, at least", f"{prefill}, waiting included"),
        ("Running batch of a replica", f"{show(inputs.get('batch'), '')} sequences (time average), "
         f"{show(inputs.get('kv_bytes_per_token'), '')} bytes of KV cache a token"),
    ]  # fmt: skip


def stage_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The stages side by side."""
    rows = []
    for stage in summary.get("stages") or []:
        requests, through, metrics = (
            _dict(stage, k) for k in ("requests", "throughput", "metrics")
        )
        rows.append({
            "name": str(stage.get("name") or ""),
            "warmup": bool(stage.get("warmup")),
            "values": [
                show(requests.get("ok"), "count"), show(requests.get("failed"), "count"),
                show(through.get("output_tokens_per_s"), ""),
                *[show(_at(metrics, (m, q)), "s") for m in ("ttft_s", "itl_s", "e2e_s")
                  for q in ("p50", "p99")],
            ],
        })  # fmt: skip
    return rows


def worker_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """How each part of the load generator fared: its whole name last, for a pointer."""
    rows = []
    for worker in _dict(summary, "generator").get("workers") or []:
        state, name = worker.get("state") or "finished", str(worker.get("id"))
        if state == "running":  # as it was when the run ended
            state = "finished"
        rows.append([
            short_name(name), show(worker.get("cpu"), "share"),
            show(worker.get("loop_lag_p99_s"), "s"), show(worker.get("coalesced_share"), "share"),
            show(worker.get("kernel_stamp_share"), "share"),
            "lost" if worker.get("lost") else str(state), name,
        ])  # fmt: skip
    return rows


def log_notes(requests: Any) -> list[str]:
    """What a reader must know about the log the pictures were drawn from."""
    notes = []
    if requests.torn:
        notes.append(
            f"{requests.torn} line(s) of the request log could not be read and are not drawn."
        )
    if requests.stride > 1:
        notes.append(
            f"The request log is large: every {requests.stride}th request is drawn, counts are "
            "multiplied accordingly. The figures cover all requests."
        )
    return notes


def definitions() -> list[tuple[str, str, str]]:
    """Every word of the page: (name, what it is, unit)."""
    metrics = [(name, metric.help + ".", metric.unit) for name, metric in METRICS.items()]
    return metrics + [(word, text, "") for word, text in _WORDS.items()]


def workload_text(beside: Path | None) -> str:
    """The resolved workload file that lies beside the run's other files, without secrets."""
    path = beside.parent / "workload.yaml" if beside is not None else None
    if path is None or not path.is_file():
        return ""
    secret = re.compile(
        r"^(\s*[\"']?(?:api[_-]?key|authorization|x-api-key|token|password|secret)[\"']?\s*:).*$",
        re.IGNORECASE | re.MULTILINE,
    )
    text = path.read_text(encoding="utf-8", errors="replace")
    return redact(secret.sub(r"\1 (not shown)", text))


def _run(summary: Mapping[str, Any]) -> dict[str, Any]:
    return _dict(summary, "run")


def _dict(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def _checks(summary: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return _dict(summary, "slo").get("checks") or []


def _at(holder: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = holder
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    """A small value in words: a dict as 'key value, key value'."""
    if value is None:
        return NONE
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return str(len(value))
    return str(value)


def _when(value: Any) -> str:
    if _is_number(value):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return str(value or NONE)
