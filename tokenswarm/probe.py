"""Before the load: is the server there, ready, and does it count prompts as we do?

One request for exactly one output token, in no count, record or metric of the run. What it
finds goes to `summary.probe`; what makes the run pointless is BadInput, exit code 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from tokenswarm.backends import Backend
from tokenswarm.clock import LoopClock
from tokenswarm.records import BadInput, Outcome, Prompt, Record
from tokenswarm.stream import Stream
from tokenswarm.stream_settle import settle
from tokenswarm.transport import Transport
from tokenswarm.transport_errors import TransportError

_POLL_S = 0.5

# What to do about a status that says the request itself is wrong.
_ADVICE = {
    400: "the server refused the request: check backend.model, backend.extra_body and whether "
    "prompts.input_tokens fits its context",
    401: "the server wants a key: put it into an environment variable and name that in "
    "backend.api_key_env",
    403: "the key is not allowed to do this: check the variable named in backend.api_key_env",
    404: "no such path or model there: check --host (with or without a base path), backend.kind "
    "and backend.model",
    405: "the path exists but takes no POST: check --host and backend.kind",
    422: "the server did not understand the request: check backend.kind and backend.extra_body",
}
_FATAL = frozenset({Outcome.HTTP_ERROR, Outcome.CONNECT_ERROR, Outcome.NOT_STREAM,
                    Outcome.MALFORMED, Outcome.STREAM_ERROR})  # fmt: skip


def ask(transport: Transport, backend: Backend, prompt: Prompt) -> Record:
    """Send the probe request; never raises for what the server does."""
    clock = LoopClock()
    stream = Stream(backend, clock)
    request = backend.probe(prompt)
    failure = None
    began = time.time_ns()
    try:
        connection = transport.send(request.path, request.body, stream)
    except TransportError as e:
        failure, connection = e, e.connection  # type: ignore[attr-defined]
    finally:
        clock.close()
    record = Record(
        index=-1, stage=0, due_ns=began, due_offset_ns=0, outcome=Outcome.INTERNAL_ERROR,
        prompt_tokens=prompt.input_tokens or 0, prompt_tokens_expected=prompt.input_tokens,
        sent_ns=connection.sent_ns, connect_ns=connection.connect_ns,
    )  # fmt: skip
    stream.end_of_body()
    settle(record, stream, failure, False, None, lambda text: text)
    return record


def wait_ready(
    transport: Transport,
    backend: Backend,
    prompt: Prompt,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Ask for one real token until one comes. Raises BadInput when none did in time."""
    deadline = time.monotonic() + seconds
    told = 0.0
    while True:
        record = ask(transport, backend, prompt)
        if record.outcome in (Outcome.OK, Outcome.EMPTY):
            return
        if record.outcome is Outcome.INTERNAL_ERROR:
            raise RuntimeError(record.error)  # waiting does not mend our own faults
        if record.http_status in (400, 401, 403, 405, 422):
            raise _refusal(transport, record)  # waiting does not mend these
        if time.monotonic() >= deadline:
            raise BadInput(
                f"--wait-ready {seconds:g}: no token from {transport.target.url} in time; "
                f"the last try: {record.outcome.value}: {record.error}"
            )
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"waiting for {transport.target.url}: {record.outcome.value}: {record.error}")
        gevent.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def probe(
    transport: Transport, backend: Backend, prompt: Prompt, policy: bool | str
) -> tuple[dict[str, Any], list[str]]:
    """The finding for summary.probe, and warnings.

    policy is prompts.probe: True stops the run (BadInput) when the server counts another
    number of prompt tokens, "warn" only says so. An answer that no run could use stops it
    always; a server that is merely busy (429, 503, a time-out) does not.
    """
    record = ask(transport, backend, prompt)
    if record.outcome in _FATAL and (record.http_status or 0) < 500:
        raise _refusal(transport, record)
    counted = record.prompt_tokens if record.prompt_tokens_source == "usage" else None
    finding: dict[str, Any] = {
        "outcome": record.outcome.value,
        "error": record.error,
        "http_status": record.http_status,
        "expected_prompt_tokens": prompt.input_tokens,
        "counted_prompt_tokens": counted,
        "output_tokens": record.output_tokens,
        "prompt_check": "unavailable",
    }
    warnings = []
    if record.outcome not in (Outcome.OK, Outcome.EMPTY):
        warnings.append(f"probe: {record.outcome.value}: {record.error}")
    if counted is None or prompt.input_tokens is None:
        warnings.append(
            "probe: prompt_check: unavailable (the server gave no usage.prompt_tokens, or the "
            "prompts have no promised length), so prompt lengths are not checked"
        )
        return finding, warnings
    difference = counted - prompt.input_tokens
    finding["difference"] = difference
    finding["prompt_check"] = "exact" if difference == 0 else "differs"
    if difference:
        finding["likely_cause"] = likely_cause(difference, prompt)
        text = (
            f"probe: the server counted {counted} prompt tokens, the workload's tokenizer "
            f"{prompt.input_tokens} ({difference:+d}); likely cause: {finding['likely_cause']}"
        )
        if policy != "warn":
            raise BadInput(
                f"{text}. Prompts would not have the length asked for: set the tokenizer "
                "section to what the server uses, or prompts.probe: warn to run all the same"
            )
        warnings.append(text)
    return finding, warnings


def likely_cause(difference: int, prompt: Prompt) -> str:
    """What usually makes a server count so many tokens more (or fewer) than we do."""
    if prompt.input_tokens and difference < -prompt.input_tokens // 2:
        return "the server truncates prompts"
    if difference == 1:
        return "the server adds a BOS token that the tokenizer here does not add, or adds it twice"
    if difference == -1:
        return "the tokenizer here adds a BOS token that the server does not add"
    if prompt.messages is not None and abs(difference) < 64:
        return "another chat template (or system prompt, or date in it) on the server"
    return "another tokenizer on the server"


def _refusal(transport: Transport, record: Record) -> BadInput:
    """What to print for an answer that makes a run pointless."""
    where = f"--host {transport.target.url}"
    text = f"{where}: {record.outcome.value}: {record.error}"
    if record.outcome is Outcome.CONNECT_ERROR:
        advice = "is the server running there? --wait-ready SECONDS waits for one that starts"
    else:
        advice = _ADVICE.get(record.http_status or 0, "check --host, backend.kind and backend.path")
    return BadInput(f"{text}\n  {advice}")


def reach(transport: Transport) -> None:
    """Only see whether something listens. Raises BadInput when nothing does."""
    connection = transport.connection()
    try:
        connection.open(transport.timeouts.connect, transport.tls)
    except TransportError as e:
        raise BadInput(
            f"--host {transport.target.url}: {e.outcome.value}: {e.text}\n  is the server running "
            "there? --wait-ready SECONDS waits for one that starts"
        ) from None
    connection.close()
