"""New text out of events that repeat all text so far, as SGLang's do.

It knows texts only. The one subtle rule: a server that detokenises again may replace the
characters of a token whose bytes were incomplete (U+FFFD) and may take a stop word back; any
other text that does not continue the one before is refused, for it is no cumulative stream.
"""

from __future__ import annotations

_INCOMPLETE = "\ufffd"


class Growth:
    """The text of one answer as it grows. setting is the option to name when it does not."""

    __slots__ = ("_setting", "_text")

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._text = ""

    def new(self, text: str) -> str:
        """What text adds to the one before. Raises ValueError when it is no continuation."""
        before = self._text
        if text.startswith(before):
            self._text = text
            return text[len(before) :]
        if before.startswith(text):  # a stop word was taken back
            return ""
        kept = before.rstrip(_INCOMPLETE)
        if kept != before and text.startswith(kept):
            self._text = text
            return text[len(before) :]
        raise ValueError(
            f"the text does not continue the one before; set {self._setting}: false if each "
            "event brings only new text"
        )
