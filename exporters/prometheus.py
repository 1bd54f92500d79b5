"""/metrics for Prometheus: the merged run as it is at the moment of a scrape.

It knows metric names and the wire format, and counts nothing itself: collecting is a view of
the Run. Values are in seconds; the bounds of measure.py were counted when a value was recorded.

The one subtle rule: counters never go back while the process lives. When a new run starts in
the same process, what the one before had counted is kept as a base and added to every answer.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder

from exporters.timeline import since
from tokenswarm.histogram import Histogram
from tokenswarm.measure import METRICS, NS
from tokenswarm.records import BadInput, Outcome
from tokenswarm.run import STATES, WORKER_STATES, Run
from tokenswarm.snapshot import StageStats

_log = logging.getLogger(__name__)

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 9646
LINGER_S = 35.0
LINGER_SCRAPES = 2
_NAMED_STAGES = 4  # stages with a label of their own; the rest shares OTHER
OTHER = "other"
Key = tuple[str, str]  # workload, stage


def stage_label(run: Run, index: int) -> str:
    """Label of a stage: its name for the first four, `other` for the rest."""
    return run.stages[index].name if index < min(_NAMED_STAGES, len(run.stages)) else OTHER


class View:
    """A Collector over the current run and all runs before it in this process."""

    def __init__(self) -> None:
        self._base: dict[Key, StageStats] = {}
        self._run: Run | None = None
        self._lags: dict[str, tuple[Histogram, float]] = {}

    def start(self, run: Run) -> None:
        """A new run begins: keep what the one before has counted."""
        if self._run is not None and self._run is not run:
            self._base = self._stats()
            self._lags.clear()
        self._run = run

    def watch_lag(self, run: Run) -> None:
        """Remember each worker's loop lag of the time since its report before."""
        for w in run.workers.values():
            lag = w.snapshot.health.lag
            before = self._lags.get(w.id, (Histogram(), 0.0))[0]
            new = since(lag, before)
            if new.n > 0:
                self._lags[w.id] = (lag.copy(), new.quantile(0.99) / NS)

    def describe(self) -> Iterable[Metric]:
        """Nothing: asking would cost a collection when the registry is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family of the page, also those that have counted nothing yet."""
        stats = self._stats()
        total = StageStats()
        for part in stats.values():
            total.merge(part)
        yield from _histograms(stats)
        yield from _counters(total, self._slos())
        yield _gauges("run_state", "1 for the state that the run is in", "state", self._state())
        if self._run is not None:
            yield from self._gauges(self._run)

    def _stats(self) -> dict[Key, StageStats]:
        """Counts by workload and stage label: the runs before and this one."""
        out: dict[Key, StageStats] = {}
        for key, stats in self._base.items():
            out.setdefault(key, StageStats()).merge(stats)
        run = self._run
        if run is not None:
            stages = run.merged.stages
            for index in range(max(len(run.stages), len(stages))):
                key = (str(run.workload.name), stage_label(run, index))
                part = out.setdefault(key, StageStats())
                if index < len(stages):
                    part.merge(stages[index])
        return out

    def _slos(self) -> list[str]:
        """SLOs that requests are counted against, so that each has a series from the start."""
        objectives = self._run.objectives if self._run is not None else []
        return [o.key for o in objectives if o.metric in METRICS]

    def _state(self) -> dict[str, int]:
        """1 for the state of the run, idle before there is one."""
        now = self._run.state if self._run is not None else STATES[0]
        return {state: int(state == now) for state in STATES}

    def _gauges(self, run: Run) -> Iterator[Metric]:
        health = run.merged.health
        yield _gauge("users", "Users that take part", health.users)
        yield _gauge("requests_in_flight", "Requests sent and not ended", health.in_flight)
        yield _gauge("arrival_rate_planned", "Requests a second that the plan wants now",
                     run.planned_rate)  # fmt: skip
        yield _gauge("arrival_rate_achieved", "Requests a second that were sent",
                     run.achieved_rate)  # fmt: skip
        states = [_at_work(w.state, run.state) for w in run.workers.values()]
        yield _gauges("workers", "Workers by state", "state",
                      {state: states.count(state) for state in WORKER_STATES})  # fmt: skip
        workers = run.workers.values()
        yield _gauges("worker_cpu_ratio", "CPU time over wall time, 1 is one core", "worker",
                      {w.id: w.snapshot.health.cpu for w in workers})  # fmt: skip
        lags = {w.id: self._lags[w.id][1] for w in workers if w.id in self._lags}
        yield _gauges("worker_loop_lag_seconds", "p99 of how late the event loop was", "worker",
                      lags)  # fmt: skip
        info = GaugeMetricFamily("tokenswarm_run_info", "What runs, always 1",
                                 labels=["run_id", "workload", "backend", "model"])  # fmt: skip
        backend = run.workload.backend
        info.add_metric([run.id, run.workload.name, str(backend.kind), backend.model], 1)
        yield info


