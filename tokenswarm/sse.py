"""Server-sent events: bytes in, events out, incrementally, without I/O.

It knows nothing about HTTP, JSON or tokens. An event is a tuple (data, name): the data lines
joined by LF, as bytes, and the event's name ("" when none was given). Events without data are
not events (WHATWG HTML, section 9.2.6). Lines end with LF, CRLF or CR, mixed as the server
likes; only these three end a line (U+2028 does not).

LineParser is the same for servers that stream one JSON object a line instead (NDJSON).

The one subtle rule: how the bytes are cut never matters. A CR at the end of a piece ends its
line at once, and an LF that opens the next piece then belongs to it.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"

Event = tuple[bytes, str]


class EventTooLong(ValueError):  # noqa: N818 - says what it found
    """A line or an event grew past MAX_EVENT_BYTES: no server means that."""


class SseParser:
    """One stream of events; see the module docstring. Raises EventTooLong from feed.

    idle is True between events: what comes next is the start of a line of a new event.
    """

    __slots__ = (
        "_data", "_data_bytes", "_first", "_name", "_pending", "_pending_bytes", "_skip_lf", "idle",
    )  # fmt: skip

    def __init__(self) -> None:
        self.idle = True
        self._pending: list[bytes] = []  # pieces of a line that has no end yet
        self._pending_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = ""
        self._skip_lf = False
        self._first = True

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes, in order."""
        # Nearly every piece of a token stream is exactly one event of one line.
        if (
            self.idle
            and piece[:6] == b"data: "
            and len(piece) > 8  # empty data is no event
            and piece[-2:] == b"\n\n"
            and piece.find(b"\n") == len(piece) - 2
            and piece.find(b"\r") < 0
        ):
            self._first = False
            return [(piece[6:-2], "")]
        events = self._feed(piece)
        self.idle = not (self._pending or self._data or self._name or self._skip_lf)
        return events

    def _feed(self, piece: bytes) -> list[Event]:
        if self._skip_lf and piece:
            self._skip_lf = False
            if piece[:1] == b"\n":
                piece = piece[1:]
        if not piece:
            return []
        if b"\n" not in piece and b"\r" not in piece:
            self._hold(piece)
            return []
        if self._pending:
            piece = b"".join((*self._pending, piece))
            self._pending.clear()
            self._pending_bytes = 0
        if b"\r" in piece:
            self._skip_lf = piece[-1:] == b"\r"
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        events: list[Event] = []
        for line in lines:
            # blank lines between events mean nothing: a million of them must not cost a second
            if line or self._data or self._name or self._first:
                self._line(line, events)
        if rest:
            self._hold(rest)
        return events

    def finish(self) -> list[Event]:
        """The event that the end of the body left without its blank line, if any.

        A browser would drop it. Servers that end with an unterminated `[DONE]` exist, so the
        caller may look at it, knowing that it can be cut off anywhere.
        """
        events: list[Event] = []
        self._line(b"".join(self._pending), events)
        self._pending.clear()
        self._line(b"", events)
        return events

    def _hold(self, piece: bytes) -> None:
        self._pending.append(piece)
        self._pending_bytes += len(piece)
        if self._pending_bytes > MAX_EVENT_BYTES:
            raise EventTooLong(f"a line of more than {MAX_EVENT_BYTES} bytes without an end")

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            data = b"\n".join(self._data)
            if data:
                events.append((data, self._name))
            self._data.clear()
            self._data_bytes = 0
            self._name = ""
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._add(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"error" and value:  # llama.cpp's older servers: no field of the standard
            self._add(value)
            self._name = "error"

    def _add(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1  # an empty line is kept too
        if self._data_bytes > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")


class LineParser:
    """One stream of lines, each an event without a name; blank ones mean nothing."""

    __slots__ = ("_pending",)
    idle = False  # the short cut of server-sent events is not for lines

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[Event]:
        """The lines that this piece completes, in order."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._pending) + lines[0]
            self._pending = bytearray(rest)
        elif len(self._pending) + len(rest) > MAX_EVENT_BYTES:
            raise EventTooLong(f"a line of more than {MAX_EVENT_BYTES} bytes without an end")
        else:
            self._pending += rest
        return [(line, "") for line in map(bytes.strip, lines) if line]

    def finish(self) -> list[Event]:
        """The line that the end of the body left without its line end, if any."""
        rest, self._pending = bytes(self._pending).strip(), bytearray()
        return [(rest, "")] if rest else []
