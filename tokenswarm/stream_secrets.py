"""Taking secrets out of texts that a server said, before they are kept, shown or exported.

It knows the secrets of a workload's environment and what keys look like. The one subtle rule:
servers repeat a wrong key in their error texts, whole or in part, so what looks like a key goes
as well as what is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

MASK = "***"
_LOOKS_LIKE_ONE = re.compile(
    r"(?i)(\b(?:bearer|basic)\s+"
    r"|\b(?:api[-_ ]?key|token|secret|password|signature)[\"']?\s*[=:]\s*[\"']?)"
    r"[\w.~+/=*-]{6,}"
)
_PREFIXED = re.compile(r"\b(?:sk|pk|rk|hf|gsk|nvapi|pplx|xai)[-_][\w*.-]{6,}")


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that takes these secrets, and what looks like one, out of a text."""
    known = sorted({s for s in secrets if s}, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in known:
            text = text.replace(secret, MASK)
        return _PREFIXED.sub(MASK, _LOOKS_LIKE_ONE.sub(rf"\1{MASK}", text))

    return redact
