"""Is a process of this machine still there? Faster than waiting for its silence.

Only a process in the same pid namespace can be asked: `here()` names it, so that the pid of a
worker in another container is never mistaken for one of this one's.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def here() -> str:
    """Name of the machine and pid namespace of this process; empty where that is unknown."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def ended(pid: int | None, where: str) -> bool:
    """True when a process of this pid namespace is known to be gone; a zombie is."""
    if not pid or not where or where != here():
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def own() -> dict[str, object]:
    """What a process tells another one about itself."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "where": here()}
