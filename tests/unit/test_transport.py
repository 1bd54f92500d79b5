"""The transport against real sockets: framing, stamps, time-outs, reuse, failures."""

import contextlib
import gzip
import resource
import socket
import ssl
import subprocess
import threading
import time
from dataclasses import replace

import gevent
import pytest
from socket_server import DONE, END, JSON, SSE, WHOLE, Server, answers, chunk, token
from stream_play import backend

from tokenswarm import transport as transport_module
from tokenswarm import transport_connection, transport_open
from tokenswarm.clock import NS, LoopClock
from tokenswarm.records import BadInput, Outcome
from tokenswarm.stream import Stream
from tokenswarm.target import Proxy, parse_url
from tokenswarm.transport import Transport
from tokenswarm.transport_answer import Timeouts
from tokenswarm.transport_errors import TransportError
from tokenswarm.transport_open import tls_context

PATIENT = Timeouts(connect=20, first_token=20, stall=20)
CLOSE_DELIMITED = b"HTTP/1.%d 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
BODY = token("a") + token("b", "length") + DONE


class Asked:
    """One exchange: outcome, error text, the stream and the connection."""

    def __init__(self, transport, body=b"{}", path="/v1/completions", kind=Stream):
        clock = LoopClock()
        self.stream = kind(backend("openai-completions"), clock)
        failure = None
        try:
            self.connection = transport.send(path, body, self.stream)
        except TransportError as e:
            failure, self.connection = e, e.connection
        finally:
            clock.close()
        self.stream.end_of_body()
        self.outcome, self.error = self.stream.verdict(failure)
        self.text = self.stream.text


@contextlib.contextmanager
def client(url, timeouts=PATIENT, **options):
    made = Transport(parse_url(url), timeouts, **options)
    try:
        yield made
    finally:
        made.close()


def ask(script, body=b"{}", **options):
    """One request to a server with this script."""
    with Server(script) as server, client(server.url, **options) as transport:
        return Asked(transport, body)


# -- framing -----------------------------------------------------------------------------------

