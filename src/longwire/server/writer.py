"""One response on a client's connection: the outlet that a subscriber writes into.

What lives here: sending the head when the stream is known, the end, and the account of bytes that an adopter needs.
What must not: reading requests (connection.py), which entries are sent (streams).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..streams.doors import Buffers, Door
from ..streams.stream import Kind, Stream
from ..streams.subscriber import Subscriber
from ..streams.tables import COUNT_BITS
from ..wire.http1 import Headers, encode_response_head
from ..words.faultpoint import reach
from ..words.reasons import CloseReason
from .respond import EVENT_STREAM, NO_BUFFERING, headers_from_engine, stream_headers, whole_response

if TYPE_CHECKING:
    from .connection import ClientConnection


class Writer:
    """Writes one stream's response. Its connection makes it, tells it of pauses, and forgets it when it is done."""

    __slots__ = (
        "_connection",
        "_head",
        "_skip_bytes",
        "_transport",
        "_word",
        "_words",
        "extra_headers",
        "route",
        "sent_bytes",
        "subscriber",
    )

    def __init__(self, connection: ClientConnection, route: str, extra_headers: Headers) -> None:
        self._connection = connection
        self._transport: asyncio.Transport = connection.transport
        self._words = connection.record.words
        self._word = connection.record.word
        self.sent_bytes = 0
        self._head = b""
        """The response head, until something goes out with it: two writes are two system calls and two segments."""
        self._skip_bytes = 0
        self.route = route
        self.extra_headers = extra_headers
        self.subscriber: Subscriber | None = None

    def __repr__(self) -> str:
        return f"<Writer of {self.subscriber!r}>"

    def begin(self, stream: Stream) -> bool:
        """Send the head; for a stream that never had content, the whole error response."""
        connection = self._connection
        if stream.refusal is not None:
            refusal = stream.refusal
            headers = [
                (b"content-type", refusal.content_type),
                *headers_from_engine(refusal.headers, self.extra_headers),
                *self._identity(stream),
            ]
            connection.listener.instruments.count_request(self.route, refusal.status)
            self._send_head(whole_response(refusal.status, [*headers], refusal.body))
            self.flush()
            connection.response_done()
            return False
        if stream.kind is Kind.BODY:
            self._begin_body(stream)
        else:
            connection.listener.instruments.count_request(self.route, 200)
            headers = [(b"content-type", EVENT_STREAM), *NO_BUFFERING, *self._identity(stream), *self._framing(None)]
            self._send_head(encode_response_head(200, headers))
        return True

    def _begin_body(self, stream: Stream) -> None:
        head = stream.body_head
        subscriber = self.subscriber
        assert head is not None and subscriber is not None
        subscriber.door = (
            Door.BARE if head.content_length is not None or not self._connection.speaks_1_1 else Door.FRAMED
        )
        framing = self._framing(head.content_length) if head.status != 204 else []  # RFC 9110 8.6: a 204 has no length
        headers = [*headers_from_engine(head.headers, self.extra_headers), *self._identity(stream), *framing]
        self._connection.listener.instruments.count_request(self.route, head.status)
        self._send_head(encode_response_head(head.status, headers))

    def _identity(self, stream: Stream) -> Headers:
        return [*stream_headers(stream.public_id), *self.extra_headers]

    def _framing(self, content_length: int | None) -> Headers:
        """How the client finds the end of the body (RFC 9112 6.3)."""
        if content_length is not None:
            return [(b"content-length", b"%d" % content_length)]
        if self._connection.speaks_1_1:
            return [(b"transfer-encoding", b"chunked")]
        self._connection.keep_alive = False
        return []

    def take_over(self, offset: int, skip: int) -> None:
        """Begin at ``offset`` of the response; of what is sent from there, the kernel has the first ``skip`` bytes already."""
        self.sent_bytes = offset
        self._skip_bytes = skip

    def _send_head(self, head: bytes) -> None:
        assert self.subscriber is not None
        self._connection.record.note_head(head, self.subscriber.door)
        self._connection.store_row()
        self._head = head

    def flush(self) -> None:
        """Send the head now, where nothing follows it for the time being."""
        if self._head:
            self.send([], 0)

    def splice(self) -> Callable[[bytes], None] | None:
        """The transport's write: frames that an engine's connection gives to it need no word from here."""
        return None if self._skip_bytes else self._transport.write

    def spliced(self, size: int, position: int) -> None:
        """So many bytes went that way."""
        self.sent_bytes += size
        self.checkpoint(position)

    def send(self, buffers: Buffers, count: int) -> None:
        """Hand buffers to the transport, which writes them in one system call, and keeps views of what is left."""
        head, self._head = self._head, b""
        if head:
            buffers, count = [head, *buffers], count + len(head)
        self.sent_bytes += count
        if self._skip_bytes:
            buffers = self._without_skipped(buffers)
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        elif buffers:
            self._transport.writelines(buffers)
        if head:
            reach("head_written")

    def _without_skipped(self, buffers: Buffers) -> Buffers:
        left: Buffers = []
        for buffer in buffers:
            skipped = min(self._skip_bytes, len(buffer))
            self._skip_bytes -= skipped
            if skipped < len(buffer):
                left.append(memoryview(buffer)[skipped:])
        return left

    def checkpoint(self, position: int) -> None:
        """Note ``position`` in the row if all that was written before it has reached the kernel (design: adoption)."""
        if not (self._head or self._transport.get_write_buffer_size()):
            self._words[self._word] = self.sent_bytes << COUNT_BITS | position

    def finish(self, reason: CloseReason) -> None:
        """The whole body was sent."""
        self._connection.reader_ended(reason)
        self._connection.response_done()

    def cut(self, reason: CloseReason) -> None:
        """Break the connection: the client must see that the body is not whole."""
        self._connection.cut(reason)

    def call_soon(self, call: Callable[[], None]) -> None:
        self._connection.loop.call_soon(call)
