"""A server of raw sockets in a thread: what it says, and when it hangs up, is a test's script."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = "HTTP/1.1 {} Said\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}"
END = b"0\r\n\r\n"


def token(text="a", finish=None):
    """One completions event."""
    reason = "null" if finish is None else f'"{finish}"'
    return f'data: {{"choices":[{{"text":"{text}","finish_reason":{reason}}}]}}\n\n'.encode()


def chunk(data, extension=b""):
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


DONE = b"data: [DONE]\n\n"
WHOLE = SSE + chunk(token("a")) + chunk(token("b", "length")) + chunk(DONE) + END


class Peer:
    """One accepted connection; what a script calls."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request; empty when the client has gone."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.sock.recv(65536)
            if not piece:
                return b"", b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        pieces, left = [body], size - len(body)
        while left > 0 and (piece := self.sock.recv(1 << 20)):
            pieces.append(piece)
            left -= len(piece)
        return head, b"".join(pieces)

    def send(self, data: bytes) -> int:
        """Send; returns the instant before, ns since the epoch."""
        now = time.time_ns()
        self.sock.sendall(data)
        return now

    def reset(self) -> None:
        """Hang up with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def until_closed(self) -> None:
        """Wait until the client hangs up."""
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass


class Server:
    """`with Server(script) as server:`; script(peer) runs in a thread for each connection."""

    def __init__(self, script, host="127.0.0.1", wrap=None) -> None:
        self._script, self._wrap = script, wrap
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        port = self._listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if wrap else 'http'}://{name}:{port}"
        self.connections = 0
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._socks.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._wrap is not None:
                sock = self._wrap.wrap_socket(sock, server_side=True)
                self._socks.append(sock)
            self._script(Peer(sock))
        except OSError:
            pass  # the client hung up: nothing that a test would not see at its own end
        except Exception as e:  # noqa: BLE001 - raised where the test is
            self.errors.append(e)
        finally:
            sock.close()

    def wait_hung_up(self, connection: int) -> None:
        """Until the server has closed its k-th connection, counted from 1."""
        self._threads[connection - 1].join()

    def __enter__(self):
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        assert self.errors == []


def answers(*wires: bytes, close: bool = False):
    """A script: these bytes for each request of a connection, in turn; then wait, or hang up."""

    def script(peer: Peer) -> None:
        for wire in wires:
            if peer.request() == (b"", b""):
                return
            peer.send(wire)
        if not close:
            peer.until_closed()

    return script
