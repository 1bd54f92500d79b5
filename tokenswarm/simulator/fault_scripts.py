"""Scripts from scripts: what faults do to the events of a stream.

Each function takes the script of a right answer and gives one that goes wrong, or looks odd.
Knows nothing about which fault is which (that is the table in faults.py) nor about sockets.
Subtle: "after some tokens" is delivery.cut_after token events, drawn once a request.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import orjson

from tokenswarm.simulator.answer import Answer, End, Protocol, Raw, Script, Wait

SPLIT_PAUSE_NS = 300_000
_CONTENT = re.compile(rb'"content":("[^"]*")\}')

_EMPTY_CHAT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":%b,"choices":'
    b'[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null}]}\n\n'
)
EMPTY_EVENTS = {
    "openai-chat": _EMPTY_CHAT,
    "openai-completions": b'data: {"id":"c","object":"text_completion","created":1,"model":%b,'
    b'"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]}\n\n',
    "llamacpp": b'data: {"index":0,"content":"","tokens":[],"stop":false,"model":%b}\n\n',
    "triton": b'data: {"model_name":%b,"model_version":"1","text_output":""}\n\n',
}


@dataclass(slots=True)
class Delivery:
    """One answer on its way: what a fault may change."""

    answer: Answer
    protocol: Protocol
    rng: Random
    stall_ns: int | None
    slow_ns: int
    late_ns: int = 0
    close_delimited: bool = False
    gzip: bool = False
    cut_after: int = 0


def hang_first(script: Script, delivery: Delivery) -> Script:
    """Silence before the first token."""
    for item in script:
        if isinstance(item, tuple) and item[2]:
            yield from _stall(delivery)
            yield item
            break
        yield item
    yield from script


def hang_middle(script: Script, delivery: Delivery) -> Script:
    """Silence after some tokens."""
    yield from _until_cut(script, delivery)
    yield from _stall(delivery)
    yield from script


def _stall(delivery: Delivery) -> Script:
    yield End.HANG if delivery.stall_ns is None else Wait(delivery.stall_ns)


def pause(script: Script, delivery: Delivery) -> Script:
    """A pause after some tokens, then on."""
    yield from _until_cut(script, delivery)
    yield Wait(delivery.slow_ns)
    yield from script


def truncate(script: Script, delivery: Delivery) -> Script:
    """A clean end after some tokens."""
    yield from _until_cut(script, delivery)


def reset_middle(script: Script, delivery: Delivery) -> Script:
    """A reset after some tokens."""
    yield from _until_cut(script, delivery)
    yield End.RESET


def cut_chunked(script: Script, delivery: Delivery) -> Script:
    """The connection closed inside the body."""
    yield from _until_cut(script, delivery)
    yield End.CUT


def bad_chunk_size(script: Script, delivery: Delivery) -> Script:
    """Broken framing after some tokens."""
    yield from _until_cut(script, delivery)
    yield Raw(b"zz\r\ndata: {}\r\n")


def error_object(script: Script, delivery: Delivery) -> Script:
    """An error object after some tokens, then the end mark."""
    yield from _until_cut(script, delivery)
    yield delivery.protocol.error_event("CUDA out of memory"), 0, 0
    if delivery.protocol.end_mark:
        yield delivery.protocol.end_mark, 0, 0


def error_first(script: Script, delivery: Delivery) -> Script:
    """An error object instead of tokens."""
    del script
    yield delivery.protocol.error_event("context too long"), 0, 1
    if delivery.protocol.end_mark:
        yield delivery.protocol.end_mark, 0, 0


def error_event(script: Script, delivery: Delivery) -> Script:
    """A named error event after some tokens."""
    yield from _until_cut(script, delivery)
    yield b'event: error\ndata: {"message":"worker lost"}\n\n', 0, 0


def error_field(script: Script, delivery: Delivery) -> Script:
    """The `error:` field of older llama.cpp servers after some tokens."""
    yield from _until_cut(script, delivery)
    error = {"code": 500, "message": "slot unavailable", "type": "server_error"}
    yield b"error: " + orjson.dumps(error) + b"\n\n", 0, 0
    yield b"data: [DONE]\n\n", 0, 0


def malformed(script: Script, delivery: Delivery) -> Script:
    """Half a JSON object among the tokens."""
    yield from _until_cut(script, delivery)
    yield b'data: {"choices":[{"index":0,"delta":{"conte\n\n', 0, 0
    yield from script


def _until_cut(script: Script, delivery: Delivery) -> Script:
    """The script up to cut_after token events."""
    left = delivery.cut_after
    for item in script:
        yield item
        if isinstance(item, tuple) and item[1]:
            left -= 1
            if left == 0:
                return


def spliced(make: Callable[[int], bytes]) -> Callable[[Script, Delivery], Script]:
    """Something harmless of its own before every third token event and before the first."""

    def wrap(script: Script, _delivery: Delivery) -> Script:
        index = 0
        for item in script:
            if isinstance(item, tuple) and item[1]:
                if index % 3 == 0:
                    yield make(index), 0, 0
                index += 1
            yield item

    return wrap


def mapped(change: Callable[[bytes], bytes]) -> Callable[[Script, Delivery], Script]:
    """Every event changed in its bytes."""

    def wrap(script: Script, _delivery: Delivery) -> Script:
        for item in script:
            yield (change(item[0]), item[1], item[2]) if isinstance(item, tuple) else item

    return wrap


def empty_chunks(script: Script, delivery: Delivery) -> Script:
    """Events without text before the first token and between tokens, as chunked prefill sends."""
    template = EMPTY_EVENTS[delivery.protocol.name] % orjson.dumps(delivery.answer.ask.model)
    return spliced(lambda _index: template)(script, delivery)


def reasoning(script: Script, delivery: Delivery) -> Script:
    """The first half of a chat's tokens as reasoning."""
    left = max(1, delivery.answer.output_tokens // 2)
    for item in script:
        if isinstance(item, tuple) and item[1] and left > 0:
            left -= item[1]
            changed = item[0].replace(b'"delta":{"content":', b'"delta":{"reasoning_content":')
            yield changed, item[1], item[2]
        else:
            yield item


def tool_calls(script: Script, _delivery: Delivery) -> Script:
    """A chat's tokens as the arguments of one tool call; its name comes with the first."""
    name = b'"id":"call_1","type":"function","function":{"name":"look_up",'
    for item in script:
        if isinstance(item, tuple) and item[1]:
            call = rb'"tool_calls":[{"index":0,' + name + rb'"arguments":\1}}]}'
            yield _CONTENT.sub(call, item[0]), item[1], item[2]
            name = b'"function":{'
        else:
            yield item


def multi_line(script: Script, _delivery: Delivery) -> Script:
    """Every event over two data lines, which a reader joins with a line end."""
    for item in script:
        if isinstance(item, tuple):
            yield item[0].replace(b',"choices":', b',\ndata: "choices":', 1), item[1], item[2]
        else:
            yield item


def split(script: Script, delivery: Delivery) -> Script:
    """Every event cut at random bytes; the token counts with its last part."""
    rng = delivery.rng
    for item in script:
        if not isinstance(item, tuple):
            yield item
            continue
        payload, tokens, steps = item
        cuts = sorted({rng.randrange(1, len(payload)) for _ in range(rng.randint(1, 3))})
        for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True):
            last = end == len(payload)
            yield payload[start:end], tokens if last else 0, steps if start == 0 else 0
            if not last and rng.random() < 0.25:
                yield Wait(SPLIT_PAUSE_NS, shift=False)


def gzipped(script: Script) -> Script:
    """The body as one gzip stream, flushed after every event."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    for item in script:
        if isinstance(item, tuple):
            payload = packer.compress(item[0]) + packer.flush(zlib.Z_SYNC_FLUSH)
            yield payload, item[1], item[2]
        else:
            yield item
    yield packer.flush(), 0, 0