def _at_work(worker: str, run: str) -> str:
    """The state of a worker: one that could go on is ready before and after the run."""
    return "ready" if worker == "running" and run in ("idle", "waiting", "done") else worker


def _histograms(stats: dict[Key, StageStats]) -> Iterator[Metric]:
    """The five histograms, labelled by workload and stage, zero where nothing was counted."""
    for name, metric in METRICS.items():
        if not metric.prometheus:
            continue
        family = HistogramMetricFamily(metric.prometheus, metric.help, labels=["workload", "stage"])
        edges = [str(bound / metric.scale) for bound in metric.bounds] + ["+Inf"]
        for key, part in stats.items():
            h = part.histograms.get(name) or Histogram(metric.bounds)
            cumulative, so_far = [], 0
            for edge, count in zip(edges, h.exact, strict=True):
                so_far += count
                cumulative.append((edge, so_far))
            family.add_metric(list(key), cumulative, h.sum / metric.scale)
        yield family


def _counter(name: str, help_: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"tokenswarm_{name}", help_, labels=[label] if label else [])
    for key, value in values.items():
        family.add_metric([key] if label else [], value)
    return family


def _counters(total: StageStats, slos: Iterable[str]) -> Iterator[Metric]:
    """The counters over all stages and runs; every outcome is there from the start."""
    keys = dict.fromkeys([*total.slo_evaluated, *slos])
    outcomes = {o.value: total.outcomes[o.value] for o in Outcome}
    outcomes[Outcome.LOST.value] = total.lost
    rows = (
        ("requests", "Requests by what became of them", "outcome", outcomes),
        ("prompt_tokens", "Tokens of prompts sent", "", {"": total.prompt_tokens}),
        ("output_tokens", "Tokens of answers", "", {"": total.output_tokens}),
        ("arrivals_dropped", "Arrivals never sent", "", {"": total.dropped}),
        ("coalesced_reads", "Reads with more than one token event while the loop lagged", "",
         {"": total.coalesced_reads}),
        ("slo_evaluated", "Requests that a per-request SLO was applied to", "slo",
         {slo: total.slo_evaluated[slo] for slo in keys}),
        ("slo_met", "Requests that met a per-request SLO", "slo",
         {slo: total.slo_met[slo] for slo in keys}),
    )  # fmt: skip
    for row in rows:
        yield _counter(*row)


