"""A client's connection that another process had, gone on with exactly.

What lives here: from a row, the kernel's counts and a stream to a connection in mid-request or mid-response. What must
not: reading counters (streams.counters), the order of an adoption (adopt.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from ..streams.arena import Use
from ..streams.chain import Chain
from ..streams.counters import Reading, bytes_read, bytes_written
from ..streams.doors import Door, LostEvents, encode
from ..streams.stream import Stream
from ..streams.subscriber import Subscriber
from ..streams.tables import COUNT_BITS, COUNT_MASK, ConnectionRow
from ..wire.http1 import Http1Error, RequestHead
from ..words.errors import LongwireError
from ..words.faultpoint import reach
from .connection import LINGER_S, ClientConnection
from .listener import Listener
from .preface import Preface
from .record import Answered, ConnectionRecord, Phase, address_of
from .writer import Writer

MAX_STEP_BYTES = 1 << 20
"""Entries whose length is only counted, at a time."""


class AdoptionError(Exception):
    """This connection cannot be gone on with exactly; it is cut, and its client can resume."""


class Checkpoint(NamedTuple):
    """Where a reader stood: its row's word; and of a stream that could not be taken over, how many of its entries are known."""

    word: int
    known_until: int | None = None


class Legacy(NamedTuple):
    """What is left of a connection: its ``row``, ``checkpoint``, ``reading`` (the kernel's counts), and ``stream`` (the row's,
    if it lives)."""

    row: ConnectionRow
    checkpoint: Checkpoint
    reading: Reading
    stream: Stream | None


@dataclass(slots=True)
class Attempt:
    """One try to take a row over: the how manieth it is in a row of processes that died of it."""

    count: int
    has_failed: bool = False


def _length(door: Door, stream: Stream, position: int, stop: int) -> int:
    """Bytes of a stretch of entries."""
    total = 0
    while position < stop:
        _, position, count = encode(door, stream.log, position, MAX_STEP_BYTES, stop - position)
        total += count
    return total


