"""The request for one token and its answer: their bytes, and whether an answer is the one that was asked for.

What lives here: the shape of a short request, for short_engine.py and short_load.py alike.
What must not: sockets and clocks.

To decode every answer would cost the load more than the gateway. An answer whose number is taken out is the same bytes
each time: the first of a kind is decoded and checked in full, and those that equal it, to the byte, are right as well.
"""

from __future__ import annotations

import json
import re

NUMBER_DIGITS = 10
MARK = b'"@'
MAX_SHAPES = 256
"""A gateway that frames its answers by how bytes happen to arrive has a few; beyond so many each is decoded anew."""

_START = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":'
)
_TOKEN = _START + b'[{"index":0,"delta":{"role":"assistant","content":"@%s"},"finish_reason":null}]}\n\n'
_FINISH = _START + b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
_USAGE = _START + b'[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
_DONE = b"data: [DONE]\n\n"
_END = b"0\r\n\r\n"
_ZEROS = b"0" * NUMBER_DIGITS
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


def _framed(body: bytes, longer: int = 0) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body) + longer, body)


_FRAMED_TOKEN = _framed(_TOKEN, NUMBER_DIGITS - len(b"%s"))
PLAIN = _FRAMED_TOKEN + _framed(_FINISH) + _framed(_DONE) + _END
"""``PLAIN % digits`` is an answer's body."""
WITH_USAGE = _FRAMED_TOKEN + _framed(_FINISH) + _framed(_USAGE) + _framed(_DONE) + _END


def request(port: int, number: bytes) -> bytes:
    """One short request, whose answer must carry the same digits."""
    body = b'{"model":"bench","messages":[{"role":"user","content":"@%s"}],"stream":true,"max_tokens":1}' % number
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        b"accept: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (port, len(body), body)
    )


class Checker:
    """Knows the shapes of answers that are right."""

    def __init__(self) -> None:
        self._shapes: set[bytes] = set()

    def problem(self, answer: bytes, number: bytes) -> str:
        """What is wrong with a whole answer, head and all; empty when nothing is."""
        head_end = answer.find(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            return f"no answer: {answer[:200]!r}"
        body = answer[head_end + 4 :]
        shape = body.replace(MARK + number, MARK + _ZEROS, 1)
        if shape in self._shapes and number in body:
            return ""
        wrong = _wrong(unframed(body), number)
        if not wrong and len(self._shapes) < MAX_SHAPES:
            self._shapes.add(shape)
        return wrong


def unframed(body: bytes) -> bytes:
    """What HTTP's chunks hold; empty where they are not what they should be, to the last byte."""
    found, at = [], 0
    while (line_end := body.find(b"\r\n", at)) >= 0:
        try:
            size = int(body[at:line_end].partition(b";")[0], 16)
        except ValueError:
            return b""
        start, end = line_end + 2, line_end + 2 + size
        if body[end : end + 2] != b"\r\n":
            return b""
        if size == 0:
            return b"".join(found) if len(body) == end + 2 else b""
        found.append(body[start:end])
        at = end + 2
    return b""


def _wrong(text: bytes, number: bytes) -> str:
    """What is wrong with a decoded answer."""
    *events, last = _DATA.findall(text) or [b""]
    if last.strip() != b"[DONE]":
        return f"no end marker: {text[:160]!r}"
    try:
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        content = "".join(choice["delta"].get("content") or "" for choice in choices)
        reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"not the events of a chat completion ({error!r}): {text[:160]!r}"
    if content != f"@{number.decode()}" or reasons != ["stop"]:
        return f"content {content!r}, finish {reasons}, where @{number.decode()} and one stop were due"
    return ""
