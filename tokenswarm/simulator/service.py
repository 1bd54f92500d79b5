"""From an HTTP request to the engine and its answer: routes, keys, faults asked for, refusals.

Knows nothing about the loop. Subtle: every request for tokens is in the log, refused ones too;
what else is asked (models, health, metrics) is not.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from tokenswarm.records import BadInput
from tokenswarm.simulator import endpoints, native_apis, openai_api
from tokenswarm.simulator.answer import Ask, Protocol, RequestError
from tokenswarm.simulator.connection import Connection
from tokenswarm.simulator.counting import Counting
from tokenswarm.simulator.engine import Engine
from tokenswarm.simulator.faults import Canned
from tokenswarm.simulator.job import Job
from tokenswarm.simulator.request_log import RequestLog
from tokenswarm.simulator.settings import Settings
from tokenswarm.simulator.tokenizing import open_tokenizing
from tokenswarm.simulator.wire import HttpRequest

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


class Service:
    """Answers requests; wake must make the loop call `take_counted`, stop must end it."""

    def __init__(
        self,
        settings: Settings,
        log: RequestLog,
        wake: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        tokenizing = open_tokenizing(settings)
        self.engine = Engine(settings, tokenizing, log, self._job_done)
        self.counting = Counting(tokenizing, wake)
        self._settings = settings
        self._log = log
        self._stop = stop
        self._api_key = _api_key(settings.api_key_env)

    def answer(self, connection: Connection, request: HttpRequest, stamp: int) -> None:
        """Answer a request that arrived at stamp (Unix ns), now or when its tokens are due."""
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

    def take_counted(self) -> None:
        """Go on with the requests whose prompts have been counted by now."""
        done = self.counting.done
        while done:
            job, ask, result = done.popleft()
            if job not in self.engine.active:
                continue
            try:
                if isinstance(result, RequestError):
                    raise result
                self.engine.submit(job, ask, result)
            except RequestError as error:
                self._refuse(job, error)

    def client_closed(self, connection: Connection) -> None:
        """The peer of a connection is gone."""
        job, connection.job = connection.job, None
        connection.close()
        if job is not None and job in self.engine.active:
            self.engine.client_closed(job)

    def _job_done(self, job: Job) -> None:
        connection = job.sink
        if isinstance(connection, Connection) and not connection.closed:
            connection.finished(job.keep_alive)

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
            self._stop()
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
        # In this order a pause between the two clocks makes the answer late, never early.
        age = max(0, time_ns() - stamp)
        arrived = monotonic_ns() - age
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
            counted = self.counting.count(job, ask, len(request.body))
            if counted is not None:
                self.engine.submit(job, ask, counted)
        except RequestError as error:
            self._refuse(job, error)

    def _refuse(self, job: Job, error: RequestError) -> None:
        connection = job.sink
        if not isinstance(connection, Connection):
            return
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
    query = parse_qs(request.query).get("fault", [None])[0] if request.query else None
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