FRAMINGS = {
    "chunked": WHOLE,
    "chunk extensions and trailers": SSE + chunk(BODY, b";sign=1") + b"0;x\r\nX-T: 1\r\n\r\n",
    "content length": (CLOSE_DELIMITED % 1)[:-2]
    + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    "no reason phrase": WHOLE.replace(b" OK", b" ", 1),
    "interim responses": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n"
    b"Content-Encoding: br\r\n\r\n" + WHOLE,
    "gzip": SSE[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunk(gzip.compress(BODY)) + END,
    "no content type": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + END,
    "a blank line before the status": b"\r\n" + WHOLE,
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMINGS)
def test_framing(name):
    asked = ask(answers(FRAMINGS[name]))
    assert (asked.outcome, asked.error, asked.text) == (Outcome.OK, None, "ab")
    assert asked.connection.reusable


@pytest.mark.parametrize("version", [0, 1])
def test_a_body_that_the_end_of_the_connection_ends(version):
    asked = ask(answers(CLOSE_DELIMITED % version + BODY, close=True))
    assert (asked.outcome, asked.text) == (Outcome.OK, "ab")
    assert not asked.connection.reusable


def test_a_body_without_end_mark_that_the_connection_ends_is_truncated():
    asked = ask(answers(CLOSE_DELIMITED % 1 + token("a"), close=True))
    assert (asked.outcome, asked.text) == (Outcome.TRUNCATED, "a")


BAD_ANSWERS = {
    "closed at once": (b"", Outcome.CONNECTION_LOST, "closed before the answer's end"),
    "half a status line": (b"HTTP/1.1 20", Outcome.CONNECTION_LOST, "closed before"),
    "half a body": (SSE + chunk(token())[:-9], Outcome.CONNECTION_LOST, "closed before"),
    "not HTTP": (b"220 mail ready\r\n", Outcome.CONNECTION_LOST, "broken HTTP framing"),
    "a wrong chunk size": (SSE + b"zz\r\nhi\r\n", Outcome.CONNECTION_LOST, "broken HTTP framing"),
    "an encoding nobody asked for": (SSE[:-2] + b"Content-Encoding: br\r\n\r\n" + END,
                                     Outcome.MALFORMED, "content-encoding 'br'"),
    "broken gzip": (SSE[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunk(b"not gzip") + END,
                    Outcome.MALFORMED, "broken compression"),
    "endless headers": (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(300)),
                        Outcome.MALFORMED, "more than 200 response headers"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
                         Outcome.MALFORMED, "switched protocols"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_an_outcome(name):
    wire, outcome, text = BAD_ANSWERS[name]
    asked = ask(answers(wire, close=True))
    assert asked.outcome is outcome
    assert text in asked.error


def test_a_reset_in_the_middle_of_a_stream():
    def script(peer):
        peer.request()
        peer.send(SSE + chunk(token("a")))
        first_read.wait(20)
        peer.reset()

    first_read = threading.Event()
    with Server(script) as server, client(server.url) as transport:
        asking = gevent.spawn(Asked, transport)
        while not any(c._answer and c._answer.event_ns for c in transport.in_flight):
            gevent.sleep(0.001)
        first_read.set()
        asked = asking.get()
    assert (asked.outcome, asked.text) == (Outcome.CONNECTION_LOST, "a")
    assert "ECONNRESET" in asked.error


def test_the_end_mark_is_enough_when_the_end_of_the_body_does_not_come():
    asked = ask(answers(SSE + chunk(BODY)))  # and then silence
    assert (asked.outcome, asked.text) == (Outcome.OK, "ab")
    assert not asked.connection.reusable


def test_a_status_is_an_outcome_with_the_servers_words():
    asked = ask(answers(JSON.format(404, 33, '{"error": {"message": "no such"}}').encode()))
    assert (asked.outcome, asked.error) == (Outcome.HTTP_ERROR, "HTTP 404: no such")
    assert asked.connection.reusable


def test_a_fault_of_our_own_is_an_outcome_too(monkeypatch):
    def broken(self, data):
        raise RuntimeError("ours")

    monkeypatch.setattr(Stream, "on_body", broken)
    with Server(answers(WHOLE)) as server, client(server.url) as transport:
        asked = Asked(transport)
    assert (asked.outcome, asked.error) == (Outcome.INTERNAL_ERROR, "RuntimeError: ours")


# -- requests ----------------------------------------------------------------------------------


def test_the_request_as_the_server_gets_it():
    seen = []

    def script(peer):
        seen.append(peer.request())
        peer.send(WHOLE)
        peer.until_closed()

    headers = (("X-Tenant", "a"), ("Authorization", "Bearer key"))
    with Server(script) as server, client(server.url + "/proxy/v1", headers=headers) as transport:
        asked = Asked(transport, b'{"a": "\xc3\xa9"}')
    assert asked.outcome is Outcome.OK
    head, body = seen[0]
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /proxy/v1/completions HTTP/1.1"
    assert {f"Host: 127.0.0.1:{server.url.split(':')[-1]}", "X-Tenant: a", "Content-Length: 11",
            "Authorization: Bearer key", "Content-Type: application/json",
            "Accept-Encoding: identity"} <= set(lines)  # fmt: skip
    assert body == b'{"a": "\xc3\xa9"}'


def test_a_large_body_is_sent_whole_and_its_time_is_known():
    sizes = []

    def script(peer):
        time.sleep(0.05)  # the socket's buffers fill meanwhile
        sizes.append(len(peer.request()[1]))
        peer.send(WHOLE)

    asked = ask(script, b"x" * 20_000_000)
    assert (asked.outcome, sizes) == (Outcome.OK, [20_000_000])
    assert asked.connection.upload_ns > 1_000_000


def test_an_answer_that_comes_before_the_whole_body_was_read():
    def script(peer):
        peer.sock.recv(1000)
        peer.send(JSON.format(413, 22, '{"error": "too large"}').encode())

    asked = ask(script, b"x" * 20_000_000)
    assert (asked.outcome, asked.error) == (Outcome.HTTP_ERROR, "HTTP 413: too large")
    assert asked.stream.status == 413


# -- reuse -------------------------------------------------------------------------------------


def test_a_connection_is_kept_and_used_again():
    with Server(answers(WHOLE, WHOLE, WHOLE)) as server, client(server.url) as transport:
        asked = [Asked(transport) for _ in range(3)]
        assert [a.outcome for a in asked] == [Outcome.OK] * 3
        assert server.connections == 1
        first, *later = asked
        assert first.connection is later[0].connection is later[1].connection
        assert later[1].connection.connect_ns is None  # a metric of new connections only


def test_a_first_connection_says_how_long_connecting_took():
    asked = ask(answers(WHOLE))
    assert 0 < asked.connection.connect_ns < 20 * NS


def test_a_connection_that_the_server_closed_meanwhile_is_not_used():
    with Server(answers(WHOLE, close=True)) as server, client(server.url) as transport:
        assert Asked(transport).outcome is Outcome.OK
        (idle,) = transport._idle
        while idle.still_open():
            time.sleep(0.001)
        assert Asked(transport).outcome is Outcome.OK
        assert server.connections == 2


def test_a_connection_with_bytes_nobody_asked_for_is_not_used():
    late = JSON.format(408, 0, "").encode()
    with Server(answers(WHOLE + late, WHOLE)) as server, client(server.url) as transport:
        assert Asked(transport).outcome is Outcome.OK
        assert [Asked(transport).outcome, server.connections] == [Outcome.OK, 2]


def test_a_connection_idle_for_long_is_not_used(monkeypatch):
    monkeypatch.setattr(transport_module, "_MAX_IDLE_NS", 0)
    with Server(answers(WHOLE, WHOLE)) as server, client(server.url) as transport:
        assert [Asked(transport).outcome for _ in range(2)] == [Outcome.OK, Outcome.OK]
        assert server.connections == 2


def test_connection_close_is_obeyed():
    wire = SSE[:-2] + b"Connection: close\r\n\r\n" + WHOLE[len(SSE) :]
    with Server(answers(wire, WHOLE)) as server, client(server.url) as transport:
        assert [Asked(transport).outcome for _ in range(2)] == [Outcome.OK, Outcome.OK]
        assert server.connections == 2


def test_a_new_connection_for_each_request_when_asked_for():
    heads = []

    def script(peer):
        heads.append(peer.request()[0])
        peer.send(WHOLE)
        peer.until_closed()

    with Server(script) as server, client(server.url, keep_alive=False) as transport:
        assert [Asked(transport).outcome for _ in range(2)] == [Outcome.OK, Outcome.OK]
        assert server.connections == 2
    assert all(b"\r\nConnection: close\r\n" in head for head in heads)


def test_streams_in_flight_have_a_connection_each():
    together = threading.Barrier(5, timeout=20)

    def script(peer):
        peer.request()
        together.wait()
        peer.send(WHOLE)

    with Server(script) as server, client(server.url) as transport:
        asked = gevent.joinall([gevent.spawn(Asked, transport) for _ in range(5)])
        assert [a.value.outcome for a in asked] == [Outcome.OK] * 5
        assert server.connections == 5


# -- time-outs ---------------------------------------------------------------------------------

PING = chunk(b": ping\n\n")


def slowly(*pieces):
    """A script that sends these at once and then comments for ever."""

    def script(peer):
        peer.request()
        for piece in pieces:
            peer.send(piece)
        while True:
            time.sleep(0.02)
            peer.send(PING)

    return script


@pytest.mark.parametrize(
    ("pieces", "timeouts", "outcome", "text"),
    [
        ((SSE,), Timeouts(first_token=0.2), Outcome.TIMEOUT_FIRST_TOKEN, "no token within 0.2 s"),
        ((SSE, chunk(token())), Timeouts(first_token=0.1, stall=0.3), Outcome.TIMEOUT_STALLED,
         "no further token for 0.3 s"),
        ((SSE, chunk(token())), Timeouts(total=0.4), Outcome.TIMEOUT_TOTAL,
         "not complete within 0.4 s"),
        ((SSE,), Timeouts(first_token=30, total=0.2), Outcome.TIMEOUT_TOTAL, "within 0.2 s"),
    ],
)  # fmt: skip
def test_a_timeout_of_the_answer(pieces, timeouts, outcome, text):
    began = time.monotonic()
    asked = ask(slowly(*pieces), timeouts=timeouts)
    assert asked.outcome is outcome
    assert text in asked.error
    limit = timeouts.total or (timeouts.stall if asked.text else timeouts.first_token)
    assert limit <= time.monotonic() - began < limit + 10


def test_a_timeout_covers_a_server_that_does_not_read():
    def script(peer):
        peer.until = done.wait(20)

    done = threading.Event()
    with Server(script) as server, client(server.url, Timeouts(first_token=0.2)) as transport:
        asked = Asked(transport, b"x" * 20_000_000)
        done.set()
    assert asked.outcome is Outcome.TIMEOUT_FIRST_TOKEN


@pytest.fixture
def full_backlog():
    """A port that answers no SYN: its queue of connections is full."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_timeout_of_connecting(full_backlog):
    with client(full_backlog, Timeouts(connect=0.2)) as transport:
        asked = Asked(transport)
    assert asked.outcome is Outcome.CONNECT_ERROR
    assert asked.error == f"{full_backlog.removeprefix('http://')}: no connection within 0.2 s"
    assert asked.connection.sent_ns is None


# -- cancelling --------------------------------------------------------------------------------


def test_cancelling_while_it_connects(full_backlog):
    with client(full_backlog, Timeouts(connect=60)) as transport:
        asking = gevent.spawn(Asked, transport)
        gevent.sleep(0.05)
        assert transport.cancel_all("the run ended") == 1
        asked = asking.get(timeout=20)
    assert (asked.outcome, asked.error) == (Outcome.CANCELLED, "the run ended")
    assert transport.in_flight == set()


@pytest.mark.parametrize("body", [b"{}", b"x" * 20_000_000], ids=["reading", "sending"])
def test_cancelling_in_the_middle(body):
    def script(peer):
        connected.set()
        done.wait(20)

    connected, done = threading.Event(), threading.Event()
    with Server(script) as server, client(server.url) as transport:
        asking = gevent.spawn(Asked, transport, body)
        while not connected.is_set():
            gevent.sleep(0.001)
        gevent.sleep(0.05)
        assert transport.cancel_all("the run ended") == 1
        asked = asking.get(timeout=20)
        done.set()
    assert (asked.outcome, asked.error) == (Outcome.CANCELLED, "the run ended")


# -- not connected -----------------------------------------------------------------------------


def test_connection_refused():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{unused.getsockname()[1]}"
        with client(f"http://{where}") as transport:
            asked = Asked(transport)
    assert asked.outcome is Outcome.CONNECT_ERROR
    assert asked.error == f"{where}: Connection refused [ECONNREFUSED]"


def test_a_name_that_does_not_exist():
    with client("http://no-such-host.invalid:8000") as transport:
        asked = Asked(transport)
    assert asked.outcome is Outcome.CONNECT_ERROR
    assert asked.error.startswith("no-such-host.invalid:8000: name not known")


def test_no_file_descriptor_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Server(answers(WHOLE)) as server, client(server.url) as transport:
        Asked(transport)
        transport._idle.pop().close()
        # 0: no number at all is below it, whatever the server's side closes meanwhile
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            asked = Asked(transport)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert asked.outcome is Outcome.CONNECT_ERROR
    assert "no file descriptor left (raise `ulimit -n`" in asked.error


def test_ipv6():
    with Server(answers(WHOLE), host="::1") as server, client(server.url) as transport:
        asked = Asked(transport)
    assert (asked.outcome, asked.text) == (Outcome.OK, "ab")


# -- TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-made certificate for 127.0.0.1: file of both certificate and key."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-subj", "/CN=test"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", *kind, *names, *files], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def serving(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def test_tls_with_kernel_stamps_and_reuse(certificate, serving):
    tls = tls_context(str(certificate / "cert.pem"), insecure=False)
    with (
        Server(answers(WHOLE, WHOLE), wrap=serving) as server,
        client(server.url, tls=tls) as transport,
    ):
        asked = [Asked(transport) for _ in range(2)]
        assert [(a.outcome, a.text) for a in asked] == [(Outcome.OK, "ab")] * 2
        assert [a.stream.unstamped_reads for a in asked] == [0, 0]
        assert [a.stream.reads > 0 for a in asked] == [True, True]
        assert server.connections == 1


@pytest.mark.parametrize("ends", [False, True])
def test_tls_that_holds_more_than_the_answer_is_not_used_again(serving, ends):
    """What nobody asked for, or the end, in records of their own behind the answer's."""

    def together(peer):
        peer.request()
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        peer.send(WHOLE)
        if ends:
            peer.sock.settimeout(0.05)
            with contextlib.suppress(OSError):
                peer.sock.unwrap()  # says so, and waits in vain for the client to say it too
        else:
            peer.send(WHOLE)
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        peer.sock.settimeout(None)
        peer.until_closed()

    scripts = iter([together, answers(WHOLE)])
    server = Server(lambda peer: next(scripts)(peer), wrap=serving)
    tls = tls_context(None, insecure=True)
    with server, client(server.url, tls=tls) as transport:
        asked = [Asked(transport) for _ in range(2)]
        assert [(a.outcome, a.text) for a in asked] == [(Outcome.OK, "ab")] * 2
        assert server.connections == 2
        assert asked[1].connection.connect_ns is not None


def test_an_interim_response_is_no_answer():
    def script(peer):
        peer.request()
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.reset()

    asked = ask(script)
    assert (asked.outcome, asked.stream.status) == (Outcome.CONNECTION_LOST, None)


def test_tls_many_records_in_one_read(certificate, serving):
    wire = SSE + b"".join(chunk(token("x" * 5000)) for _ in range(200)) + chunk(DONE) + END
    tls = tls_context(None, insecure=True)
    with Server(answers(wire), wrap=serving) as server, client(server.url, tls=tls) as transport:
        asked = Asked(transport)
    assert (asked.outcome, len(asked.text)) == (Outcome.OK, 1_000_000)
    assert len(asked.stream.event_ns) == 200


def test_tls_with_a_certificate_nobody_trusts(serving):
    tls = tls_context(None, insecure=False)
    with Server(answers(WHOLE), wrap=serving) as server, client(server.url, tls=tls) as transport:
        asked = Asked(transport)
    assert asked.outcome is Outcome.CONNECT_ERROR
    assert "certificate not trusted" in asked.error
    assert "backend.ca_file" in asked.error


def test_tls_spoken_to_a_plain_server():
    tls = tls_context(None, insecure=True)
    with (
        Server(lambda peer: peer.send(b"HTTP/1.1 400 Bad\r\n\r\n")) as server,
        client(server.url.replace("http", "https"), tls=tls) as transport,
    ):
        asked = Asked(transport)
    assert asked.outcome is Outcome.CONNECT_ERROR


def test_a_ca_file_that_cannot_be_read():
    with pytest.raises(BadInput, match=r"backend.ca_file: cannot read '/nowhere.pem'"):
        tls_context("/nowhere.pem", insecure=False)


# -- stamps ------------------------------------------------------------------------------------


def blocked_while_a_token_comes(server_said, read):
    """Ask; hold the loop for 0.3 s while the token arrives."""

    def script(peer):
        peer.request()
        peer.send(SSE)
        holding.wait(20)
        server_said.append(peer.send(chunk(token("a"))))
        peer.send(chunk(token("b", "length")) + chunk(DONE) + END)
        peer.until_closed()

    holding = threading.Event()
    with Server(script) as server, client(server.url) as transport:
        asking = gevent.spawn(Asked, transport)
        while not any(c.sent_ns for c in transport.in_flight):
            gevent.sleep(0.001)
        holding.set()
        time.sleep(0.3)
        read.append(time.time_ns())
        return asking.get(timeout=20)


def test_a_stamp_is_the_kernels_not_the_busy_loops():
    said, read = [], []
    asked = blocked_while_a_token_comes(said, read)
    assert asked.outcome is Outcome.OK
    assert asked.stream.unstamped_reads == 0
    held = read[0] - said[0]
    assert said[0] - 1000 <= asked.stream.event_ns[0] < said[0] + held / 2
    assert asked.stream.coalesced_reads == 1  # both events waited for the loop


def test_a_first_token_is_read_before_the_next_ones_of_others():
    """Otherwise it would wait for all of them, and be read together with its second."""
    others, read = 5, []
    held = threading.Event()
    sent = threading.Barrier(others + 1, timeout=20)
    all_sent = threading.Barrier(others + 2, timeout=20)

    class Noted(Stream):
        def on_body(self, data):
            read.append("first" if self.last_token_ns is None else "next")
            super().on_body(data)

    def script(peer):
        _, body = peer.request()
        peer.send(SSE)
        if body == b"next":
            peer.send(chunk(token("a")))
        held.wait(20)
        if body == b"next":
            peer.send(chunk(token("b", "length")))
        sent.wait()
        if body == b"first":
            peer.send(chunk(token("b", "length")))
        all_sent.wait()
        peer.send(chunk(DONE) + END)

    with Server(script) as server, client(server.url) as transport:
        asking = [gevent.spawn(Asked, transport, b"next", kind=Noted) for _ in range(others)]
        asking.append(gevent.spawn(Asked, transport, b"first", kind=Noted))
        while len(read) < others or sum(1 for c in transport.in_flight if c.sent_ns) <= others:
            gevent.sleep(0.001)
        del read[:]
        held.set()
        all_sent.wait()  # the loop is busy while all of it comes
        assert [a.get(timeout=20).outcome for a in asking] == [Outcome.OK] * (others + 1)
    assert read[: others + 1] == ["first"] + ["next"] * others


def test_without_kernel_stamps_the_process_clock_is_used_and_counted(monkeypatch):
    monkeypatch.setattr(transport_open, "SO_TIMESTAMPNS", 9999)
    said, read = [], []
    asked = blocked_while_a_token_comes(said, read)
    assert asked.outcome is Outcome.OK
    assert asked.stream.unstamped_reads == asked.stream.reads > 0
    assert asked.stream.event_ns[0] >= read[0]


def test_sent_is_before_the_first_byte_leaves():
    seen = []

    def script(peer):
        peer.request()
        seen.append(time.time_ns())
        peer.send(WHOLE)

    before = time.time_ns()
    asked = ask(script)
    assert before < asked.connection.sent_ns < seen[0] < asked.stream.event_ns[0]


def closes_when_used_again(then):
    """A script: one good answer; the next request, on the kept connection, gets this instead."""

    def script(peer):
        peer.request()
        peer.send(WHOLE)
        if peer.request() != (b"", b""):
            then(peer)

    return script


def test_a_kept_connection_that_ends_in_order_when_used_again_is_replaced():
    with Server(closes_when_used_again(lambda _: None)) as server, client(server.url) as transport:
        first, second = Asked(transport), Asked(transport)
    assert (first.outcome, second.outcome, second.text) == (Outcome.OK, Outcome.OK, "ab")
    assert (first.connection.is_second, second.connection.is_second) == (False, True)
    assert server.connections == 2


@pytest.mark.parametrize("reset", [False, True])
def test_a_request_that_the_server_took_and_lost_is_its_failure(reset, monkeypatch):
    """It reset the connection, or ended it when it cannot have been for being idle."""
    if not reset:
        monkeypatch.setattr(transport_connection, "_RACE_NS", 0)
    script = closes_when_used_again(lambda peer: peer.reset() if reset else None)
    with Server(script) as server, client(server.url) as transport:
        first, second = Asked(transport), Asked(transport)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.CONNECTION_LOST)
    assert "on a kept connection" in second.error
    assert not second.connection.is_second
    assert server.connections == 1


def test_a_request_that_the_server_never_took_is_sent_on_a_connection_of_its_own(monkeypatch):
    # the end of an idle connection that arrives just after it was looked at
    monkeypatch.setattr(transport_connection.Connection, "still_open", lambda _: True)
    scripts = iter([answers(WHOLE, close=True), answers(WHOLE)])
    with Server(lambda peer: next(scripts)(peer)) as server, client(server.url) as transport:
        first = Asked(transport)
        server.wait_hung_up(1)
        second = Asked(transport)
        assert second.connection.is_second
        assert second.connection.connect_ns is not None
    assert (first.outcome, second.outcome, second.text) == (Outcome.OK, Outcome.OK, "ab")
    assert server.connections == 2


def test_only_the_request_that_was_sent_again_says_so(monkeypatch):
    monkeypatch.setattr(transport_connection.Connection, "still_open", lambda _: True)
    scripts = iter([answers(WHOLE, close=True), answers(WHOLE, WHOLE)])
    with Server(lambda peer: next(scripts)(peer)) as server, client(server.url) as transport:
        said = []
        for _ in range(3):
            said.append(Asked(transport).connection.is_second)
            if len(said) == 1:
                server.wait_hung_up(1)
    assert said == [False, True, False]


def test_a_new_connection_that_is_closed_at_once_is_not_replaced():
    with Server(lambda peer: peer.request()) as server, client(server.url) as transport:
        asked = Asked(transport)
    assert asked.outcome is Outcome.CONNECTION_LOST
    assert server.connections == 1


def test_an_answer_that_has_begun_is_not_asked_for_again():
    script = closes_when_used_again(lambda peer: peer.send(b"HTTP/1.1"))
    with Server(script) as server, client(server.url) as transport:
        first, second = Asked(transport), Asked(transport)
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.CONNECTION_LOST)
    assert server.connections == 1


def relay(peer, to):
    """Pass bytes on in both directions until either side ends."""
    upstream = socket.create_connection(to)

    def back():
        with contextlib.suppress(OSError):
            while data := upstream.recv(65536):
                peer.sock.sendall(data)
        with contextlib.suppress(OSError):
            peer.sock.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=back)
    thread.start()
    with contextlib.suppress(OSError):
        while data := peer.sock.recv(65536):
            upstream.sendall(data)
    with contextlib.suppress(OSError):
        upstream.shutdown(socket.SHUT_RDWR)
    thread.join()
    upstream.close()


