"""One client's connection, as an asyncio protocol.

What lives here: receiving into the arena, the cycle of requests, deadlines, pauses, and the end.
What must not: what a request means (handlers.py), how a response is written (writer.py), HTTP syntax (wire).

What a client sends is received into blocks of the arena and stays there until it is answered, so that another process can take the
connection over in mid-request. An idle connection has no block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, NamedTuple, cast

from ..streams.arena import ArenaFull, Chain, Use
from ..streams.doors import Door
from ..streams.stream import State, Stream
from ..streams.subscriber import Subscriber
from ..streams.tables import COUNT_BITS, COUNT_MASK, MAX_STORED_HEAD_BYTES, ConnectionRow, pack_connection
from ..wire.http1 import CONTINUE, NEED_DATA, PAUSED, Headers, Http1Error, RequestHead, RequestReader
from ..words.errors import (
    BadHttp,
    BodyTooLarge,
    HeadersTooLarge,
    LongwireError,
    Overloaded,
    RemoteError,
    RequestTimeout,
)
from ..words.reasons import CloseReason
from .respond import error_parts, whole_response
from .writer import Writer

if TYPE_CHECKING:
    from .handlers import Handlers, Pending
    from .listener import Listener

MAX_PIPELINED_BYTES = 16 * 1024
"""What a client may send ahead while it is being answered; beyond it we stop reading until the answer is out."""

LINGER_S = 2.0
"""How long a refused client may go on sending before its connection is cut: closing at once would reset it before it had read why."""

_SCRATCH = memoryview(bytearray(16 * 1024))
_ERRORS: dict[int, type[RemoteError]] = {413: BodyTooLarge, 431: HeadersTooLarge}


class AdoptionError(Exception):
    """This connection cannot be gone on with exactly; it is cut, and its client can resume."""


class Phase:
    """What the connection waits for; stored in its row."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWERING = 3
    CLOSING = 4


class Answered(NamedTuple):
    """The current or last response, as far as an adopter must know it; the fields are those of :class:`ConnectionRow`."""

    stream: int = -1
    stream_id: bytes = bytes(16)
    door: int = 0
    start_position: int = 0
    written_base: int = 0
    answer_bytes: int = 0
    head: bytes = b""


