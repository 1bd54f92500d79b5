"""The engine's server: one thread, one epoll, sends at their due times.

Knows nothing about protocols beyond which path is which. Subtle: epoll waits in whole
milliseconds, so the loop waits with select on the epoll's own descriptor, which takes
microseconds; long prompts are counted in a thread of their own, in which the tokenizers release
the interpreter, so that a count does not delay the tokens of others.
"""

from __future__ import annotations

import contextlib
import gc
import hmac
import logging
import os
import queue
import re
import select
import socket
import ssl
import threading
import time
from collections import deque
from time import monotonic_ns, time_ns
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from tokenswarm.records import BadInput
from tokenswarm.simulator import endpoints, native_apis, openai_api
from tokenswarm.simulator.answer import Ask, Protocol, RequestError
from tokenswarm.simulator.connection import Connection
from tokenswarm.simulator.engine import Engine
from tokenswarm.simulator.faults import Canned
from tokenswarm.simulator.job import Job
from tokenswarm.simulator.request_log import RequestLog
from tokenswarm.simulator.settings import Settings
from tokenswarm.simulator.tokenizing import ByBytes, Counted, open_tokenizing
from tokenswarm.simulator.wire import HttpRequest

logger = logging.getLogger(__name__)

THREAD_FROM_BYTES = 4096
FLUSH_EVERY_NS = 1_000_000_000
LONGEST_WAIT_S = 1.0
FAULT_HEADER = "x-tokenswarm-fault"
FAULT_KEY = "tokenswarm_fault"

PATHS: dict[str, Protocol] = {
    "/v1/completions": openai_api.COMPLETIONS,
    "/completions": openai_api.COMPLETIONS,
    "/v1/chat/completions": openai_api.CHAT,
    "/chat/completions": openai_api.CHAT,
    "/generate_stream": native_apis.TGI,
    "/completion": native_apis.LLAMACPP,
}
_TRITON = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?/generate(_stream)?")
_MII = re.compile(r"/mii/([^/]+)")


