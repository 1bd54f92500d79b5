"""An engine in a thread of the test, and the plainest clients that can talk to it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import contextmanager

from tokenswarm.simulator.server import Server
from tokenswarm.simulator.settings import load

QUICK = ("tokenizer=none", "base_ms=1", "prefill_ms_per_token=0", "itl_ms=1")


@contextmanager
def engine(*sets, host="127.0.0.1", quick=True, **options):
    """A running engine; `quick` makes it fast and spares it a tokenizer."""
    settings = load("default", [*(QUICK if quick else ()), *sets])
    server = Server(settings, host, 0, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def call(server, method, path, body=None, headers=None):
    """(status, headers, body) of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def stream(server, path, body, headers=None):
    """The data of every event of a streamed answer, as text."""
    status, _, raw = call(server, "POST", path, body, headers)
    assert status == 200, raw
    return events(raw)


def events(raw):
    """Data of the events of a whole body with LF line ends."""
    assert raw.endswith(b"\n\n"), raw
    return [block.removeprefix("data:").lstrip(" ") for block in raw.decode().split("\n\n")[:-1]]


def log(server):
    """The engine's log."""
    return [json.loads(line) for line in call(server, "GET", "/log")[2].splitlines()]


def raw_exchange(server, request, until=b"", timeout=10):
    """Bytes that come back for these bytes, to the end of the connection or up to `until`."""
    with socket.create_connection(("127.0.0.1", server.port), timeout) as sock:
        sock.sendall(request)
        received = b""
        while not (until and until in received):
            piece = sock.recv(65536)
            if not piece:
                break
            received += piece
        return received


def post(path, body, *headers, version="1.1"):
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data
