"""HTTP/1 as a server reads and writes it, without sockets: requests from bytes, heads, chunks.

httptools frames the requests; the limits and the shapes of answers are here. Subtle: a reader
may give several requests for one read (pipelining), and a request is given only once its whole
body is there.
"""

from __future__ import annotations

import email.utils
import functools
import http
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import httptools

MAX_HEADER_BYTES = 64 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class WireError(Exception):
    """The peer does not speak HTTP, or says too much: answer with status and close."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class HttpRequest:
    """One request; header names in lower case."""

    method: str = ""
    path: str = ""
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True
    chunked_answers: bool = True


class RequestReader:
    """Incremental reader of one connection."""

    def __init__(self, max_body_bytes: int) -> None:
        self.wants_continue = False
        self._max_body = max_body_bytes
        self._done: list[HttpRequest] = []
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def feed(self, data: bytes) -> list[HttpRequest]:
        """Requests that these bytes complete."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise WireError(400, "upgrades are not supported") from None
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, WireError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise WireError(400, f"not an HTTP request: {error}") from None
        done, self._done = self._done, []
        return done

    def on_message_begin(self) -> None:
        """Parser callback."""
        self._request = HttpRequest()
        self._url = b""
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Parser callback; a long URL comes in several parts."""
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback."""
        self._count_header(len(name) + len(value))
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Parser callback."""
        if self._request.headers.get("expect", "").lower() == "100-continue":
            self.wants_continue = True

    def on_body(self, body: bytes) -> None:
        """Parser callback."""
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body:
            raise WireError(413, f"body larger than {self._max_body} bytes")
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Parser callback."""
        request, parser = self._request, self._parser
        request.method = parser.get_method().decode()
        path, _, request.query = self._url.decode("latin-1").partition("?")
        if "://" in path:  # absolute form, as sent to a proxy
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        request.path = path
        request.body = b"".join(self._body)
        request.keep_alive = parser.should_keep_alive()
        request.chunked_answers = parser.get_http_version() != "1.0"
        self.wants_continue = False
        self._done.append(request)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise WireError(431, f"headers larger than {MAX_HEADER_BYTES} bytes")


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """Status line and headers."""
    try:
        reason = http.HTTPStatus(status).phrase
    except ValueError:
        reason = "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", f"date: {_date(int(time.time()))}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@functools.lru_cache(maxsize=2)
def _date(second: int) -> str:
    return email.utils.formatdate(second, usegmt=True)


def chunk(payload: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)
