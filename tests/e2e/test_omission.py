"""Coordinated omission: the same stall as three ways of measuring see it, beside the theory.

The engine stands still for S = 3 s of T = 8 s. TLS with a connection a request: while the engine
stands still no handshake ends, so a request cannot be sent, as where a pool of connections is
used up. What users suffer is counted from due; from sent it is all but invisible, and a closed
loop does not even ask while the engine stands still.
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from product import run

from tokenswarm.simulator.process import EngineProcess

pytestmark = pytest.mark.e2e
T, S, AT = 8.0, 3.0, 2.0
RATE, USERS = 15, 2
TTFT_S, ITL_S, TOKENS = 0.05, 0.01, 6
SLACK_S = 0.35  # 45 handshakes at once after the stall, and a busy machine


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-subj", "/CN=test"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    # a handshake with this kind of key is cheap, and every request makes one
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(["openssl", "req", *kind, *names, *files], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def finished(certificate, tmp_path_factory):
    """Both loops against an engine that stands still once: {mode: finished run}."""
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    loads = {
        "open": {"mode": "open", "arrivals": "constant", "rate_per_s": RATE},
        "closed": {"users": USERS},
    }

    def one(mode):
        with EngineProcess(
            "--set", f"stall_at_s={AT}", f"stall_for_s={S}", f"base_ms={TTFT_S * 1e3}",
            "prefill_ms_per_token=0", f"itl_ms={ITL_S * 1e3}", "--tls-cert", cert, "--tls-key", key,
        ) as engine:  # fmt: skip
            return run(
                tmp_path_factory.mktemp(mode), engine.url, "--workers", "0",
                load={**loads[mode], "duration": f"{T:g}s"},
                prompts={"output_tokens": TOKENS, "probe": False},  # it would be the first arrival
                backend={"model": "demo", "ca_file": cert, "connection": "new"},
            )  # fmt: skip

    with ThreadPoolExecutor() as pool:  # side by side: each mostly waits
        return dict(zip(loads, pool.map(one, loads), strict=True))


def ttft(finished, key):
    return sorted(row[key] for row in finished.rows if row["outcome"] == "ok")


def at(values, q):
    """The value at rank q n."""
    return values[round(q * len(values)) - 1]


def theory(q):
    """Quantile q of TTFT from due in open loop.

    A share S/T of the arrivals comes while the engine stands still and waits for what is left of
    the stall: uniform from 0 to S. All others wait for the first token only.
    """
    waiting = q - (1 - S / T)
    return TTFT_S + max(0.0, waiting * T)


@pytest.mark.parametrize("q", [0.5, 0.75, 0.9, 0.99])
def test_open_loop_from_due_is_what_theory_says(finished, q):
    values = ttft(finished["open"], "ttft_due_s")
    assert len(values) == T * RATE
    assert theory(q) - 0.05 < at(values, q) < theory(q) + SLACK_S


def test_open_loop_from_sent_hides_the_stall(finished):
    """All but those that were on their way when it began: the arrivals of one first token."""
    values = ttft(finished["open"], "ttft_s")
    assert at(values, 0.9) < TTFT_S + SLACK_S < theory(0.9)
    on_their_way = RATE * TTFT_S + 2
    assert sum(v > TTFT_S + SLACK_S for v in values) <= on_their_way


def test_a_closed_loop_hides_the_stall_and_asks_less(finished):
    values = ttft(finished["closed"], "ttft_due_s")
    assert sum(v > TTFT_S + SLACK_S for v in values) <= USERS
    assert at(values, 0.9) < TTFT_S + SLACK_S < theory(0.9)
    # without the stall each user would have sent T / (seconds a request) requests
    seconds = TTFT_S + (TOKENS - 1) * ITL_S
    assert len(values) < USERS * (T - S) / seconds + 2 * USERS


def test_nothing_is_missing_in_either_loop(finished):
    for done in finished.values():
        counts = done.summary["requests"]
        assert counts["due"] == counts["sent"] == counts["ok"] == len(done.rows)
        assert done.summary["valid"], done.summary["invalid_reasons"]


def test_the_wait_before_sending_is_its_own_metric(finished):
    delays = sorted(row["send_delay_s"] for row in finished["open"].rows)
    assert at(delays, 0.5) < 0.05
    assert theory(0.9) - TTFT_S - 0.1 < at(delays, 0.9) < theory(0.9) + SLACK_S
    slowest = finished["open"].summary["metrics"]["send_delay_s"]["max"]
    assert S - 0.3 < slowest < S + SLACK_S