class Server:
    """Listens, reads, sends; `run` returns after `stop`."""

    def __init__(
        self,
        settings: Settings,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        log_path: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._api_key = _api_key(settings.api_key_env)
        tokenizing = open_tokenizing(settings)
        self._count_inline = isinstance(tokenizing, ByBytes)
        self._log = RequestLog(log_path)
        self.engine = Engine(settings, tokenizing, self._log, self._job_done)
        self._tls = tls
        self._listener = _listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = socket.socketpair()
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.setblocking(False)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._quitting = False
        self._flushed_ns = 0
        self._stalled = settings.stall_at_s is None or not settings.stall_for_s
        self._to_count: queue.SimpleQueue[tuple[Job, Ask] | None] = queue.SimpleQueue()
        self._counted: deque[tuple[Job, Ask, Counted | RequestError]] = deque()
        self._counter = threading.Thread(target=self._count_prompts, daemon=True)

    @property
    def wake_fd(self) -> int:
        """A descriptor to write a byte to when the loop must look up (signal.set_wakeup_fd)."""
        return self._wake_write.fileno()

    def run(self) -> None:
        """Serve until `stop`."""
        self._counter.start()
        gc.collect()
        gc.freeze()
        try:
            while not self._quitting:
                self._turn()
        finally:
            self._shut_down()

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler or another thread."""
        self._quitting = True
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")

    # --- the loop ----------------------------------------------------------------------------

    def _turn(self) -> None:
        engine = self.engine
        due = engine.next_due()
        wait_ns = 0 if due is None else due - monotonic_ns()
        if due is None or wait_ns > 0:
            self._flush(idle=due is None)
            timeout = LONGEST_WAIT_S if due is None else min(wait_ns / 1e9, LONGEST_WAIT_S)
            select.select([self._epoll], (), (), timeout)
        if not self._stalled:
            self._maybe_stall()
        for fd, events in self._epoll.poll(0, 256):
            self._dispatch(fd, events)
        engine.run_due(monotonic_ns())

    def _dispatch(self, fd: int, events: int) -> None:
        connection = self._connections.get(fd)
        if connection is not None:
            if events & select.EPOLLOUT:
                connection.on_writable()
            readable = events & ~select.EPOLLOUT and not connection.closed
            if readable and not connection.on_readable():
                self._peer_closed(connection)
            if connection.closed:
                self._forget(connection)
        elif fd == self._listener.fileno():
            self._accept()
        elif fd == self._wake_read.fileno():
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
            self._take_counted()

    def _flush(self, *, idle: bool) -> None:
        now = monotonic_ns()
        if idle or now - self._flushed_ns > FLUSH_EVERY_NS:
            self._log.flush()
            self._flushed_ns = now

    def _maybe_stall(self) -> None:
        """The planned stall of the whole engine, once."""
        settings, first = self._settings, self.engine.first_arrival_ns
        if first is None or settings.stall_at_s is None:
            return
        start = first + int(settings.stall_at_s * 1e9)
        if monotonic_ns() < start:
            return
        length = int(settings.stall_for_s * 1e9)
        while not self._quitting and (left := start + length - monotonic_ns()) > 0:
            time.sleep(min(left / 1e9, 0.05))
        self.engine.stood_still(length, start + length)
        self._stalled = True

    def _shut_down(self) -> None:
        self._to_count.put(None)
        self._counter.join()
        self.engine.stop()
        for connection in list(self._connections.values()):
            connection.close()
        for item in (self._listener, self._wake_read, self._wake_write, self._epoll):
            item.close()
        self._log.close()
        gc.unfreeze()

    # --- connections -------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("a connection could not be accepted: %s", error)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(
                sock,
                address[1],
                self._settings.max_body_bytes,
                self._on_request,
                self._want_write,
            )
            self._connections[connection.fd] = connection
            self.engine.metrics.connections += 1
            self._epoll.register(connection.fd, select.EPOLLIN)

    def _want_write(self, connection: Connection, wanted: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            if connection.closed:
                self._epoll.unregister(connection.fd)
                self._connections.pop(connection.fd, None)
                return
            mask = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
            self._epoll.modify(connection.fd, mask)

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]

    def _peer_closed(self, connection: Connection) -> None:
        job, connection.job = connection.job, None
        connection.close()
        if job is not None and job in self.engine.active:
            self.engine.client_closed(job)

    def _job_done(self, job: Job) -> None:
        connection = job.sink
        if isinstance(connection, Connection) and not connection.closed:
            connection.finished(job.keep_alive)

    # --- requests ----------------------------------------------------------------------------

    def _on_request(self, connection: Connection, request: HttpRequest, stamp: int) -> None:
        base = self._settings.base_path
        if not request.path.startswith(base):
            connection.respond(request, 404, b'{"detail":"Not Found"}')
            return
        path = request.path.removeprefix(base)
        if request.method in ("GET", "HEAD"):
            self._get(connection, request, path)
        elif request.method == "POST":
            self._post(connection, request, path, stamp)
        else:
            connection.respond(request, 405, b'{"detail":"Method Not Allowed"}')

    def _get(self, connection: Connection, request: HttpRequest, path: str) -> None:
        if path == "/log":
            connection.respond_pieces(request, *self._log.read())
            return
        if path.startswith("/v1/models") and not self._authorized(request):
            connection.respond(request, 401, openai_api.error_body(401, "Unauthorized"))
            return
        reply = endpoints.get(self.engine, path)
        if reply is None:
            known = path in PATHS or _route(path, {}) is not None
            status, text = (405, "Method Not Allowed") if known else (404, "Not Found")
            reply = endpoints.Reply(orjson.dumps({"detail": text}), status)
        connection.respond(request, reply.status, reply.body, reply.content_type)

    def _post(self, connection: Connection, request: HttpRequest, path: str, stamp: int) -> None:
        if path == "/quit":
            connection.respond(request, 200, b'{"bye":true}\n')
            self.stop()
            return
        body, problem = _object(request.body)
        if path == "/tokenize":
            self._tokenize(connection, request, body, problem)
            return
        route = _route(path, body)
        if route is None:
            connection.respond(request, 404, b'{"detail":"Not Found"}')
            return
        self._generate(connection, request, route, (body, problem), stamp)

    def _tokenize(
        self, connection: Connection, request: HttpRequest, body: dict[str, Any], problem: str
    ) -> None:
        try:
            if problem:
                raise RequestError(400, problem)
            reply = endpoints.tokenize(self.engine, body)
        except RequestError as error:
            text = openai_api.error_body(error.status, error.message)
            reply = endpoints.Reply(text, error.status)
        connection.respond(request, reply.status, reply.body)

    def _generate(
        self,
        connection: Connection,
        request: HttpRequest,
        route: tuple[Protocol, str | None, bool | None],
        parsed: tuple[dict[str, Any], str],
        stamp: int,
    ) -> None:
        """A request for tokens: check, choose a fault, count the prompt, submit."""
        api, path_model, stream = route
        body, problem = parsed
        arrived = monotonic_ns() - max(0, time_ns() - stamp)
        job = self.engine.new_job(connection, api, stamp, arrived)
        job.path = request.path
        job.request_id = request.headers.get("x-request-id")
        job.keep_alive = request.keep_alive
        job.chunked = request.chunked_answers
        connection.job, connection.busy = job, True
        try:
            if not self._authorized(request):
                raise RequestError(401, "Unauthorized")
            if problem:
                raise RequestError(400, problem)
            ask = api.parse(body, path_model)
            ask.fault = ask.fault or _asked_fault(ask, body, request)
            if stream is not None:
                ask.stream = stream
            self._check_model(ask)
            canned = self.engine.pick_fault(job, ask)
            if canned is not None:
                self._canned(connection, request, job, canned)
                return
            if self._count_inline or len(request.body) < THREAD_FROM_BYTES:
                self.engine.submit(job, ask, self.engine.tokenizing.count(ask))
            else:
                self._to_count.put((job, ask))
        except RequestError as error:
            self._refuse(job, error)

    def _refuse(self, job: Job, error: RequestError) -> None:
        connection = job.sink
        assert isinstance(connection, Connection)
        body = job.api.error_body(error.status, error.message)
        self.engine.finish_early(job, error.status)
        request = HttpRequest(method="POST", keep_alive=job.keep_alive)
        connection.respond(request, error.status, body)
        if not connection.closed:
            connection.finished(job.keep_alive)

    def _canned(
        self, connection: Connection, request: HttpRequest, job: Job, canned: Canned
    ) -> None:
        self.engine.finish_early(job, canned.status)
        if canned.status == 0:
            connection.reset()
            return
        connection.respond(request, canned.status, canned.body, canned.content_type, canned.headers)
        if not connection.closed:
            connection.finished(job.keep_alive)

    def _check_model(self, ask: Ask) -> None:
        settings = self._settings
        if not ask.model:
            ask.model = settings.model
        if settings.check_model and ask.model != settings.model:
            raise RequestError(404, f"The model `{ask.model}` does not exist.")

    def _authorized(self, request: HttpRequest) -> bool:
        if self._api_key is None:
            return True
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = given or request.headers.get("x-api-key", "") or request.headers.get("api-key", "")
        return hmac.compare_digest(given.encode(), self._api_key.encode())

    # --- counting long prompts in a thread ------------------------------------------------------

    def _count_prompts(self) -> None:
        while (item := self._to_count.get()) is not None:
            job, ask = item
            result: Counted | RequestError
            try:
                result = self.engine.tokenizing.count(ask)
            except RequestError as error:
                result = error
            self._counted.append((job, ask, result))
            with contextlib.suppress(OSError):
                self._wake_write.send(b"c")

    def _take_counted(self) -> None:
        while self._counted:
            job, ask, result = self._counted.popleft()
            if job not in self.engine.active:
                continue
            try:
                if isinstance(result, RequestError):
                    raise result
                self.engine.submit(job, ask, result)
            except RequestError as error:
                self._refuse(job, error)


def _route(path: str, body: dict[str, Any]) -> tuple[Protocol, str | None, bool | None] | None:
    """Protocol, model named by the path, and whether the path itself decides on streaming."""
    if path == "/generate":
        tgi = "inputs" in body
        return (native_apis.TGI, None, False) if tgi else (native_apis.SGLANG, None, None)
    if path == "/completions" and "n_predict" in body:
        return native_apis.LLAMACPP, None, None
    if path in PATHS:
        return PATHS[path], None, True if path == "/generate_stream" else None
    if match := _TRITON.fullmatch(path):
        return native_apis.TRITON, unquote(match[1]), match[2] is not None
    if match := _MII.fullmatch(path):
        return native_apis.MII, unquote(match[1]), False
    return None


def _asked_fault(ask: Ask, body: dict[str, Any], request: HttpRequest) -> str | None:
    """A fault asked for by body key, header, query or as `model#fault`."""
    model, sign, suffix = ask.model.partition("#")
    if sign:
        ask.model = model
    query = parse_qs(request.query).get("fault", [None])[0]
    return body.get(FAULT_KEY) or request.headers.get(FAULT_HEADER) or query or suffix or None


def _object(raw: bytes) -> tuple[dict[str, Any], str]:
    """The body as an object, and what is wrong with it."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return {}, f"the body is not JSON: {error}"
    if not isinstance(value, dict):
        return {}, "the body is not a JSON object"
    return value, ""


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise BadInput(f"api_key_env: the environment variable {name} is not set")
    return value


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on exactly this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(4096)
    except (OSError, OverflowError) as error:
        sock.close()
        raise BadInput(f"--host {host} --port {port}: cannot listen there: {error}") from None
    return sock
