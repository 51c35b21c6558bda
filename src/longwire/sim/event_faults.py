"""Faults in what is said: the events, where they end, how they are written and cut.

What lives here: one small function per fault, entered into the table under its own name.
What must not: what is asked (ask_faults.py), framing and the wire (wire_faults.py).
"""

from __future__ import annotations

import random
import re
import zlib

from longwire.wire.sse import encode_comment, encode_event

from .answer import encode_json
from .fault import Stage, items, replies, writes
from .reply import TURN, Ending, Event, Items, Kind, Preempt, Reply

NO_UTF8 = b"\xff\xc3\x28\xed\xa0\x80"
"""A byte that never occurs, one that misses its second, and half a surrogate pair as three bytes."""
ROCKET = ("\N{ROCKET}".encode(), rb"\ud83d", rb"\ude80")
"""A code point of four bytes, and the two halves that JSON's escapes make of it."""
ENDLESS_PIECE = b"x" * 65_536
MIXED_ENDS = (b"\n", b"\r\n", b"\r", b"\r\n")
"""CR is never followed by LF alone: the two would be one line end where two are meant."""
GARBAGE = random.Random(7).randbytes(512)
"""No HTTP, no UTF-8, and the same each time."""


# Which events there are.


def _without(events: Items, kind: Kind) -> Items:
    return (item for item in events if not (isinstance(item, Event) and item.kind is kind))


@items(Stage.EVENTS, "the finish frame, then a clean end without the end marker")
def no_done(events: Items, _: int) -> Items:
    return _without(events, Kind.DONE)


@items(Stage.EVENTS, "the end marker without a finish_reason before it")
def no_finish(events: Items, _: int) -> Items:
    return _without(events, Kind.FINISH)


@items(Stage.EVENTS, "the end marker twice")
def two_done(events: Items, _: int) -> Items:
    for item in events:
        yield item
        if isinstance(item, Event) and item.kind is Kind.DONE:
            yield item


@items(Stage.EVENTS, "the first content event once more behind the end marker")
def after_done(events: Items, _: int) -> Items:
    content = None
    for item in events:
        if content is None and isinstance(item, Event) and item.kind is Kind.CONTENT:
            content = item
        yield item
    if content is not None:
        yield content


def _fails_after(events: Items, count: int, payload: object) -> Items:
    """``count`` events, then an error object in place of the rest."""
    for item in events:
        if isinstance(item, Event):
            if not count:
                break
            count -= 1
        yield item
    yield Event(Kind.CONTENT, encode_event(encode_json(payload)))


@items(Stage.EVENTS, 'an error object ({"error": …}) after N events, then a clean end; 0: as the first event')
def error_event(events: Items, arg: int) -> Items:
    error = {"message": "The stand-in failed as asked.", "type": "server_error", "param": None, "code": "sim_error"}
    return _fails_after(events, arg, {"error": error})


