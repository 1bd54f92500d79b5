"""What this machine lets one process have: file descriptors and local ports, looked at early.

A run with more requests in flight than sockets would fail in the middle and blame the server.
The one subtle rule: the soft limit is raised to the hard one without asking, for that is what it
is there for; only what the hard limit does not allow is told, before anything was sent.
"""

from __future__ import annotations

import resource
from pathlib import Path

from tokenswarm.records import BadInput

SPARE_FILES = 128  # logs, Locust's own sockets, the tokenizer's files
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def make_room(sockets: int | None, servers: int = 1) -> int:
    """Raise the limit on open files as far as it goes; returns it.

    sockets is how many this process may need at once, None when nobody knows. Raises BadInput
    when there cannot be so many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    if soft != resource.RLIM_INFINITY and soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # a container may forbid even that
            pass
    limit = 1 << 20 if soft == resource.RLIM_INFINITY else soft
    if sockets is None:
        return limit
    if sockets + SPARE_FILES > limit:
        raise BadInput(
            f"load: up to {sockets} requests in flight on one worker, but a process may have "
            f"{limit} open files here: use more --workers, fewer users, a lower "
            "load.max_in_flight, or raise the hard limit (ulimit -Hn)"
        )
    ports = _ports()
    if ports is not None and sockets > ports * servers:
        raise BadInput(
            f"load: up to {sockets} requests in flight on one worker, but there are {ports} local "
            "ports for connections to one server (net.ipv4.ip_local_port_range): widen the range, "
            "or run workers on more hosts"
        )
    return limit


def _ports() -> int | None:
    try:
        low, high = map(int, _PORTS.read_text().split())
    except (OSError, ValueError):
        return None
    return high - low + 1