def through_proxy(url, proxy, key=""):
    at = parse_url(proxy.url)
    return replace(parse_url(url), proxy=Proxy(at.host, at.port, key))


def test_a_plain_request_goes_to_the_proxy_with_the_whole_url():
    heads = []

    def script(peer):
        heads.append(peer.request()[0].decode())
        peer.send(WHOLE)

    with Server(script) as proxy:
        target = through_proxy("http://engine.example:8000/base", proxy, "bWU6cw==")
        transport = Transport(target, PATIENT)
        asked = Asked(transport)
        transport.close()
    assert (asked.outcome, asked.text) == (Outcome.OK, "ab")
    lines = heads[0].split("\r\n")
    assert lines[0] == "POST http://engine.example:8000/base/v1/completions HTTP/1.1"
    assert "Host: engine.example:8000" in lines
    assert "Proxy-Authorization: Basic bWU6cw==" in lines


def test_tls_goes_through_a_tunnel_and_the_proxy_sees_nothing_of_it(certificate, serving):
    asked_of_proxy = []
    with Server(answers(WHOLE, WHOLE), wrap=serving) as server:
        to = parse_url(server.url)

        def script(peer):
            head = b""
            while b"\r\n\r\n" not in head:
                head += peer.sock.recv(1)
            asked_of_proxy.append(head.decode())
            peer.send(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
            relay(peer, (to.host, to.port))

        with Server(script) as proxy:
            target = through_proxy(server.url, proxy, "bWU6cw==")
            transport = Transport(
                target, PATIENT, tls=tls_context(str(certificate / "cert.pem"), False)
            )
            asked = [Asked(transport) for _ in range(2)]
            transport.close()
    assert [a.outcome for a in asked] == [Outcome.OK, Outcome.OK]
    assert asked_of_proxy == [
        f"CONNECT {to.authority} HTTP/1.1\r\nHost: {to.authority}\r\n"
        "Proxy-Authorization: Basic bWU6cw==\r\n\r\n"
    ]


def test_a_proxy_that_refuses_is_a_connect_error_that_names_it():
    def script(peer):
        peer.sock.recv(65536)
        peer.send(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

    with Server(script) as proxy:
        target = through_proxy("https://engine.example", proxy)
        transport = Transport(target, PATIENT, tls=tls_context(None, False))
        asked = Asked(transport)
        transport.close()
    assert asked.outcome is Outcome.CONNECT_ERROR
    assert asked.error == (
        f"engine.example:443 through proxy 127.0.0.1:{target.proxy.port}: the proxy said "
        "'HTTP/1.1 407 Proxy Authentication Required' to CONNECT engine.example:443"
    )