def _gauge(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tokenswarm_{name}", help_, value=value)


def _gauges(name: str, help_: str, label: str, values: dict[str, Any]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tokenswarm_{name}", help_, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape is no news."""


class _Answer:
    """A response that says when it has been sent whole."""

    def __init__(self, body: bytes, sent: Callable[[], None]) -> None:
        self._body = body
        self._sent = sent

    def __iter__(self) -> Iterator[bytes]:
        yield self._body

    def close(self) -> None:
        """Called by the server when the last byte was handed over."""
        self._sent()


def parse_address(arg: str | None) -> tuple[str, int] | None:
    """Host and port of `[HOST:]PORT`, the default ones for ""; None for `off`. Raises BadInput."""
    if not arg:
        return DEFAULT_HOST, DEFAULT_PORT
    if arg == "off":
        return None
    host, colon, port = arg.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else DEFAULT_HOST
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise BadInput(
            f"--export prometheus={arg}: expected PORT, HOST:PORT or off "
            f"(for example prometheus={DEFAULT_PORT} or prometheus=0.0.0.0:{DEFAULT_PORT})"
        )
    return host, int(port)


class Prometheus:
    """Serves /metrics from the moment it is made until close().

    arg: None when nobody asked for it, so that a taken port is only a warning. port is the one
    that was bound, None when nothing is served; scrapes counts answers sent.
    """

    def __init__(self, arg: str | None = None) -> None:
        self.view = View()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self.view)
        self.scrapes = 0
        self.port: int | None = None
        self.problem: str | None = None
        self._server: WSGIServer | None = None
        address = parse_address(arg)
        if address is not None:
            self._listen(*address, asked=arg is not None)

    @property
    def url(self) -> str | None:
        """Where the page is, None when nothing is served."""
        if self._server is None:
            return None
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def start(self, run: Run) -> None:
        """Show this run from now on, on top of what runs before it counted."""
        self.view.start(run)
        if self.problem is not None:
            run.warnings.append(self.problem)

    def interval(self, run: Run) -> None:
        """Watch what only differences show."""
        self.view.watch_lag(run)

    def finish(self, run: Run, summary: dict[str, Any]) -> None:
        """Nothing: the page stays as it is."""

    def linger(self, seconds: float | None = None) -> None:
        """Keep serving after a run: for `seconds`, or until two more scrapes were seen.

        Without seconds at most LINGER_S, and not at all when nobody scraped before.
        """
        if self._server is None or (seconds is None and not self.scrapes):
            return
        wanted = self.scrapes + LINGER_SCRAPES
        longest = LINGER_S if seconds is None else seconds
        if longest > 0:
            upto = "up to " if seconds is None else ""
            with contextlib.suppress(OSError):
                sys.stderr.write(
                    f"tokenswarm: waiting {upto}{longest:g} s for Prometheus' last scrapes "
                    "(--linger 0 ends at once)\n"
                )
        end = time.monotonic() + longest
        while time.monotonic() < end and (seconds is not None or self.scrapes < wanted):
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self.port = None

    def _listen(self, host: str, port: int, asked: bool) -> None:
        try:
            self._server = _bind(host, port, self._app)
        except OSError as error:
            text = (f"cannot serve Prometheus metrics on {host}:{port}: {error.strerror or error}. "
                    "Choose another with --export prometheus=PORT, or prometheus=off")  # fmt: skip
            if asked:
                raise BadInput(text) from error
            self.problem = text
            _log.warning("%s", text)
            return
        self.port = self._server.server_port
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.1,), daemon=True, name="metrics").start()
        with contextlib.suppress(OSError):  # port 0 is only known now, so it must be said
            sys.stderr.write(f"tokenswarm: Prometheus metrics at {self.url}\n")

    def _app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET")])
            return [b""]
        if environ["PATH_INFO"] != "/metrics":
            found = environ["PATH_INFO"] == "/"
            start_response("200 OK" if found else "404 Not Found", [("Content-Type", "text/plain")])
            return [b"tokenswarm: the metrics are at /metrics\n"]
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        body = encode(self.registry)
        start_response("200 OK", [("Content-Type", content_type)])
        return _Answer(body, self._count)

    def _count(self) -> None:
        self.scrapes += 1


def _bind(host: str, port: int, app: Callable[..., Any]) -> WSGIServer:
    """A listening server. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    server = type("_Server", (ThreadingWSGIServer,), {"address_family": family})
    return make_server(host, port, app, server, handler_class=_Quiet)
