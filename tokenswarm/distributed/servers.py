"""Connections to the servers of a workload: for its load, for the probe, for their metrics.

Workers and the master make them alike; the key of the server goes to no other one.
"""

from __future__ import annotations

import os
from typing import Any

from tokenswarm import server_side, target, target_proxy
from tokenswarm.records import BadInput
from tokenswarm.transport import Transport
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_balance import Balanced
from tokenswarm.transport_first import FirstTokens
from tokenswarm.transport_open import tls_context


def make_transports(work: Any, host: str) -> list[Transport]:
    """A transport for each base URL of a workload, which is host's unless backend.urls has some.

    Raises BadInput for a bad URL, CA file, proxy or missing key.
    """
    limits = work.timeouts
    timeouts = Timeouts(limits.connect, limits.first_token, limits.stall, limits.total)
    headers, keep_alive = _headers(work), work.backend.connection != "new"
    targets = [
        target_proxy.through(target.parse_url(url), os.environ)
        for url in (work.backend.urls or (host,))
    ]
    firsts = FirstTokens()  # one for all: first tokens of any server go before others' next ones
    return [Transport(to, timeouts, headers, _tls(work, to), keep_alive, firsts) for to in targets]


def make_transport(work: Any, host: str, k: int = 0) -> Transport | Balanced:
    """What worker k sends a workload's requests with. Raises BadInput as make_transports."""
    transports = make_transports(work, host)
    if len(transports) == 1:
        return transports[0]
    return Balanced(transports, work.backend.balance, k, by_number=work.load.mode == "open")


def _tls(work: Any, to: target.Target) -> Any:
    return tls_context(work.backend.ca_file, work.backend.insecure) if to.tls else None


def sockets_of(work: Any, k: int, n: int) -> int | None:
    """Most requests that worker k of n has in flight; None where only the server decides."""
    load = work.load
    most = load.max_in_flight
    if load.mode == "closed":
        users = max(int(stage.most_users) for stage in load.resolved_stages())
        held = most is None or load.sticky_connection  # while its user thinks or waits, too
        most = users if held else min(users, most)
    return None if most is None else len(range(k, most, n))


def _headers(work: Any) -> tuple[tuple[str, str], ...]:
    headers = tuple(work.backend.headers.items())
    if work.backend.api_key_env:
        key = os.environ.get(work.backend.api_key_env, "")
        if not key:
            raise BadInput(
                f"backend.api_key_env: the environment variable {work.backend.api_key_env} "
                "is not set (on this machine); export it or leave the key out"
            )
        headers = (*headers, ("Authorization", f"Bearer {key}"))
    return headers


def make_metrics_transport(work: Any, to: target.Target, same: bool) -> Transport:
    """A transport for an engine's metrics; the server's key goes along only to the same server."""
    headers = _headers(work) if same else ()
    to = target_proxy.through(to, os.environ)
    return Transport(to, server_side.TIMEOUTS, headers, _tls(work, to))
