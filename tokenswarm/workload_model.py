"""What a workload file may say: one frozen section a key, with every default in one place.

Checked here is what can be known from the words alone; whether a data set, tokenizer or server is
any good is found out where it is opened. Nothing here reads YAML or knows line numbers, except
that a series of a load shape is read from its file.

The one subtle rule: contradictions are found in the raw mapping (see spec.py), so that they are
reported together with all other mistakes of a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from tokenswarm import slo, spec
from tokenswarm.backends import BACKENDS
from tokenswarm.slo import Objective
from tokenswarm.spec import (
    Duration,
    Flag,
    ListOf,
    Natural,
    Positive,
    Problem,
    Section,
    Share,
    Table,
    Text,
)
from tokenswarm.workload_hardware import Hardware
from tokenswarm.workload_load import Load, measured_names
from tokenswarm.workload_prompts import Prompts

_NAME = re.compile(r"\w[\w .+-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"(?i)(api[-_]?key|token|secret|password|authorization|bearer)")
_SECRET_HEADERS = {"authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key"}
_SECRET_ADVICE = "a secret does not belong in a file: put it into an environment variable and name that in backend.api_key_env"  # noqa: E501 - one sentence
_OURS = {
    "prompt": "is made from prompts:",
    "messages": "is made from prompts:",
    "stream": "is always true: latencies are read from the stream",
    "max_tokens": "is set by prompts.output_tokens",
    "max_completion_tokens": "is set by prompts.output_tokens",
}


def _variable(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        # The value is not quoted: it may well be the secret itself.
        raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY")
    return value


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of header names to values, got {spec.show(value)}")
    problems: list[Problem] = []
    for name, content in value.items():
        if name.lower() in _SECRET_HEADERS:
            problems.append(((name,), _SECRET_ADVICE))
        elif not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            problems.append(((name,), "is not a header name"))
        elif not isinstance(content, str) or not content.isprintable():
            problems.append(((name,), f"must be one line of text, got {spec.show(content)}"))
    if problems:
        raise spec.failure(problems)
    return dict(value)


def _url(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", text):
        raise ValueError(
            f"must be a base URL such as http://127.0.0.1:8000, got {spec.show(value)}"
        )
    if "@" in text.split("/")[2]:
        raise ValueError(f"holds a user name or password: {_SECRET_ADVICE}")
    return text


def _url_or_none(value: Any) -> str | None:
    return None if value is None else _url(value)


class Backend(Section):
    """The server's protocol and what every request says besides its prompt."""

    kind: Annotated[str, spec.one_of("backend", *BACKENDS)] = "openai-completions"
    model: Text
    path: Text | None = None
    extra_body: Table = Field(default_factory=dict)
    headers: Annotated[dict[str, str], PlainValidator(_headers)] = Field(default_factory=dict)
    api_key_env: Annotated[str | None, PlainValidator(_variable)] = None
    include_usage: Flag = True
    options: Table = Field(default_factory=dict)
    ca_file: Text | None = None
    insecure: Flag = False
    connection: Annotated[
        Literal["keep-alive", "new"], spec.one_of("connection", "keep-alive", "new")
    ] = "keep-alive"
    urls: Annotated[tuple[Annotated[str, PlainValidator(_url)], ...], ListOf] = ()
    balance: Annotated[
        Literal["round-robin", "least-loaded"],
        spec.one_of("balance", "round-robin", "least-loaded"),
    ] = "round-robin"
    sticky_sessions: Flag = True

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Refuse secrets, and body fields that the tool itself must set."""
        for key in raw:
            if key not in cls.model_fields and _SECRET_KEY.search(key):
                yield (key,), _SECRET_ADVICE
        extra = raw.get("extra_body")
        for key in extra if isinstance(extra, Mapping) else ():
            if re.fullmatch(r"(?i)api[-_]?key|authorization|password", key):
                yield ("extra_body", key), _SECRET_ADVICE
            elif key in _OURS:
                yield ("extra_body", key), _OURS[key]
        if raw.get("ca_file") and raw.get("insecure") is True:
            yield ("insecure",), "cannot stand beside ca_file: the certificate is checked or not"


class Tokenizer(Section):
    """Where the server's tokenizer is found on this side."""

    source: Annotated[
        Literal["hf", "tiktoken"], spec.one_of("tokenizer source", "hf", "tiktoken")
    ] = "hf"
    path: Text
    add_special_tokens: Flag = True
    chat_template: Text | None = None
    chat_template_kwargs: Table = Field(default_factory=dict)
    trust_remote_code: Flag = False
    guessed: Flag = False  # none was given: see Workload.notes


class Timeouts(Section):
    """When a request is given up."""

    connect: Duration = 10.0
    first_token: Duration = 600.0
    stall: Duration = 120.0
    total: Duration | None = None


class Record(Section):
    """What is written for every request."""

    requests: Flag = True
    itl: Flag = False


