"""HTTP proxies by environment: http_proxy, https_proxy, all_proxy and no_proxy, in either case.

It knows names and addresses, opens nothing. The one subtle rule, as in Go's net/http: loopback
addresses are never reached through a proxy, because nobody who sets one for the outside means
the server on his own machine.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from tokenswarm.records import BadInput
from tokenswarm.target import Proxy, Target

_WHY = {"https": ": TLS to the proxy itself is not supported"}


def through(target: Target, environ: Mapping[str, str]) -> Target:
    """The target with the proxy that the environment names for it, if any.

    Raises BadInput for a proxy that cannot be used.
    """
    name, url = _named(environ, ("https_proxy" if target.tls else "http_proxy", "all_proxy"))
    if not url or _is_loopback(target.host) or _is_exempt(target, environ):
        return target
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        where = f"{parts.scheme}://{parts.hostname or ''}"  # not the whole: it may hold a password
        raise BadInput(
            f"{name}: the proxy {where} cannot be used{_WHY.get(parts.scheme, '')}; only proxies "
            "spoken to by http:// are supported (https servers behind them too): name such a "
            f"one, unset {name}, or put {target.host} into no_proxy"
        )
    try:
        port = parts.port or 80
    except ValueError as e:
        raise BadInput(f"{name}: {e}") from None
    key = ""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        key = base64.b64encode(pair.encode()).decode()
    return replace(target, proxy=Proxy(parts.hostname, port, key))


def _named(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    for name in names:
        for spelt in (name, name.upper()):
            if environ.get(spelt):
                return spelt, environ[spelt]
    return names[0], ""


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_exempt(target: Target, environ: Mapping[str, str]) -> bool:
    """Whether no_proxy has the host: a name with its subdomains, an address, a network, or *."""
    _, text = _named(environ, ("no_proxy",))
    return any(
        _matches(entry.strip().lower(), target) for entry in text.split(",") if entry.strip()
    )


def _matches(entry: str, target: Target) -> bool:
    host = target.host.lower()
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass  # one of the two is a name
    name, colon, port = entry.rpartition(":")
    if colon and port.isdigit():
        if int(port) != target.port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*").lstrip(".")
    return host == entry or host.endswith(f".{entry}")
