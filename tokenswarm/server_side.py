"""The engine's own view of a run: its /metrics at the start, now and then, and at the end.

A Watch runs on the master, where nothing is measured. It fetches pages with our own transport,
reads them in a thread, and keeps two things in a dict that exporters show: `now`, for a line of
the timeline, and after the end what changed over the run, beside the client's own figures.

The one subtle rule: the first look comes after the probe and before the load, the last one after
the last answer, so both sides count the same requests; an engine that counts late is given a
moment. Whatever goes wrong here is said, and never touches the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gevent

from tokenswarm import server_side_names as names
from tokenswarm.offload import offload
from tokenswarm.records import Outcome
from tokenswarm.server_side_names import Distribution, Reading
from tokenswarm.target import Target, parse_url
from tokenswarm.transport import Transport
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_errors import AnswerError, TransportError

logger = logging.getLogger(__name__)
MAX_PAGE_BYTES = 16 << 20
TIMEOUTS = Timeouts(connect=3.0, first_token=5.0, stall=5.0, total=10.0)
_LATE_COUNTS_S = (0.1, 0.3, 0.6)  # engines add a request up after its answer is out
_WORTH_A_NOTE = 0.01
_SHOWN_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Document:
    """An answer that is one document; see transport_answer.Answer."""

    def __init__(self) -> None:
        self.read_ns = 0
        self.framing_bytes = 0
        self.fresh = 0
        self.complete = False
        self.keep_alive = False
        self.until_close = False
        self.last_token_ns: int | None = None
        self.ended_ns: int | None = None
        self.status = 0
        self.body = bytearray()
        self._parser: Any = None
        self._framed = False

    @property
    def is_heard(self) -> bool:
        """A byte of the response has come."""
        return bool(self.framing_bytes or self.status)

    def attach(self, parser: Any) -> None:
        """The parser that will call back."""
        self._parser = parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """See how the body ends."""
        self._framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """The status is known."""
        self.status = self._parser.get_status_code()
        self.until_close = not self._framed

    def on_body(self, data: bytes) -> None:
        """Keep it, within reason."""
        self.framing_bytes = 0
        self.body += data
        if len(self.body) > MAX_PAGE_BYTES:
            raise AnswerError(Outcome.MALFORMED, f"a page of more than {MAX_PAGE_BYTES} bytes")

    def on_message_complete(self) -> None:
        """All of it is here, unless it was an interim (1xx) response."""
        if self.status >= 200:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()

    def after_read(self, stamped: bool) -> None:
        """Nothing is measured here."""

    def look(self) -> None:
        """Its size is looked at with every piece."""


class Source(Protocol):
    """What a Watch looks at: a page of metrics, or this machine's GPUs (server_side_nvml).

    problem says why the last look failed, reading is what the last good one saw. That a source
    has nothing is worth a warning when the user asked for it (is_asked_for).
    """

    problem: str | None
    reading: Reading

    @property
    def kind(self) -> str:
        """What it has, for messages."""

    @property
    def url(self) -> str:
        """Where that is."""

    @property
    def is_asked_for(self) -> bool:
        """The user named it."""

    def look(self) -> bool:
        """Read anew; False, with a problem, when there was nothing to read."""

    def account(self) -> Mapping[str, Any]:
        """What only this source can say of the whole run, for the summary."""

    def close(self) -> None:
        """Free what it holds."""


@dataclass(slots=True)
class Page:
    """One address that is asked for metrics, with the transport that does it."""

    target: Target
    path: str
    transport: Transport
    is_asked_for: bool = False  # the user named it, so that it is missing is worth a warning
    problem: str | None = None
    reading: Reading = field(default_factory=Reading)

    @property
    def kind(self) -> str:
        """What it has, for messages."""
        return "server-side metrics"

    @property
    def url(self) -> str:
        """Its whole address."""
        return f"{self.target.url.rstrip('/')}{self.path}"

    def look(self) -> bool:
        """Fetch and read; False, with a problem, when there was nothing to read."""
        answer = Document()
        try:
            self.transport.send(self.path, b"", answer, method="GET")
        except TransportError as e:
            return self._failed(f"{e.outcome.value}: {e.text}")
        if answer.status != 200:
            return self._failed(f"HTTP {answer.status}")
        reading = offload(names.read, bytes(answer.body))
        if reading.empty:
            return self._failed("no metric of an engine that is known here")
        self.reading, self.problem = reading, None
        return True

    def _failed(self, problem: str) -> bool:
        self.problem = f"{self.url}: {problem}"
        return False

    def account(self) -> Mapping[str, Any]:
        """Nothing that its reading does not say."""
        return {}

    def close(self) -> None:
        """Close its sockets."""
        self.transport.close()


@dataclass(slots=True)
class Seen:
    """What a gauge showed, look by look."""

    n: int = 0
    sum: float = 0.0
    max: float = 0.0

    def add(self, value: float) -> None:
        """One look."""
        self.n += 1
        self.sum += value
        self.max = max(self.max, value)


class Watch:
    """Looks at an engine while a run goes on; see the module docstring.

    found is what exporters read: `now` while the run goes on, and the account of `finish`.
    """

    def __init__(self, pages: Sequence[Source], interval_s: float) -> None:
        self.found: dict[str, Any] = {"now": None}
        self.warnings: list[str] = []
        self._pages = pages
        self._interval_s = interval_s
        self._first = self._last = Reading()
        self._first_at = self._last_at = 0.0
        self._looks = self._failed = 0
        self._seen: dict[str, Seen] = {}
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        """The first look, then one every interval. A page that has nothing is not asked again."""
        for page in self._pages:
            if not page.look():
                note = f"no {page.kind}: {page.problem}"
                (self.warnings if page.is_asked_for else self.found.setdefault("notes", [])).append(
                    note
                )
                page.close()
        self._pages = [page for page in self._pages if page.problem is None]
        if not self._pages:
            return
        self._looks = 1
        self._first = self._last = names.together(p.reading for p in self._pages)
        self._first_at = self._last_at = time.monotonic()
        self._greenlet = gevent.spawn(self._go_on)

    def _go_on(self) -> None:
        while True:
            gevent.sleep(self._interval_s)
            try:
                self._look()
            except Exception:
                logger.exception("The engine's metrics could not be read")
                return

    def _look(self) -> None:
        looked = [page.look() for page in self._pages]
        self._looks += 1  # not one that the end of the run cut off
        if not all(looked):
            self._failed += 1
            self.found["now"] = None  # half a sum would look like a change
            return
        reading, at = names.together(p.reading for p in self._pages), time.monotonic()
        self.found["now"] = between(self._last, reading, at - self._last_at)
        for name in names.GAUGES:
            if name in reading.values:
                self._seen.setdefault(name, Seen()).add(reading.values[name])
        self._last, self._last_at = reading, at

    def finish(self, prompt_tokens: int, output_tokens: int, ttft_mean_s: float | None) -> None:
        """The last look, and the account of the run beside the client's counts and mean TTFT."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
        try:
            if self._pages:
                self._finish(prompt_tokens, output_tokens, ttft_mean_s)
        finally:
            self.found.pop("now", None)
            self.close()

    def _finish(self, prompt_tokens: int, output_tokens: int, ttft_mean_s: float | None) -> None:
        self._look()
        for pause in _LATE_COUNTS_S:
            counted = grown(self._first, self._last, "output_tokens")
            if self._failed or counted is None or counted >= output_tokens:
                break
            gevent.sleep(pause)
            self._look()
        for page in self._pages:
            if page.problem:
                self.warnings.append(f"{page.kind} end before the run: {page.problem}")
                break
        client = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        self.found.update(
            account(self._first, self._last, client, ttft_mean_s),
            urls=[page.url for page in self._pages],
            seconds=self._last_at - self._first_at,
            looks=self._looks,
            looks_failed=self._failed,
            gauges={
                name: {"mean": seen.sum / seen.n, "max": seen.max}
                for name, seen in self._seen.items()
            },
        )
        for page in self._pages:
            self.found.update(page.account())
        tokens = self.found["tokens"].get("output_tokens")
        if tokens is not None and tokens["difference"] > output_tokens * _WORTH_A_NOTE:
            self.found.setdefault("notes", []).append(
                f"the engine counted {tokens['difference']} output tokens more than this run got: "
                "requests that failed or were cancelled, or other clients"
            )

    def close(self) -> None:
        """Stop looking, free the sockets."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
        for page in self._pages:
            page.close()
        self._pages = []


def pages(
    host: str,
    urls: Sequence[str],
    metrics_path: str,
    metrics_url: str | None,
    gpu_url: str | None,
    make_transport: Callable[[Target, bool], Transport],
) -> list[Page]:
    """The addresses to ask: the metrics of every base URL, or the one named; and the GPUs'.

    make_transport(target, same) gets same=True where the target is the server under test, and
    only then may it send the server's key along.
    """
    # the path of an API version is not where engines have their metrics
    bases = [parse_url(url.strip().rstrip("/").removesuffix("/v1")) for url in (urls or (host,))]
    found = []
    if metrics_url is None:
        found += [Page(t, metrics_path, make_transport(t, True)) for t in bases]
    for url in filter(None, (metrics_url, gpu_url)):
        target, path = split(url)
        same = any((target.host, target.port, target.tls) == (b.host, b.port, b.tls) for b in bases)
        found.append(Page(target, path, make_transport(target, same), is_asked_for=True))
    return found


def split(url: str) -> tuple[Target, str]:
    """A whole URL as a base and a path; /metrics where it has none."""
    whole = parse_url(url)
    scheme = "https" if whole.tls else "http"
    return parse_url(f"{scheme}://{whole.host_header}"), whole.prefix or "/metrics"


def grown(first: Reading, last: Reading, name: str) -> float | None:
    """How far a counter rose; from 0 when the engine was started anew; None without it."""
    if name not in last.values:
        return None
    rise = last.values[name] - first.values.get(name, 0.0)
    return rise if rise >= 0 else last.values[name]


def between(before: Reading, now: Reading, seconds: float) -> dict[str, Any]:
    """A line of the timeline: gauges as they are, counters a second, latencies since the last."""
    row: dict[str, Any] = {n: now.values[n] for n in names.GAUGES if n in now.values}
    for name in ("prompt_tokens", "output_tokens"):
        rise = grown(before, now, name)
        if rise is not None and seconds > 0:
            row[f"{name}_per_s"] = rise / seconds
    preempted = grown(before, now, "preemptions")
    if preempted is not None:
        row["preemptions"] = preempted
    ratio = _hit_ratio(before, now)
    if ratio is not None:
        row["prefix_cache_hit_ratio"] = ratio
    for name in ("ttft_s", "itl_s"):
        if name in now.histograms:
            mean = now.histograms[name].since(before.histograms.get(name)).mean
            row[f"{name.removesuffix('_s')}_mean_s"] = mean
    return row


def _hit_ratio(before: Reading, now: Reading) -> float | None:
    hits = grown(before, now, "prefix_cache_hits")
    asked = grown(before, now, "prefix_cache_queries")
    return hits / asked if hits is not None and asked else None


def account(
    first: Reading, last: Reading, client: Mapping[str, int], client_ttft_s: float | None
) -> dict[str, Any]:
    """What changed from the first look to the last, beside what the client counted.

    outside_engine_s is the client's mean TTFT minus the engine's: the network, the HTTP server,
    and in engines that start their clock late the way to it.
    """
    counts = {
        name: round(rise)
        for name in names.COUNTERS
        if (rise := grown(first, last, name)) is not None
    }
    latencies = {
        name: _figures(last.histograms[name].since(first.histograms.get(name)))
        for name in names.HISTOGRAMS
        if name in last.histograms
    }
    theirs = latencies.get("ttft_s", {}).get("mean")
    both = {
        name: {"client": ours, "server": rise, "difference": rise - ours}
        for name, ours in client.items()
        if (rise := counts.get(name)) is not None
    }
    return {
        "engine": last.engine,
        "counts": counts,
        "prefix_cache_hit_ratio": _hit_ratio(first, last),
        "latencies": latencies,
        "tokens": both,
        "ttft": {
            "client_mean_s": client_ttft_s,
            "server_mean_s": theirs,
            "outside_engine_s": client_ttft_s - theirs
            if client_ttft_s is not None and theirs is not None
            else None,
        },
    }


def _figures(histogram: Distribution) -> dict[str, Any]:
    """Mean exactly, percentiles as far as the engine's buckets allow."""
    quantiles = {name: histogram.quantile(q) for name, q in _SHOWN_QUANTILES.items()}
    return {"count": round(histogram.count), "mean": histogram.mean, **quantiles}