class Validity(Section):
    """Beyond which limits a run must not be believed."""

    rate_tolerance: Share = 0.01
    cpu: Share = 0.9
    loop_lag_p99_s: Positive = 0.02
    coalesced_share: Share = 0.05
    starved_share: Share = 0.05
    clock_step_s: Positive = 0.005


class Retry(Section):
    """What follows a throttled request; its waiting counts in the latency."""

    max: Natural = 0
    honour_retry_after: Flag = True


class Server(Section):
    """The engine's own metrics, read beside the run."""

    off: Flag = False
    metrics_url: Annotated[str | None, PlainValidator(_url_or_none)] = None
    gpu_url: Annotated[str | None, PlainValidator(_url_or_none)] = None
    interval: Duration = 5.0


def _workload_name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"must be letters, digits, spaces, '.', '_', '+' or '-' (at most 100): it names the "
            f"folder of the run, got {spec.show(value)}"
        )
    return value


def _nonce(value: Any) -> str | int | None:
    if value is None or isinstance(value, str) or (isinstance(value, int) and value is not True
                                                   and value is not False):  # fmt: skip
        return value
    raise ValueError(f"must be text or a whole number, got {spec.show(value)}")


def _objectives(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"must be a mapping such as {{'p99(ttft)': '<2s'}}, got {spec.show(value)}"
        )
    return dict(value)


def _unstuck(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What load.sticky_connection cannot do."""
    load, prompts, backend = (
        section if isinstance(section := raw.get(name), Mapping) else {}
        for name in ("load", "prompts", "backend")
    )
    if load.get("sticky_connection") is not True:
        return
    path, urls = ("load", "sticky_connection"), backend.get("urls")
    if prompts.get("source") != "conversations":
        yield path, "keeps the connections of sessions: it needs prompts.source: conversations"
    if load.get("mode") == "open":
        yield path, "is for a closed loop: in open loop the turns of a session do not wait"
    if backend.get("connection") == "new":
        yield path, "cannot stand beside backend.connection: new"
    if backend.get("sticky_sessions") is False and isinstance(urls, list | tuple) and len(urls) > 1:
        yield path, "cannot stand beside backend.sticky_sessions: false with several urls"


class Workload(Section):
    """Everything that a run does, defaults written out."""

    name: Annotated[str, PlainValidator(_workload_name)] = "workload"
    seed: Natural = 1
    nonce: Annotated[str | int | None, PlainValidator(_nonce)] = None
    backend: Backend
    tokenizer: Tokenizer | None = None
    prompts: Prompts
    load: Load = Load(users=1, duration=60.0)
    timeouts: Timeouts = Timeouts()
    slo: Annotated[dict[str, str], PlainValidator(_objectives)] = Field(default_factory=dict)
    hardware: Hardware | None = None
    record: Record = Record()
    validity: Validity = Validity()
    retry: Retry = Retry()
    server: Server = Server()

    @classmethod
    def complete(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """A trace that gives both times and lengths needs naming once."""
        prompts, load = raw.get("prompts"), raw.get("load")
        if isinstance(prompts, Mapping) and isinstance(load, Mapping):
            if prompts.get("source") == "trace" and prompts.get("path") is None:
                raw["prompts"] = {**prompts, "path": load.get("trace")}
            elif load.get("arrivals") == "trace" and load.get("trace") is None:
                path = prompts.get("path") if prompts.get("source") == "trace" else None
                raw["load"] = {**load, "trace": path}
        return raw

    @classmethod
    def contradictions(cls, raw: Mapping[str, Any]) -> Iterator[Problem]:
        """Check `slo:` against the loop and the stages, and what sticks to what."""
        yield from _unstuck(raw)
        objectives = raw.get("slo")
        if not isinstance(objectives, Mapping):
            return
        load = raw.get("load")
        is_open = isinstance(load, Mapping) and load.get("mode") == "open"
        mode: slo.Mode = "open" if is_open else "closed"
        parsed = []
        for key, condition in objectives.items():
            try:
                parsed.append(slo.parse_one(key, condition, mode, measured_names(load)))
            except ValueError as error:
                yield ("slo", key), str(error)
        for key, text in slo.without_base(objectives, parsed):
            yield ("slo", key), text

    @property
    def notes(self) -> list[str]:
        """What whoever runs this should know."""
        if self.tokenizer is None or not self.tokenizer.guessed:
            return []
        return [
            f"no tokenizer: is given; prompts are cut with {self.tokenizer.source} "
            f"{self.tokenizer.path}. Name the model's own, or their length may not be what the "
            "server counts"
        ]

    def objectives(self) -> list[Objective]:
        """The parsed `slo:`, with the defaults that it leaves standing."""
        names = [stage.name for stage in self.load.resolved_stages() if not stage.warmup]
        return slo.parse_slos(self.slo, self.load.mode, names)