@items(Stage.EVENTS, 'an error object as older vLLM writes it ({"object": "error", …}) after N events, then [DONE]')
def vllm_error_event(events: Items, arg: int) -> Items:
    error = {
        "object": "error",
        "message": "EngineCore died.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    yield from _fails_after(events, arg, error)
    yield Event(Kind.DONE, encode_event(b"[DONE]"))


@items(Stage.EVENTS, "one extra event of BYTES bytes after the first event", default=None, low=256)
def big_event(events: Items, arg: int) -> Items:
    for item in events:
        yield item
        if isinstance(item, Event):
            yield Event(Kind.CONTENT, _padded(arg))
            break
    yield from events


def _padded(size: int) -> bytes:
    """A content event of exactly ``size`` bytes."""
    return _saying(b"x" * (size - len(_saying(b""))))


def _saying(inner: bytes) -> bytes:
    """A content event whose text is ``inner``, whatever it is."""
    delta = {"index": 0, "delta": {"content": ""}, "finish_reason": None}
    frame = encode_event(encode_json({"object": "chat.completion.chunk", "choices": [delta]}))
    head, content, tail = frame.partition(b'"content":"')
    return head + content + inner + tail


def _after_first_content(events: Items, *more: Event | Preempt) -> Items:
    """``more`` once, behind the first content event."""
    for item in events:
        yield item
        if isinstance(item, Event) and item.kind is Kind.CONTENT:
            yield from more
            break
    yield from events


@items(Stage.EVENTS, "an extra event whose text is no UTF-8, after the first content event")
def invalid_utf8(events: Items, _: int) -> Items:
    return _after_first_content(events, Event(Kind.CONTENT, _saying(NO_UTF8)))


@items(Stage.EVENTS, "an extra event with half a surrogate pair (escaped), after the first content event")
def lone_surrogate(events: Items, _: int) -> Items:
    return _after_first_content(events, Event(Kind.CONTENT, _saying(ROCKET[1])))


@items(Stage.EVENTS, "a surrogate pair (escaped) in two extra events, a half in each, after the first content event")
def split_surrogates(events: Items, _: int) -> Items:
    return _after_first_content(events, *(Event(Kind.CONTENT, _saying(half)) for half in ROCKET[1:]))


@items(Stage.EVENTS, "one code point's bytes in two extra events, after the first content event")
def torn_code_point(events: Items, _: int) -> Items:
    halves = ROCKET[0][:2], ROCKET[0][2:]
    return _after_first_content(events, *(Event(Kind.CONTENT, _saying(half)) for half in halves))


@items(
    Stage.EVENTS, "after the first token all answers of the server pause for MS milliseconds (preemption)", default=5000
)
def preempt(events: Items, arg: int) -> Items:
    return _after_first_content(events, Preempt(arg / 1000))


@items(Stage.EVENTS, "after the first event one that never ends, as fast as it is read")
def endless_event(events: Items, _: int) -> Items:
    for item in events:
        yield item
        if isinstance(item, Event):
            break
    yield Event(Kind.CONTENT, b'data: {"choices":[{"index":0,"delta":{"content":"')
    while True:
        yield Event(Kind.CONTENT, ENDLESS_PIECE)


@items(Stage.EVENTS, "comment lines (pings) between the events")
def comments(events: Items, _: int) -> Items:
    ping = Event(Kind.COMMENT, encode_comment(b"ping"))
    for item in events:
        if isinstance(item, Event):
            yield ping
        yield item


@items(Stage.EVENTS, "200 and the head of a stream, no event, a clean end")
def empty(_: Items, __: int) -> Items:
    return iter(())


# Where they end.


def _cut(events: Items, count: int, *end: bytes | Ending) -> Items:
    """Let ``count`` events pass, then end so."""
    for item in events:
        if isinstance(item, Event) and item.kind is not Kind.COMMENT:
            if not count:
                break
            count -= 1
        yield item
    yield from end


@items(Stage.END, "silence for ever after N events", default=None)
def stall_after(events: Items, arg: int) -> Items:
    return _cut(events, arg, Ending.STALL)


@items(Stage.END, "the head, then silence for ever")
def headers_then_stall(_: Items, __: int) -> Items:
    return iter([Ending.STALL])


@items(Stage.END, "the connection is reset (RST) after N events", default=None)
def reset_after(events: Items, arg: int) -> Items:
    return _cut(events, arg, Ending.RESET)


@items(Stage.END, "the connection is closed (FIN) after N events, without a terminator", default=None)
def close_after(events: Items, arg: int) -> Items:
    return _cut(events, arg, Ending.CLOSE)


@items(Stage.END, "only the sending side is closed (FIN) after N events; the connection stays", default=None)
def half_close_after(events: Items, arg: int) -> Items:
    return _cut(events, arg, Ending.HALF_CLOSE)


def _cut_inside(events: Items, count: int, end: Ending) -> Items:
    """Let ``count`` events pass and half of the next, then end so."""
    for item in events:
        if isinstance(item, Event) and item.kind is not Kind.COMMENT:
            if not count:
                yield Event(item.kind, item.block[: len(item.block) // 2])
                break
            count -= 1
        yield item
    yield end


@items(Stage.END, "silence for ever in the middle of the event after N events", default=None)
def stall_inside(events: Items, arg: int) -> Items:
    return _cut_inside(events, arg, Ending.STALL)


@items(Stage.END, "the connection is reset (RST) in the middle of the event after N events", default=None)
def reset_inside(events: Items, arg: int) -> Items:
    return _cut_inside(events, arg, Ending.RESET)


@items(Stage.END, "the connection is closed (FIN) in the middle of the event after N events", default=None)
def close_inside(events: Items, arg: int) -> Items:
    return _cut_inside(events, arg, Ending.CLOSE)


@items(Stage.END, "silence for ever where the last event (the end marker) should come")
def stall_last(events: Items, _: int) -> Items:
    for item in events:
        if isinstance(item, Event) and item.kind in (Kind.DONE, Kind.BODY):
            break
        yield item
    yield Ending.STALL


@items(Stage.END, "after the end marker neither the body's terminator nor a close; the connection stays open")
def stay_open(events: Items, _: int) -> Items:
    yield from events
    yield Ending.STALL


@items(Stage.END, "random bytes after N events, where the next HTTP chunk should be; then closed", default=None)
def garbage_after(events: Items, arg: int) -> Items:
    return _cut(events, arg, GARBAGE, Ending.CLOSE)


# How they are written.


@writes("lines end in CRLF")
def crlf(block: bytes, _: int, __: int) -> bytes:
    return block.replace(b"\n", b"\r\n")


@writes("lines end in CR")
def cr(block: bytes, _: int, __: int) -> bytes:
    return block.replace(b"\n", b"\r")


@writes("lines end in LF, CRLF and CR in turn, also within one event")
def mixed(block: bytes, number: int, _: int) -> bytes:
    lines = block.split(b"\n")[:-1]
    return b"".join(line + MIXED_ENDS[(number + at) % len(MIXED_ENDS)] for at, line in enumerate(lines))


@writes("a byte order mark before the first event")
def bom(block: bytes, number: int, _: int) -> bytes:
    return block if number else b"\xef\xbb\xbf" + block


@writes("an id: and a retry: line in each event")
def ids(block: bytes, number: int, _: int) -> bytes:
    return b"id: %d\nretry: 1000\n%b" % (number, block)


@writes("no space behind the colon (data:{)")
def no_space(block: bytes, _: int, __: int) -> bytes:
    return block.replace(b"data: ", b"data:", 1)


# How they are cut into pieces.


@items(Stage.PIECES, "K events in one HTTP chunk", default=None, low=1)
def many_per_chunk(events: Items, arg: int) -> Items:
    held: list[bytes] = []
    for item in events:
        if isinstance(item, Event):
            held.append(item.block)
        if len(held) == arg or (held and isinstance(item, (bytes, Ending))):
            yield Event(Kind.CONTENT, b"".join(held))
            held.clear()
        if not isinstance(item, Event):
            yield item
    if held:
        yield Event(Kind.CONTENT, b"".join(held))


@items(Stage.PIECES, "events cut over HTTP chunks of BYTES bytes", default=None, low=1)
def split_chunks(events: Items, arg: int) -> Items:
    for item in events:
        if not isinstance(item, Event):
            yield item
            continue
        for at in range(0, len(item.block), arg):
            yield Event(item.kind, item.block[at : at + arg])


@items(Stage.PIECES, "each event cut in the middle of its first character that is not ASCII, in two HTTP chunks")
def split_code_points(events: Items, _: int) -> Items:
    for item in events:
        wide = re.search(rb"[\x80-\xff]", item.block) if isinstance(item, Event) else None
        if wide is None or not isinstance(item, Event):
            yield item
            continue
        yield Event(item.kind, item.block[: wide.end()])
        # Without a turn of the loop in between, the peer would read both at once.
        yield TURN
        yield Event(item.kind, item.block[wide.end() :])


@replies(Stage.PIECES, "the body in gzip (flushed after each event), though identity was asked for")
def gzip(reply: Reply, _: int) -> None:
    reply.headers.append((b"content-encoding", b"gzip"))
    reply.items = _compress(reply.items)


def _compress(events: Items) -> Items:
    packer = zlib.compressobj(wbits=31)
    for item in events:
        if isinstance(item, Event):
            yield Event(item.kind, packer.compress(item.block) + packer.flush(zlib.Z_SYNC_FLUSH))
        else:
            yield item
        if isinstance(item, Ending):
            return
    yield Event(Kind.BODY, packer.flush())
