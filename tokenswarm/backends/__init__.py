"""Protocols: how a prompt becomes a request and what an event of the answer means.

A new engine is one file beside this one and one row in BACKENDS. A backend knows nothing of
sockets or clocks: `build` makes a Request, `reader` gives a function that turns one event into
a TokenEvent. Which protocols exist is in the table; which engine speaks which is in the README.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tokenswarm.backends.llamacpp import LlamaCpp
from tokenswarm.backends.mii import Mii
from tokenswarm.backends.openai_chat import OpenAIChat
from tokenswarm.backends.openai_completions import OpenAICompletions
from tokenswarm.backends.sglang import SGLang
from tokenswarm.backends.template import Template, sends_messages
from tokenswarm.backends.tgi import Tgi
from tokenswarm.backends.triton import Triton
from tokenswarm.records import BadInput, Prompt, Request, TokenEvent

Reader = Callable[[bytes, str], TokenEvent]


class Backend(Protocol):
    """One protocol, set up for one workload.

    path is below the base URL. streams is False for a protocol whose answer is one document.
    stateless: what an event means does not depend on the events before it. closes is True where
    a clean end of the body is the protocol's own end mark. lines is True where events are lines
    of JSON instead of server-sent events. notes says what the user should know about the
    protocol with this workload, one sentence each.
    """

    path: str
    health_path: str
    models_path: str
    metrics_path: str
    streams: bool
    stateless: bool
    closes: bool
    lines: bool
    notes: tuple[str, ...]

    def build(self, prompt: Prompt) -> Request:
        """The request for a prompt. Raises BadInput for a prompt it cannot carry."""

    def probe(self, prompt: Prompt) -> Request:
        """The same for exactly one output token."""

    def reader(self) -> Reader:
        """A function for the events of one answer: (data, event name) -> TokenEvent.

        It raises ValueError (or a subclass) for an event that is not what the protocol says.
        """


BACKENDS: dict[str, Callable[[Any], Backend]] = {
    "openai-completions": OpenAICompletions,
    "openai-chat": OpenAIChat,
    "tgi": Tgi,
    "triton": Triton,
    "sglang": SGLang,
    "llamacpp": LlamaCpp,
    "mii": Mii,
    "template": Template,
}


def speaks_chat(workload: Any) -> bool:
    """Whether a workload's requests carry messages, which the server renders by its template."""
    kind = workload.backend.kind
    return kind == "openai-chat" or (kind == "template" and sends_messages(workload))


def make(workload: Any) -> Backend:
    """The backend that a workload names. Raises BadInput for one that does not exist."""
    kind = workload.backend.kind
    if kind not in BACKENDS:
        raise BadInput(
            f"backend.kind: unknown protocol '{kind}'. Expected one of: {', '.join(BACKENDS)}"
        )
    return BACKENDS[kind](workload)
