"""How a connection comes about: look the name up, connect, pass a proxy, shake hands.

Each step is a function that blocks its greenlet and raises OSError; what that means for a request
is the connection's to say. Nothing here knows of requests.

The one subtle rule: TLS goes through memory, not through an SSLSocket, which would hide the
ancillary data with the kernel's receive times.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from typing import Any

import gevent.socket

from tokenswarm.records import BadInput
from tokenswarm.target import Proxy, Target

SO_TIMESTAMPNS = 35
_READ_BYTES = 16384
Addresses = list[tuple[Any, Any, int, str, Any]]


def resolve(target: Target) -> Addresses:
    """The addresses of a target's host. Raises OSError (socket.gaierror)."""
    to = target.proxy or target
    found: Addresses = gevent.socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    return found


def connect(addresses: Addresses) -> Any:
    """A socket connected to the first address that takes us, with the kernel's stamps on."""
    for family, kind, protocol, _, address in addresses:
        sock = gevent.socket.socket(family, kind, protocol)
        try:
            sock.connect(address)
        except OSError as e:
            sock.close()
            refused: OSError | None = e
        except BaseException:
            sock.close()
            raise
        else:
            refused = None
            break
    if refused is not None:
        raise refused
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # some stacks lack it; each unstamped read is counted
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def tunnel(sock: Any, target: Target, proxy: Proxy) -> None:
    """Have the proxy connect us to the server: from then on it only passes bytes on."""
    authority = target.authority
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *proxy_headers(proxy)]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    said = b""
    while b"\r\n\r\n" not in said and len(said) < _READ_BYTES:
        data = sock.recv(1)  # not a byte of what the server says itself
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the proxy")
        said += data
    status = said.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise OSError(f"the proxy said '{status[:80]}' to CONNECT {authority}")


def proxy_headers(proxy: Proxy) -> list[str]:
    """Header lines that a proxy wants to see."""
    return [f"Proxy-Authorization: Basic {proxy.key}"] if proxy.key else []


def tls_context(ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """Client TLS settings. Raises BadInput when ca_file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as e:
        raise BadInput(f"backend.ca_file: cannot read '{ca_file}': {e}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def handshake(
    sock: Any, context: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Shake hands as a client; the TLS object, what it reads from and what it writes to."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            data = sock.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError(
                    errno.ECONNRESET, "closed during the TLS handshake"
                ) from None
            incoming.write(data)
        else:
            break
    sock.sendall(outgoing.read())
    return tls, incoming, outgoing
