"""What the soak asks for, and whether an event is to the byte what the engine stand-in sent.

What lives here: the two requests of a long stream, and the comparison.
What must not: sockets and clocks.
"""

from __future__ import annotations

import re

from event import MODEL, TEMPLATE

GRACE_S = 60
_DATA = b"data: " + TEMPLATE.partition(b"data: ")[2].removesuffix(b"\r\n")
_JSON = _DATA.removeprefix(b"data: ").removesuffix(b"\n\n")
_ID_LINE = re.compile(rb"id: \d+-(\d+)\n")
_STREAM_ID = re.compile(rb"x-stream-id: (lw_[0-9a-f]{34})", re.IGNORECASE)


def post(port: int, tokens: int, *, is_cut: bool) -> bytes:
    """The request for a stream of so many events; one that will be cut asks to be kept meanwhile."""
    body = b'{"model":"%s","messages":[{"role":"user","content":"count"}],"stream":true,"max_tokens":%d}' % (
        MODEL.encode(),
        tokens,
    )
    grace = b"longwire-on-disconnect: grace=%d\r\n" % GRACE_S if is_cut else b""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        b"accept: text/event-stream\r\ncontent-length: %d\r\n%s\r\n%s" % (port, len(body), grace, body)
    )


def rest(port: int, stream_id: bytes, last: int) -> bytes:
    """The request for what came after an event."""
    return (
        b"GET /v1/streams/%s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: text/event-stream\r\n"
        b"last-event-id: %d\r\n\r\n" % (stream_id, port, last)
    )


def stream_id(head: bytes) -> bytes:
    """From a response's head; empty where there is none."""
    found = _STREAM_ID.search(head)
    return found[1] if found else b""


def is_exact(data: bytes, number: int, sent_ns: int) -> bool:
    """One event, as its whole HTTP chunk (whose size is checked already) or as its data alone, and nothing beside it."""
    if data.startswith(b"{"):
        return data == _JSON % (number, sent_ns)
    block = data.partition(b"\r\n")[2]
    if found := _ID_LINE.match(block):
        if int(found[1]) != number:
            return False
        block = block[found.end() :]
    return block == _DATA % (number, sent_ns) + b"\r\n"
