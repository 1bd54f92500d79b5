"""Base URLs taken apart."""

import pytest

from tokenswarm.records import BadInput
from tokenswarm.target import parse_url

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("url", "tls", "host", "port", "path", "host_header"),
    [
        ("http://127.0.0.1:8000", False, "127.0.0.1", 8000, COMPLETIONS, "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", False, "127.0.0.1", 8000, COMPLETIONS, "127.0.0.1:8000"),
        ("http://h:8000/v1", False, "h", 8000, COMPLETIONS, "h:8000"),
        ("http://h:8000/v1/", False, "h", 8000, COMPLETIONS, "h:8000"),
        ("https://h", True, "h", 443, COMPLETIONS, "h"),
        ("https://h:8443/a/b/v1", True, "h", 8443, "/a/b/v1/completions", "h:8443"),
        ("https://h/a/b", True, "h", 443, "/a/b/v1/completions", "h"),
        ("http://h", False, "h", 80, COMPLETIONS, "h"),
        ("http://h/v10", False, "h", 80, "/v10/v1/completions", "h"),
        ("http://h/av1", False, "h", 80, "/av1/v1/completions", "h"),
        ("http://[::1]:8000", False, "::1", 8000, COMPLETIONS, "[::1]:8000"),
        ("http://[2001:db8::1]/v1", False, "2001:db8::1", 80, COMPLETIONS, "[2001:db8::1]"),
        ("HTTPS://Host.Example", True, "host.example", 443, COMPLETIONS, "host.example"),
        ("  http://h:1 ", False, "h", 1, COMPLETIONS, "h:1"),
    ],
)
def test_url(url, tls, host, port, path, host_header):
    target = parse_url(url)
    assert (target.tls, target.host, target.port) == (tls, host, port)
    assert target.path(COMPLETIONS) == path
    assert target.host_header == host_header


def test_a_path_outside_v1_stays_below_the_base():
    assert parse_url("http://h/v1").path("/health") == "/v1/health"
    assert parse_url("http://h/x").path("/generate_stream") == "/x/generate_stream"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8000", "not an http or https URL"),
        ("ftp://h", "not an http or https URL"),
        ("http://", "not an http or https URL"),
        ("", "not an http or https URL"),
        ("http://h:99999", "Port out of range"),
        ("http://h:x", "Port could not be cast"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://h/?key=1", "has no '?' or '#' part"),
        ("http://h/#x", "has no '?' or '#' part"),
        ("http://h/a b", "blank"),
        ("http://h/\r\nX: y", "blank"),
    ],
)
def test_what_is_no_base_url(url, said):
    with pytest.raises(BadInput) as error:
        parse_url(url)
    assert str(error.value).startswith("--host")
    assert said in str(error.value)
    assert "http://127.0.0.1:8000" in str(error.value)


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(BadInput) as error:
        parse_url("http://me:SECRET@h/")
    assert "backend.api_key_env" in str(error.value)
    assert "SECRET" not in str(error.value)
