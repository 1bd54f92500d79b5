"""Is a server fit for the next point of a study: healthy, and drained of the one before?

Asks the protocol's health path and, where there is one, its metrics page. It knows nothing of
studies. The one subtle rule: what a server does not offer is not held against it. A hosted API
without a health path or metrics counts as ready as soon as it answers at all.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from tokenswarm import backends, target
from tokenswarm import server_side_names as names
from tokenswarm.transport_open import tls_context

_TIMEOUT_S = 10.0
_POLL_S = 0.1
_NOT_OFFERED = frozenset({401, 403, 404, 405, 501})


class Unfit(Exception):  # noqa: N818 - a state, told in its own words
    """The server is not ready for load; the text says why."""


def busy(page: bytes) -> float:
    """Requests that a metrics page says are running or waiting, whatever engine wrote it."""
    values = names.read(page).values
    return values.get("running", 0.0) + values.get("waiting", 0.0)


def check(work: Any, host: str) -> None:
    """Ask once. Raises Unfit; BadInput for a URL that is none."""
    backend = backends.make(work)
    for url in (host, *work.backend.urls):
        to = target.parse_url(url)
        _check_health(work, to, backend.health_path)
        page = _get(work, to, backend.metrics_path)
        running = busy(page[1]) if page[0] == 200 else 0.0
        if running:
            raise Unfit(f"{url}: {running:g} requests are still running or waiting there")


def wait_fit(work: Any, host: str, patience_s: float, say: Callable[[str], None]) -> None:
    """Wait until the server is healthy and idle. Raises Unfit when it is not in time."""
    deadline = time.monotonic() + patience_s
    told = time.monotonic()
    while True:
        try:
            return check(work, host)
        except Unfit as e:
            if time.monotonic() > deadline:
                raise Unfit(f"{e} (after {patience_s:g} s)") from None
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"waiting: {e}")
        time.sleep(_POLL_S)


def _check_health(work: Any, to: target.Target, path: str) -> None:
    status, _ = _get(work, to, path)
    if not 200 <= status < 300 and status not in _NOT_OFFERED:
        raise Unfit(f"{to.url}: {path} answers {status}")


def _get(work: Any, to: target.Target, path: str) -> tuple[int, bytes]:
    """Status and body of a GET. Raises Unfit when there is no answer."""
    headers = dict(work.backend.headers)
    key = os.environ.get(work.backend.api_key_env or "")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    handlers: list[Any] = [ProxyHandler({})]  # requests go to the server itself as well
    if to.tls:
        tls = tls_context(work.backend.ca_file, work.backend.insecure)
        handlers.append(HTTPSHandler(context=tls))
    name = f"[{to.host}]" if ":" in to.host else to.host
    url = f"http{'s' if to.tls else ''}://{name}:{to.port}{to.path(path)}"
    try:
        with build_opener(*handlers).open(Request(url, headers=headers), timeout=_TIMEOUT_S) as got:
            return got.status, got.read()
    except HTTPError as e:
        with e:
            return e.code, b""
    except (URLError, OSError, http.client.HTTPException) as e:
        raise Unfit(f"{to.url}: {path}: {getattr(e, 'reason', e)}") from None