class ClientConnection(asyncio.BufferedProtocol):
    """Reads requests one after the other and has each answered before the next is looked at."""

    __slots__ = (
        "_answered", "_flushing", "_input", "_is_reading_paused", "_reader", "_row", "_stuck_bytes", "_task", "_view", "deadline",
        "handlers", "head", "keep_alive", "listener", "loop", "pending", "phase", "read_bytes", "speaks_1_1", "stuck_since",
        "surplus", "transport", "word", "words", "writer", "written_bytes",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, listener: Listener, handlers: Handlers, row: int | None = None) -> None:
        settings = listener.settings
        self.listener = listener
        self.handlers = handlers
        self.loop = listener.loop
        self.words = listener.table.words
        self.word = 0
        self.phase = Phase.IDLE
        self.deadline = 0.0
        self.head: RequestHead | None = None
        self.pending: Pending | None = None
        self.keep_alive = True
        self.speaks_1_1 = True
        self.surplus = False
        self.read_bytes = 0
        self.written_bytes = 0
        self.writer: Writer | None = None
        self.stuck_since = 0.0
        self._stuck_bytes = 0
        self._reader = RequestReader(settings.max_head_bytes, settings.max_body_bytes)
        self._input: Chain | None = None
        self._view = _SCRATCH
        self._row = row
        self._task: asyncio.Task[None] | None = None
        self._flushing: list[tuple[int, Subscriber]] = []
        self._is_reading_paused = False
        self._answered = Answered()

    def __repr__(self) -> str:
        return f"<ClientConnection phase {self.phase}, {self.read_bytes} read, {self.written_bytes} written, {self.writer!r}>"

    # Receiving.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's class
        self.transport.set_write_buffer_limits(high=self.listener.settings.write_high_water_bytes)
        self._row = self.listener.add(self, self._row)
        if self._row is not None:
            self.word = self.listener.table.word_index(self._row)
        self._wait(Phase.IDLE, self.listener.settings.head_timeout_s)

    def get_buffer(self, sizehint: int) -> memoryview:
        chain = self._input
        if chain is None and self.phase != Phase.CLOSING:
            try:
                chain = self._input = Chain(self.listener.arena, Use.INPUT)
            except ArenaFull:
                chain = None
        self._view = _SCRATCH if chain is None or self.phase == Phase.CLOSING else chain.tail()
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.read_bytes += nbytes
        if self.phase == Phase.CLOSING:
            return
        if self._view is _SCRATCH:
            self.refuse(Overloaded("The gateway has no memory to read another request.", retry_after_s=2), close=True)
            return
        chain = self._input
        assert chain is not None
        data = self._view[:nbytes]
        try:
            chain.filled(nbytes)
            if self.phase == Phase.IDLE:
                self._wait(Phase.HEAD, self.listener.settings.head_timeout_s)
            self._reader.receive_data(data)
            self._advance()
        except ArenaFull:
            self.refuse(Overloaded("The gateway has no memory to read another request.", retry_after_s=2), close=True)
        except Http1Error as exc:
            self.refuse(_ERRORS.get(exc.status, BadHttp)(exc.why), close=True, status=exc.status)

    def _advance(self) -> None:
        """Act on what the reader has, until it needs more or a response is under way.

        Raises:
            Http1Error: the client's bytes are not acceptable.
        """
        while self.phase < Phase.ANSWERING:
            event = self._reader.next_event()
            if isinstance(event, RequestHead):
                self._take_head(event)
            elif isinstance(event, bytes):
                self._serve(event)
            else:
                assert event is NEED_DATA, "a reader that is paused has a response under way"
                return
        if self.phase == Phase.ANSWERING and self._reader.buffered_bytes > MAX_PIPELINED_BYTES:
            self._is_reading_paused = True
            self.transport.pause_reading()

    def _take_head(self, head: RequestHead) -> None:
        """Decide on the head alone whatever can be: identity, route and size come before the body (Open WebUI CVE-2024-12537)."""
        self.head = head
        self.keep_alive = head.keep_alive and not self.surplus
        self.speaks_1_1 = head.minor == 1
        has_body = head.chunked or head.content_length > 0
        try:
            self.pending = self.handlers.prepare(head, self)
        except LongwireError as exc:
            self.refuse(exc, close=has_body)
            return
        if has_body:
            self._wait(Phase.BODY, self.listener.settings.body_timeout_s)
            if head.expects_continue:
                self.write(CONTINUE)

    def _serve(self, body: bytes) -> None:
        self.phase = Phase.ANSWERING
        self.deadline = 0.0
        assert self.pending is not None
        try:
            self.handlers.serve(self.pending, body, self)
        except LongwireError as exc:
            self.refuse(exc)

    # Answering.

    def write(self, data: bytes) -> None:
        """Send bytes that belong to no stream."""
        self.written_bytes += len(data)
        self.transport.write(data)

    def respond(self, status: int, headers: Headers, body: bytes, route: str | None = None) -> None:
        """A whole response; the next request follows."""
        head = self.head
        pending = self.pending
        self.phase = max(self.phase, Phase.ANSWERING)
        extra = pending.headers if pending is not None else []
        self.count_response(route or (pending.route if pending is not None else "other"), status)
        send_body = head is None or head.method != "HEAD"
        answer = whole_response(status, [*headers, *extra, *self.connection_header()], body, send_body=send_body)
        self._note_answer(answer)
        self.write(answer)
        self.response_done()

    def _note_answer(self, answer: bytes) -> None:
        """A whole response that reads no stream is stored itself, if it is short enough: an adopter may have to send its end."""
        kept = answer if len(answer) <= MAX_STORED_HEAD_BYTES else b""
        self._answered = Answered(written_base=self.written_bytes, answer_bytes=len(answer), head=kept)

    def refuse(self, error: LongwireError, *, close: bool = False, status: int = 0) -> None:
        """Answer with an error. ``close``: what follows on this connection cannot be trusted or is not wanted."""
        if close:
            self.keep_alive = False
        code, headers, body = error_parts(error)
        self.respond(status or code, headers, body)

    def attach(self, stream: Stream, door: Door, position: int) -> None:
        """Let the client read a stream from an index position on."""
        assert self.pending is not None
        writer = Writer(self, self.pending.route, [*self.pending.headers, *self.connection_header()])
        subscriber = Subscriber(stream, writer, door, position)
        writer.subscriber = subscriber
        self.writer = writer
        self.words[self.word] = 0
        self._answered = Answered(stream.row, stream.id, door, position, self.written_bytes)
        stream.attach(subscriber)
        if stream.state is State.OPENING:
            self.store_row()  # otherwise the head has been sent, and the row stored with it

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do something that takes time before the response can begin; cancelled if the client leaves."""
        self._task = self.loop.create_task(work)

    def connection_header(self) -> Headers:
        """``Connection: close`` where this response is the last."""
        return [] if self.keep_alive else [(b"connection", b"close")]

    def count_response(self, route: str, status: int) -> None:
        self.listener.instruments.count_request(route, status)

    def reader_ended(self, reason: CloseReason) -> None:
        self.listener.instruments.readers_ended[reason] += 1

    def response_done(self) -> None:
        """The response is complete: go on to the next request, or close."""
        if self.phase == Phase.CLOSING:
            return
        self._let_go_of_writer()
        self.head = None
        self.pending = None
        self._task = None
        if not self.keep_alive:
            self._close_gently()
            return
        self._reader.start_next_cycle()
        self._renew_input()
        is_idle = self._reader.is_between_requests
        settings = self.listener.settings
        self._wait(Phase.IDLE if is_idle else Phase.HEAD, settings.keep_alive_s if is_idle else settings.head_timeout_s)
        self.store_row()
        if self._is_reading_paused:
            self._is_reading_paused = False
            self.transport.resume_reading()
        if not is_idle:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Look at a pipelined request: in the loop's next turn, so that a thousand of them do not recurse."""
        try:
            if self.phase < Phase.ANSWERING:
                self._advance()
        except Http1Error as exc:
            self.refuse(_ERRORS.get(exc.status, BadHttp)(exc.why), close=True, status=exc.status)

    def _renew_input(self) -> None:
        """Answered bytes leave the arena; what was pipelined behind them begins a chain of its own."""
        chain, self._input = self._input, None
        if chain is None:
            return
        left = self._reader.buffered_bytes
        if left:
            try:
                self._input = Chain(self.listener.arena, Use.INPUT)
                self._input.append(chain.read(chain.end - left, left))
            except ArenaFull:
                self.keep_alive = False
        chain.give()

    # Flow control.

    def pause_writing(self) -> None:
        if self.writer is not None and self.writer.subscriber is not None:
            self.writer.subscriber.pause()
            self.stuck_since = self.listener.clock.now()
            self._stuck_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self.stuck_since = 0.0
        if self.writer is not None and self.writer.subscriber is not None:
            self.writer.subscriber.resume()

    def _let_go_of_writer(self) -> None:
        """The response has been given to the transport: keep its log until the kernel has it."""
        writer, self.writer = self.writer, None
        if writer is not None and writer.subscriber is not None:
            self.written_bytes += writer.sent_bytes
            self.listener.instruments.body_bytes_total += writer.sent_bytes
            writer.subscriber.detach()
            self._flushing.append((self.written_bytes, writer.subscriber))
            self.loop.call_soon(self.check_flushed)

    def check_flushed(self) -> None:
        """Drop the holds of readers whose last byte has reached the kernel."""
        while self._flushing:
            mark, subscriber = self._flushing[0]
            if self.written_bytes - self.transport.get_write_buffer_size() < mark:
                return
            subscriber.flushed()
            del self._flushing[0]

    # Time.

    def _wait(self, phase: int, seconds: float) -> None:
        self.phase = phase
        self.deadline = self.listener.clock.now() + seconds

    def tick(self, now: float) -> None:
        """Called about once a second: deadlines are by wall clock, so a byte now and then does not extend them."""
        if self._flushing:
            self.check_flushed()
        if self.stuck_since:
            self._check_stuck(now)
        if self.deadline and now > self.deadline:
            if self.phase in (Phase.IDLE, Phase.CLOSING):
                self.abort()
            else:
                what = "request head" if self.phase == Phase.HEAD else "request body"
                self.refuse(RequestTimeout(f"The {what} did not arrive in time."), close=True)

    def _check_stuck(self, now: float) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._stuck_bytes:
            self._stuck_bytes = unsent
            self.stuck_since = now
        elif now - self.stuck_since > self.listener.settings.slow_reader_s:
            self.reader_ended(CloseReason.SLOW_READER)
            self.abort()

    # The end.

    def _close_gently(self) -> None:
        """Send what is written, then close. The client may still be sending: what it sends is read and dropped for a while, because a
        reset would destroy the answer before it is read (RFC 9112 9.6)."""
        self._wait(Phase.CLOSING, LINGER_S)
        if self._is_reading_paused:
            self.transport.resume_reading()
        if self._reader.is_between_requests and self._reader.next_event() in (NEED_DATA, PAUSED):
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()

    def abort(self) -> None:
        """Close now; what was not sent is dropped."""
        self.phase = Phase.CLOSING
        self.transport.abort()

    def eof_received(self) -> bool:
        """A FIN counts as leaving: nobody who still wants an answer half-closes here (and engines must hear of it)."""
        self._leave(CloseReason.CLIENT_LEFT)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(CloseReason.CLIENT_LEFT)
        self.phase = Phase.CLOSING
        for _, subscriber in self._flushing:
            subscriber.flushed()
        self._flushing.clear()
        if self._input is not None:
            self._input.give()
            self._input = None
        self.listener.remove(self, self._row)
        self._row = None

    def _leave(self, reason: CloseReason) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.writer is not None:
            self.reader_ended(reason)
        self._let_go_of_writer()

    # The row.

    def store_head(self, head: bytes, door: Door) -> None:
        """Keep the response head as sent: an adopter must send the very same bytes."""
        kept = head if len(head) <= MAX_STORED_HEAD_BYTES else b""
        self._answered = self._answered._replace(head=kept, answer_bytes=len(head), door=door)
        self.store_row()

    def store_row(self) -> None:
        """Write what a process would need to take this connection over: once per change of phase, never per event."""
        if self._row is None:
            return
        chain = self._input
        answered = self._answered
        row = ConnectionRow(
            fd=self.listener.fd_of(self.transport),
            phase=self.phase,
            stream=answered.stream,
            stream_id=answered.stream_id,
            door=answered.door,
            start_position=answered.start_position,
            written_base=answered.written_base,
            answer_bytes=answered.answer_bytes,
            read_base=self.read_bytes - (chain.end if chain is not None else 0),
            input_block=chain.first if chain is not None else 0,
            keep_alive=int(self.keep_alive),
            eof=0,
            head=answered.head,
        )
        self.listener.table.write(self._row, pack_connection(row))

    # Taking over.

    def take_over(self, row: ConnectionRow, checkpoint: int, read: int, written: int, stream: Stream | None) -> None:
        """Go on exactly where another process stopped, over the same socket. ``connection_made`` has been called.

        ``checkpoint`` is the reader's word, ``read`` and ``written`` are the kernel's counts, ``stream`` is the row's if it lives.
        """
        self.read_bytes, self.written_bytes, self.keep_alive = read, row.written_base, bool(row.keep_alive)
        if row.input_block:
            stored = (row.input_block, read - row.read_base)
            self._input = Chain(self.listener.arena, Use.INPUT, stored=stored)
            self._reader.receive_data(self._input.read(0, self._input.end))
        self._answered = Answered(
            row.stream, row.stream_id, row.door, row.start_position, row.written_base, row.answer_bytes, row.head
        )
        sent = written - row.written_base
        try:
            if row.phase == Phase.ANSWERING:
                self._read_answered_request()
            if stream is not None and (row.head or row.phase == Phase.ANSWERING):
                self._take_over_response(row, checkpoint, sent, stream)
            else:
                self._take_over_whole(row, sent)
        except (Http1Error, LongwireError, AdoptionError):
            self.abort()
        else:
            self.store_row()

    def _read_answered_request(self) -> None:
        """Consume the request that is being answered; the same bytes were good before.

        Raises:
            Http1Error: they are not what they were.
        """
        head = self._reader.next_event()
        assert isinstance(head, RequestHead), "a request that is being answered has arrived whole"
        self.head, self.speaks_1_1 = head, head.minor == 1
        self.pending = self.handlers.prepare(head, self)
        self._reader.next_event()
        self.phase = Phase.ANSWERING

    def _take_over_response(self, row: ConnectionRow, checkpoint: int, sent: int, stream: Stream) -> None:
        """Regenerate the response from the last point known to be in the kernel, and send what lies beyond what it has."""
        if not row.head:
            if sent or self.pending is None:
                raise AdoptionError("the response head was not stored")
            self.attach(stream, Door(row.door), row.start_position)
            return
        offset, position = checkpoint >> COUNT_BITS, checkpoint & COUNT_MASK
        if not offset:
            position = row.start_position
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

    def _take_over_whole(self, row: ConnectionRow, sent: int) -> None:
        """Send the end of a response that reads no stream, then go on with the requests."""
        missing = row.answer_bytes - sent if row.stream < 0 else 0
        if missing > 0:
            if len(row.head) != row.answer_bytes:
                raise AdoptionError("the response was not stored whole")
            self.transport.write(row.head[-missing:])
        self.written_bytes += row.answer_bytes
        if not self.keep_alive:
            self._close_gently()
        elif self.phase == Phase.ANSWERING:
            self.phase = Phase.HEAD
            self._serve(b"")
        else:
            self._wait(
                Phase.IDLE if self._reader.is_between_requests else Phase.HEAD, self.listener.settings.head_timeout_s
            )
            self._advance()
