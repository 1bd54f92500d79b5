"""Where requests go: a base URL taken apart. It opens nothing and imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tokenswarm.records import BadInput


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy on the way; key is what its Basic authorization wants, '' for none."""

    host: str
    port: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: one base URL, taken apart, and the proxy on the way, if any."""

    url: str
    tls: bool
    host: str
    port: int
    prefix: str
    proxy: Proxy | None = None

    def path(self, path: str) -> str:
        """A protocol's path below the base URL; '/v1' is not doubled when both have it."""
        if self.prefix.endswith("/v1") and path.startswith("/v1/"):
            return self.prefix + path[3:]
        return self.prefix + path

    @property
    def authority(self) -> str:
        """Host and port, as CONNECT has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        """Value of the Host header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.tls else 80) else f"{name}:{self.port}"


def parse_url(url: str) -> Target:
    """A base URL, e.g. http://[::1]:8000/proxy/v1. Raises BadInput for anything else."""
    example = "expected something like http://127.0.0.1:8000 or https://host/path"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as e:
        raise BadInput(f"--host {url!r}: {e}; {example}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"--host {url!r}: not an http or https URL; {example}")
    if parts.username or parts.password:
        raise BadInput(
            "--host: a user or password in the URL would end up in reports; "
            "put the key into an environment variable and name it in backend.api_key_env"
        )
    if parts.query or parts.fragment:
        raise BadInput(f"--host {url!r}: a base URL has no '?' or '#' part; {example}")
    if any(c.isspace() or not c.isprintable() for c in url.strip()):
        raise BadInput(f"--host {url!r}: a blank or control character in it; {example}")
    tls = parts.scheme == "https"
    return Target(
        url.strip(), tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/")
    )