class AdoptedConnection(ClientConnection):
    """A :class:`ClientConnection` that begins in the middle. ``attempt`` counts in its row that this is tried."""

    __slots__ = ("_attempt", "_legacy", "_owes_request", "_unserved")

    def __init__(
        self, listener: Listener, index: int, legacy: Legacy, attempt: Callable[[], AbstractContextManager[Attempt]]
    ) -> None:
        super().__init__(listener, listener.handlers, index)
        self._attempt = attempt
        self._legacy = legacy
        self._owes_request = False
        self._unserved: bytes | None = None

    @property
    def is_made(self) -> bool:
        """Whether it has its transport, and will give its row back by itself."""
        return hasattr(self, "transport")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over here and nowhere later: the transport reads from now on, and what comes continues what lies in the arena.
        Until that is done the row stays what the other process has written: this one may be killed here, too."""
        self.transport = cast(asyncio.Transport, transport)
        self.peer = address_of(self.transport)
        self.transport.set_write_buffer_limits(high=self.listener.settings.write_high_water_bytes)
        self.record = ConnectionRecord(self.listener.table, self.listener.add(self, self._row))
        if self.phase == Phase.CLOSING:
            return
        with self._attempt() as attempt:
            reach("adopting_connection")
            self._take_over(*self._legacy)
        if attempt.has_failed:
            self.abort()
        del self._legacy, self._attempt

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._input is not None and self._input.is_full:
            self._guarded(self._input.extend)  # its process was killed between a block that is full and the next
        return super().get_buffer(sizehint)

    def go_on(self) -> None:
        """Every stream is taken over: look at what was asked. Until then requests wait (:meth:`_advance`): the stream that one
        of them has started may be among those that are still to come."""
        body, self._unserved = self._unserved, None
        if body is None:
            self.listener.turns.take(self, self._go_on)
        elif self.phase != Phase.CLOSING and not self.has_left:
            self.listener.turns.take(self, partial(self._guarded, partial(self._serve_again, body)))

    def _serve_again(self, body: bytes) -> None:
        """Ask anew who it is: of the first time nothing has come through.

        Raises:
            LongwireError: it may not come in any more.
        """
        assert self.head is not None
        self.pending = self.handlers.prepare(self.head, self)
        self._serve(body)

    def _advance(self) -> None:
        if not self.handlers.gateway.registry.is_incomplete:
            super()._advance()

    def response_done(self) -> None:
        if self._owes_request and self.phase != Phase.CLOSING:
            self._owes_request = False
            try:
                self._skip_request()
            except Http1Error:
                self.abort()
                return
        super().response_done()

    def _take_over(self, row: ConnectionRow, checkpoint: Checkpoint, reading: Reading, stream: Stream | None) -> None:
        """Go on exactly where another process stopped, over the same socket."""
        self.serial = row.serial
        self.deadline = 0.0  # that of a new connection; an answer has none
        if reading.was_shut:  # all was said, and only what the client may still send was waited for
            self._wait(Phase.CLOSING, LINGER_S)
            return
        read, written = bytes_read(reading), bytes_written(reading, connected=False)
        self.read_bytes, self.written_bytes, self.keep_alive = read, row.written_base, bool(row.keep_alive)
        if row.input_block:
            stored = (row.input_block, read - row.read_base)
            self._input = Chain(self.listener.arena, Use.INPUT, stored=stored)
            self._reader.receive_data(self._input.read(0, self._input.end))
        self.record.answered = Answered(
            row.stream, row.stream_id, row.door, row.start_position, row.written_base, row.answer_bytes, row.head
        )
        sent = max(0, written - row.written_base)
        body: bytes | None = None
        try:
            if not row.input_block and row.phase in (Phase.IDLE, Phase.HEAD) and read != row.read_base:
                raise AdoptionError("something was received that was not kept")
            if self.listener.settings.proxy_protocol and not read and self.peer in self.listener.trusted:
                self._preface = Preface()
            if row.phase == Phase.ANSWERING and (row.stream >= 0 or row.keep_alive):
                if stream is not None and row.head and row.door & Door.FRAMED:
                    self.phase, self._owes_request = Phase.ANSWERING, True  # nobody asks for it before the answer's end
                else:
                    body = self._read_answered_request()
            if stream is not None and stream.refusal is None and (row.head or row.phase == Phase.ANSWERING):
                self._take_over_response(row, checkpoint, sent, stream)
            elif self._is_to_serve_again(row, sent):
                self._unserved = body or b""
            else:
                self._take_over_whole(row, sent, stream)
        except (Http1Error, LongwireError, AdoptionError, LostEvents):
            self.abort()
        else:
            self.store_row()

    def _read_answered_request(self) -> bytes:
        """Consume the request that is being answered; the same bytes were good before, and whoever sent them was let in or has
        been refused: a key that is gone by now ends nothing that it has started. Returns its body.

        Raises:
            Http1Error: they are not what they were.
        """
        self.head, body = self._skip_request()
        self.pending = self.handlers.recall(self.head)
        self.phase = Phase.ANSWERING
        return body

    def _is_to_serve_again(self, row: ConnectionRow, sent: int) -> bool:
        """An answer that is too long for the row, and of which nothing was sent. To read again changes nothing."""
        is_lost = row.stream < 0 and not sent and len(row.head) != row.answer_bytes
        return is_lost and self.pending is not None and self.pending.head.method in ("GET", "HEAD")

    def _skip_request(self) -> tuple[RequestHead, bytes]:
        """Let the reader read what has been answered, so that it stands behind it; the request's head and body.

        Raises:
            Http1Error: the bytes are not what they were.
        """
        head = self._reader.next_event()
        assert isinstance(head, RequestHead), "a request that is being answered has arrived whole"
        body = self._reader.next_event()
        assert isinstance(body, bytes), "and it was parsed before"
        self.speaks_1_1 = head.minor == 1
        return head, body

    def _take_over_response(self, row: ConnectionRow, checkpoint: Checkpoint, sent: int, stream: Stream) -> None:
        """Regenerate the response from the last point known to be in the kernel, and send what lies beyond what it has."""
        if not row.head:
            if sent or self.pending is None:
                raise AdoptionError("the response head was not stored")
            self.extra_headers = self.handlers.greet_again(self.pending, stream)
            self.attach(stream, Door(row.door), row.start_position)
            return
        offset, position = checkpoint.word >> COUNT_BITS, checkpoint.word & COUNT_MASK
        if not offset:
            position = row.start_position
        if checkpoint.known_until is not None:
            known = (offset or len(row.head)) + _length(Door(row.door), stream, position, checkpoint.known_until)
            if sent > known:
                raise AdoptionError("the client has more of the stream than is known of it")
        route = self.pending.route if self.pending is not None else "other"
        writer = Writer(self, route, [])
        writer.take_over(offset, sent - offset)
        subscriber = Subscriber(stream, writer, Door(row.door), position)
        writer.subscriber = subscriber
        self.writer = writer
        self.phase = Phase.ANSWERING
        self.speaks_1_1 = bool(row.door & Door.FRAMED) or self.speaks_1_1
        if not offset:
            writer.send([row.head], len(row.head))
        subscriber.take_over()
        stream.attach(subscriber)

    def _take_over_whole(self, row: ConnectionRow, sent: int, refused: Stream | None) -> None:
        """Send the end of a response that reads no stream, then go on with the requests.

        Raises:
            AdoptionError: the response was not stored whole, or its stream is gone.
        """
        is_whole = row.stream < 0 or refused is not None
        if not is_whole and row.phase == Phase.ANSWERING:
            raise AdoptionError("the stream that was being read is gone")
        missing = row.answer_bytes - sent if is_whole else 0
        if missing > 0:
            if len(row.head) != row.answer_bytes:
                raise AdoptionError("the response was not stored whole")
            self.transport.write(row.head[-missing:])
        self.written_bytes = row.written_base + sent + max(missing, 0)
        if not self.keep_alive and row.phase != Phase.BODY:
            self._close_gently()
        elif self.phase == Phase.ANSWERING:
            self.response_done()
        else:
            is_idle, settings = self._reader.is_between_requests, self.listener.settings
            self._wait(
                Phase.IDLE if is_idle else Phase.HEAD, settings.keep_alive_s if is_idle else settings.head_timeout_s
            )
