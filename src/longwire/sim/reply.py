"""One response on its way out: events, how they are framed, and how it ends.

What lives here: the vocabulary of replies and the three framings of a body.
What must not: sockets, what an event says (chat.py, typed.py), what can go wrong (faults.py).

A reply is a chain of generators: events with pauses between them, a framing that turns them into wire bytes, and whatever a
fault puts around that. The connection pulls one step after the other; so a stream is no task, and stopping it is to drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from longwire.wire.chunked import LAST_CHUNK, encode_chunk
from longwire.wire.http1 import Headers, encode_response_head

from .answer import encode_json


class Kind(Enum):
    """What an event is in its answer; faults pick their victims by it."""

    OPEN = "open"
    CONTENT = "content"
    FINISH = "finish"
    USAGE = "usage"
    DONE = "done"
    COMMENT = "comment"
    BODY = "body"
    """The whole body of an answer that is no stream."""


class Ending(Enum):
    """The last step of a reply."""

    DONE = "done"
    """Complete; the connection serves the next request if it may."""
    CLOSE = "close"
    """FIN, once everything is sent."""
    RESET = "reset"
    """RST, once everything is sent."""
    STALL = "stall"
    """Nothing more, ever; the connection stays open."""
    HALF_CLOSE = "half_close"
    """FIN, once everything is sent, and the other direction stays open until the client closes it."""


class Event(NamedTuple):
    """One event as its bytes in the body."""

    kind: Kind
    block: bytes


class Queue(NamedTuple):
    """The order to wait until there is a place in the batch."""


class Preempt(NamedTuple):
    """The order to let all answers of the server pause."""

    pause_s: float


Order = Queue | Preempt
"""What a reply has done by the server; rare, and no framing touches it."""
Item = Event | bytes | float | Order | Ending
"""A step before framing: an event, raw bytes that no framing touches, a pause in seconds, an order, or the end."""
Step = bytes | float | Order | Ending
"""A step after framing: bytes for one write, a pause in seconds, an order, or the end."""
TURN = -1.0
"""The pause that ends with the loop's next turn; one of 0 is none at all."""
Items = Iterator[Item]
Steps = Iterator[Step]

MAX_SIZED_BYTES = 256 * 1024 * 1024
"""Where the gathering of a body stops: one that never ends has no length."""
UNSENT_BYTES = 4096
"""What a Content-Length promises beyond what is sent, where a fault cuts the body: the rest of an answer."""

EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON = b"application/json"


# Framings: from items to steps, head first.


def chunked(reply: Reply, encode: Callable[[bytes], bytes] = encode_chunk, coding: bytes = b"chunked") -> Steps:
    """Each event in its own HTTP chunk."""
    yield reply.encode_head((b"transfer-encoding", coding))
    for item in reply.items:
        if type(item) is Event:
            yield encode(item.block)
            continue
        assert not isinstance(item, Event)
        yield item
        if type(item) is Ending:
            return
    yield LAST_CHUNK
    yield reply.last


def sized(reply: Reply, lie_bytes: int = 0) -> Steps:
    """Delimited by Content-Length, which takes knowing the whole body first. ``lie_bytes`` is added to what is promised."""
    items: list[Item] = []
    length = lie_bytes
    for item in reply.items:
        items.append(item)
        if isinstance(item, Event):
            length += len(item.block)
        if isinstance(item, Ending) or length > MAX_SIZED_BYTES:
            length += UNSENT_BYTES
            break
    # What is waited for before the body's first byte is waited for before the head, as servers of whole answers do.
    while items and isinstance(items[0], (float, Queue)):
        item = items.pop(0)
        yield item  # type: ignore[misc]  # mypy does not narrow an element
        reply.pauses_over += type(item) is float
    yield reply.encode_head((b"content-length", b"%d" % max(0, length)))
    yield from _unframed(iter(items))
    yield Ending.CLOSE if lie_bytes else reply.last


def until_close(reply: Reply) -> Steps:
    """Delimited by the end of the connection, as HTTP/1.0 does."""
    reply.keeps_alive = False
    yield reply.encode_head().replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    yield from _unframed(reply.items)
    yield Ending.CLOSE


def unchunked(reply: Reply) -> Steps:
    """Said to be chunked, and is not."""
    reply.keeps_alive = False
    yield reply.encode_head((b"transfer-encoding", b"chunked"))
    yield from _unframed(reply.items)
    yield Ending.CLOSE


def _unframed(items: Items) -> Steps:
    for item in items:
        yield item.block if isinstance(item, Event) else item
        if type(item) is Ending:
            return


def _none_generated(_: Reply) -> int:
    return 0


@dataclass(slots=True, eq=False)
class Reply:
    """A response that can still be changed."""

    items: Items
    status: int = 200
    content_type: bytes = JSON
    headers: Headers = field(default_factory=list)
    framing: Callable[[Reply], Steps] = sized
    around: list[Callable[[Steps], Steps]] = field(default_factory=list)
    """What is done to the wire bytes, head included; the first is the innermost."""
    keeps_alive: bool = True
    generates: bool = False
    """It is an engine's work, and counted while it lasts."""
    prompt_tokens: int = 0
    answer_tokens: int = 0
    progress: Callable[[Reply], int] = _none_generated
    """How many of them there are so far. It is given the reply, and does not hold it: that would be a cycle."""
    pauses_over: int = 0
    """Pauses before the head that have passed: from them the progress of a whole answer is known."""
    dies_idle: bool = False
    """Afterwards the connection is kept, and closed when the next request comes."""

    def steps(self) -> Steps:
        """The reply as steps; to be asked for once, when nothing is changed any more."""
        wire = self.framing(self)
        for wrap in self.around:
            wire = wrap(wire)
        return wire

    def generated(self) -> int:
        """How many of the answer's tokens there are so far."""
        return self.progress(self)

    def encode_head(self, *framing: tuple[bytes, bytes]) -> bytes:
        """The response head; ``framing`` are the fields that say where the body ends."""
        headers = [(b"server", b"longwire-sim"), (b"content-type", self.content_type), *framing, *self.headers]
        if not self.keeps_alive:
            headers.append((b"connection", b"close"))
        return encode_response_head(self.status, headers)

    @property
    def last(self) -> Ending:
        """How a complete reply ends."""
        return Ending.DONE if self.keeps_alive else Ending.CLOSE


class InsteadError(Exception):
    """Raised while a request is read: this answer is to be given instead of the generation's."""

    def __init__(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers: Headers = []

    def reply(self) -> Reply:
        """The answer."""
        return Reply(iter([Event(Kind.BODY, self.body)]), self.status, self.content_type, list(self.headers))


def refusal(status: int, message: str, param: str | None = None, code: str | None = None) -> InsteadError:
    """An error in the OpenAI shape."""
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return InsteadError(
        status, encode_json({"error": {"message": message, "type": kind, "param": param, "code": code}})
    )
