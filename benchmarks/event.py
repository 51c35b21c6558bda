"""The event that the stand-in engine sends and the load checks: its bytes, and how its number and time are read back.

What lives here: the shape of one measured event, for engine.py and load.py alike.
What must not: sockets and statistics.

An event is an OpenAI ``chat.completion.chunk`` of fixed length. Its content holds the event's number in its stream and
the CLOCK_MONOTONIC nanosecond at which the engine sent it, both of fixed width, so that reading them takes two slices.
Both processes run on one host, hence on one clock.
"""

from __future__ import annotations

MODEL = "bench"

MARK = b'"@'
"""Opens a content string that carries a number and a time. Found wherever a gateway that writes its own JSON puts it."""
TOTAL_MARK = b'"='
"""Opens the last content, which carries how many events the engine has sent on this stream."""

_NUMBER = slice(2, 12)
_TIME = slice(13, 33)

_START = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1767225600,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":'
)
_GOING_ON = b'},"logprobs":null,"finish_reason":null}]}\n\n'
_STOP = b'},"logprobs":null,"finish_reason":"stop"}]}\n\n'
_USAGE = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1767225600,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
_DONE = b"data: [DONE]\n\n"


def framed(body: bytes) -> bytes:
    """One event as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(body), body)


_SHAPE = framed(_START + b'"@%010d %020d"' % (0, 0) + _GOING_ON)
_BEFORE, _, _AFTER = _SHAPE.partition(b'"@0000000000 00000000000000000000"')
TEMPLATE = _BEFORE.replace(b"%", b"%%") + b'"@%010d %020d"' + _AFTER.replace(b"%", b"%%")
"""``TEMPLATE % (number, nanoseconds)`` is an event, ready to be sent."""

EVENT_BYTES = len(_SHAPE)


def ending(count: int, *, with_usage: bool) -> bytes:
    """What closes a stream of ``count`` events: finish, usage if asked for, end marker, last HTTP chunk."""
    finish = framed(_START + b'"=%010d"' % count + _STOP)
    usage = framed(_USAGE % (count, count + 1)) if with_usage else b""
    return finish + usage + framed(_DONE) + b"0\r\n\r\n"


def number_and_time(data: bytes, at: int) -> tuple[int, int]:
    """The two figures of the event whose mark stands at ``at``."""
    return int(data[at + _NUMBER.start : at + _NUMBER.stop]), int(data[at + _TIME.start : at + _TIME.stop])


def total(data: bytes, at: int) -> int:
    """The figure of the last content, whose mark stands at ``at``."""
    return int(data[at + _NUMBER.start : at + _NUMBER.stop])
