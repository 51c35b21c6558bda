"""Faults in how a reply travels: its framing, its head, its bytes, and what becomes of the connection.

What lives here: one small function per fault, entered into the table under its own name.
What must not: what is said (event_faults.py).
"""

from __future__ import annotations

from functools import partial

from .event_faults import GARBAGE
from .fault import Stage, replies, steps
from .reply import JSON, TURN, Ending, Reply, Steps, chunked, sized, unchunked, until_close

HINTS = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n"
SMUGGLED = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n{"sim":"smuggled"}'
"""A whole response that nobody asked for."""


# Framing.


@replies(Stage.FRAMING, "a stream with Content-Length instead of chunks")
def content_length(reply: Reply, _: int) -> None:
    reply.framing = sized


@replies(Stage.FRAMING, "a Content-Length that is BYTES more than the body, then closed", default=100, low=1)
def wrong_length(reply: Reply, arg: int) -> None:
    reply.framing = partial(sized, lie_bytes=arg)


@replies(Stage.FRAMING, "a Content-Length that is BYTES less than the body, then closed", default=100, low=1)
def short_length(reply: Reply, arg: int) -> None:
    reply.framing = partial(sized, lie_bytes=-arg)


@replies(Stage.FRAMING, "Content-Length and chunked at once")
def both_lengths(reply: Reply, _: int) -> None:
    reply.framing = chunked
    reply.headers.append((b"content-length", b"10"))


@replies(Stage.FRAMING, "a Transfer-Encoding that nobody knows before chunked")
def odd_transfer_encoding(reply: Reply, _: int) -> None:
    reply.framing = partial(chunked, coding=b"x-sim, chunked")


@replies(Stage.FRAMING, "Transfer-Encoding: chunked over a body that is not, then closed")
def not_chunked(reply: Reply, _: int) -> None:
    reply.framing = unchunked


@replies(Stage.FRAMING, "an HTTP/1.0 response that ends with the connection")
def close_delimited(reply: Reply, _: int) -> None:
    reply.framing = until_close


@replies(Stage.FRAMING, "chunk sizes in upper case and with leading zeros")
def upper_hex(reply: Reply, _: int) -> None:
    if reply.framing is chunked:
        reply.framing = partial(chunked, encode=_upper_chunk)


def _upper_chunk(body: bytes) -> bytes:
    return b"%04X\r\n%b\r\n" % (len(body), body)


@replies(Stage.FRAMING, "application/json on a stream")
def wrong_type(reply: Reply, _: int) -> None:
    reply.content_type = JSON


# The head and the bytes.


@steps("one byte per write, head included")
def one_byte(wire: Steps, _: int) -> Steps:
    for step in wire:
        if not isinstance(step, bytes):
            yield step
            continue
        for at in range(len(step)):
            yield step[at : at + 1]
            # Without a turn of the loop in between, the peer would read them all at once.
            yield TURN


@steps("no answer at all, the connection stays open")
def hang(_: Steps, __: int) -> Steps:
    yield Ending.STALL


@steps("the connection is reset (RST) when the request has arrived, without an answer")
def reset(_: Steps, __: int) -> Steps:
    yield Ending.RESET


@steps("the connection is closed (FIN) when the request has arrived, without an answer")
def close(_: Steps, __: int) -> Steps:
    yield Ending.CLOSE


@steps("random bytes instead of HTTP, then closed")
def garbage(_: Steps, __: int) -> Steps:
    yield GARBAGE
    yield Ending.CLOSE


@steps("half of the response's head, then closed")
def half_head(wire: Steps, _: int) -> Steps:
    for step in wire:
        if isinstance(step, bytes):
            yield step[: len(step) // 2]
            yield Ending.CLOSE
            return
        yield step


@steps("the response's head comes after MS milliseconds", default=1000)
def slow_headers(wire: Steps, arg: int) -> Steps:
    yield arg / 1000
    yield from wire


@steps("the response's head comes byte by byte, MS milliseconds after each (default: one a second)", default=1000)
def slow_head(wire: Steps, arg: int) -> Steps:
    for step in wire:
        if not isinstance(step, bytes):
            yield step
            continue
        for at in range(len(step)):
            yield step[at : at + 1]
            yield arg / 1000
        break
    yield from wire


@steps("102 and 103 responses before the head")
def early_hints(wire: Steps, _: int) -> Steps:
    yield HINTS
    yield from wire


# The connection afterwards.


@steps("another response's bytes behind the answer, on a connection that is kept alive")
def reuse_bytes(wire: Steps, _: int) -> Steps:
    for step in wire:
        if step is Ending.DONE:
            yield SMUGGLED
        yield step


@replies(Stage.WIRE, "the kept-alive connection is closed as the next request arrives")
def die_idle(reply: Reply, _: int) -> None:
    reply.dies_idle = True
