"""Proxies by environment: which target goes through which, and which goes straight."""

import pytest

from tokenswarm.records import BadInput
from tokenswarm.target import Proxy, parse_url
from tokenswarm.target_proxy import through

P = "http://proxy:3128"


def proxy_of(url, **environ):
    return through(parse_url(url), environ).proxy


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://h", {}, None),
        ("http://h", {"http_proxy": P}, Proxy("proxy", 3128)),
        ("http://h", {"HTTP_PROXY": P}, Proxy("proxy", 3128)),
        ("http://h", {"https_proxy": P}, None),
        ("https://h", {"https_proxy": P}, Proxy("proxy", 3128)),
        ("https://h", {"all_proxy": "proxy:99"}, Proxy("proxy", 99)),
        ("http://h", {"http_proxy": "http://me:s%20s@proxy"}, Proxy("proxy", 80, "bWU6cyBz")),
        ("http://h", {"http_proxy": ""}, None),
    ],
)
def test_the_variable_for_the_scheme(url, environ, proxy):
    assert proxy_of(url, **environ) == proxy


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:2"])
def test_loopback_never_goes_through_a_proxy(url):
    assert proxy_of(url, http_proxy=P) is None


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"),
    [
        ("", False),
        ("*", True),
        ("gpu.corp.example", True),
        ("corp.example", True),
        (".corp.example", True),
        ("*.corp.example", True),
        ("other, GPU.corp.example ", True),
        ("gpu.corp.example:8000", True),
        ("gpu.corp.example:9000", False),
        ("u.corp.example", False),
        ("10.0.0.0/8", False),
    ],
)
def test_no_proxy_with_names(no_proxy, is_direct):
    found = proxy_of("http://gpu.corp.example:8000", http_proxy=P, no_proxy=no_proxy)
    assert (found is None) is is_direct


@pytest.mark.parametrize(
    ("no_proxy", "is_direct"),
    [("10.1.2.3", True), ("10.0.0.0/8", True), ("10.2.0.0/16", False), ("10.1.2.3:8000", True)],
)
def test_no_proxy_with_addresses(no_proxy, is_direct):
    found = proxy_of("http://10.1.2.3:8000", http_proxy=P, NO_PROXY=no_proxy)
    assert (found is None) is is_direct


def test_a_proxy_that_cannot_be_used_is_named_without_its_password():
    with pytest.raises(BadInput) as e:
        proxy_of("https://h", https_proxy="socks5://me:secret@proxy:1080")
    assert str(e.value) == (
        "https_proxy: the proxy socks5://proxy cannot be used; only proxies spoken to by http:// "
        "are supported (https servers behind them too): name such a one, unset https_proxy, or "
        "put h into no_proxy"
    )
    with pytest.raises(BadInput) as e:
        proxy_of("http://h:8000", HTTP_PROXY="https://me:secret@proxy:3128")
    assert str(e.value) == (
        "HTTP_PROXY: the proxy https://proxy cannot be used: TLS to the proxy itself is not "
        "supported; only proxies spoken to by http:// are supported (https servers behind them "
        "too): name such a one, unset HTTP_PROXY, or put h into no_proxy"
    )
    with pytest.raises(BadInput, match=r"^ALL_PROXY: the proxy socks5h://proxy cannot be used;"):
        proxy_of("https://h", ALL_PROXY="socks5h://proxy")
    with pytest.raises(BadInput, match="http_proxy: Port could not be cast"):
        proxy_of("http://h", http_proxy="http://proxy:port")
