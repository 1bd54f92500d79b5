"""Make a backend of a workload's words, and read what it sends and what it understands."""

from __future__ import annotations

import json

import pytest
import yaml

from tokenswarm import backends, workload
from tokenswarm.records import BadInput, Prompt

TEXT = Prompt(0, 5, 3, text="Hello there")
FREE = Prompt(0, 5, None, text="Hello there")
IDS = Prompt(0, 2, 3, token_ids=(7, 8))
CHAT = Prompt(0, 9, 3, messages=({"role": "user", "content": "Hi"},))


def make(kind, exact=True, **backend):
    """The backend of a workload with these keys of `backend:`."""
    words = {
        "backend": {"kind": kind, "model": "m/1", **backend},
        "tokenizer": {"source": "tiktoken", "path": "cl100k_base"},
        "prompts": {"input_tokens": 8, "output_tokens": 3, "exact_output": exact},
    }
    return backends.make(workload.parse(yaml.safe_dump(words)))


def sent(request):
    """Path and body of a request."""
    return request.path, json.loads(request.body)


def read(backend, *events, name=""):
    """What the backend's reader makes of these events of one answer."""
    reader = backend.reader()
    return [reader(e if isinstance(e, bytes) else json.dumps(e).encode(), name) for e in events]


def refused(kind, **backend):
    """The problems that making this backend raises."""
    with pytest.raises(BadInput) as caught:
        make(kind, **backend)
    return caught.value.problems
