"""What goes wrong on a connection, told as the outcome of its request.

Knows exceptions of sockets, TLS and the HTTP parser, and what a user can do about them; opens
and reads nothing.

The one subtle rule: whatever is raised while an answer is parsed becomes an outcome. What none of
the rows knows is a fault of our own, and is said to be one.
"""

from __future__ import annotations

import errno
import os
import socket

import httptools

from tokenswarm.records import Outcome


class TransportError(Exception):
    """Why no complete answer came; outcome says which kind."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.text = text


class AnswerError(Exception):
    """Raised inside an Answer's callbacks to end the exchange with this outcome."""

    def __init__(self, outcome: Outcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


def while_parsing(e: Exception) -> tuple[Outcome, str]:
    """The outcome, and its text, of an answer whose parsing raised e."""
    if isinstance(e, httptools.HttpParserUpgrade):
        return Outcome.MALFORMED, "the server switched protocols"
    if isinstance(e, httptools.HttpParserError):
        cause = e.__context__
        if isinstance(cause, AnswerError):
            return cause.outcome, str(cause)
        if isinstance(e, httptools.HttpParserCallbackError):
            return Outcome.INTERNAL_ERROR, f"{type(cause).__name__}: {cause}"
        return Outcome.CONNECTION_LOST, f"broken HTTP framing: {e}"
    if isinstance(e, AnswerError):
        return e.outcome, str(e)
    return Outcome.INTERNAL_ERROR, f"{type(e).__name__}: {e}"


def os_error_text(e: OSError) -> str:
    """What an operation of a socket ended with, and what helps against it."""
    if isinstance(e, socket.gaierror):
        return f"name not known ({e.strerror or e})"
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return "no file descriptor left (raise `ulimit -n`, or use more workers)"
    if e.errno == errno.EADDRNOTAVAIL:
        return "no local port left (raise net.ipv4.ip_local_port_range, or use more hosts)"
    if e.errno is not None:
        return f"{os.strerror(e.errno)} [{errno.errorcode.get(e.errno, e.errno)}]"
    return str(e) or type(e).__name__
