"""One client's connection, as an asyncio protocol.

What lives here: receiving into the arena, the cycle of requests, pauses, and the end.
What must not: what a request means (handlers.py), how a response is written (writer.py), time (deadlines.py), syntax (wire).

Over 400 lines, because one connection's cycle (read, answer, close, in time) is one state and reads best in one place.

What a client sends lies in blocks of the arena until it is answered, so that another process can take over in mid-request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, cast

from ..streams.arena import ArenaFull, Use
from ..streams.chain import Chain
from ..streams.doors import Door
from ..streams.stream import State, Stream
from ..streams.subscriber import Subscriber
from ..wire.http1 import CONTINUE, NEED_DATA, PAUSED, Headers, Http1Error, RequestHead, RequestReader
from ..words.errors import (
    BadHttp,
    BodyTooLarge,
    HeadersTooLarge,
    LocalError,
    LongwireError,
    Overloaded,
    RemoteError,
)
from ..words.faultpoint import reach
from ..words.reasons import CloseReason
from .deadlines import watch_progress
from .preface import Preface
from .record import ConnectionRecord, Phase, address_of, reset_on_close
from .respond import error_parts, whole_response
from .writer import Writer

if TYPE_CHECKING:
    from .handlers import Handlers, Pending
    from .listener import Listener

log = logging.getLogger("longwire.server")

MAX_PIPELINED_BYTES = 16 * 1024
"""What a client may send ahead while it is being answered; beyond it we stop reading until the answer is out."""

LINGER_S = 2.0
"""How long a refused client may go on sending before it is cut: closing at once would reset it before it had read why."""
_SCRATCH = memoryview(bytearray(16 * 1024))
_ERRORS: dict[int, type[RemoteError]] = {413: BodyTooLarge, 431: HeadersTooLarge}


class ClientConnection(asyncio.BufferedProtocol):
    """Reads requests one after the other and has each answered before the next is looked at."""

    __slots__ = (
        "_input", "_is_writing_paused", "_preface", "_reader", "_row", "_task", "_view", "deadline", "extra_headers",
        "flushing", "handlers", "has_left", "head", "is_reading_paused", "keep_alive", "listener", "loop", "peer",
        "pending", "phase", "read_bytes", "record", "serial", "speaks_1_1", "stuck_bytes", "stuck_since", "surplus",
        "transport", "writer", "written_bytes",
    )  # fmt: skip

    transport: asyncio.Transport
    record: ConnectionRecord

    def __init__(self, listener: Listener, handlers: Handlers, row: int | None = None) -> None:
        settings = listener.settings
        self.listener = listener
        self.handlers = handlers
        self.loop = listener.loop
        self.phase = Phase.IDLE
        self.deadline = 0.0
        self.head: RequestHead | None = None
        self.pending: Pending | None = None
        self.keep_alive = True
        self.speaks_1_1 = True
        self.surplus = self.has_left = False
        self.read_bytes = 0
        self.written_bytes = 0
        self.writer: Writer | None = None
        self.stuck_since = 0.0
        self.stuck_bytes = 0
        self._reader = RequestReader(settings.max_head_bytes, settings.max_body_bytes)
        self._input: Chain | None = None
        self._view = _SCRATCH
        self._row = row
        self._task: asyncio.Task[None] | None = None
        self.flushing: list[tuple[int, Subscriber]] = []
        self.is_reading_paused = False
        self._is_writing_paused = False
        self.extra_headers: Headers = []
        self.peer, self.serial = "", 0
        self._preface: Preface | None = None

    def __repr__(self) -> str:
        return f"<ClientConnection phase {self.phase}, {self.read_bytes} read, {self.written_bytes} written, {self.writer!r}>"

    @property
    def is_operator(self) -> bool:
        """Whether all tenants' streams may be seen and cancelled here. Nothing that is sent over a connection makes it so."""
        return False

    @property
    def is_answering(self) -> bool:
        """A response is under way, or the end of one has not reached the kernel yet."""
        return self.writer is not None or bool(self.flushing)

    @property
    def input_chain(self) -> Chain | None:
        """Where what the client sent lies until it is answered."""
        return self._input

    # Receiving.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's class
        self.peer = address_of(self.transport)
        self.serial = self.listener.next_serial()
        settings = self.listener.settings
        # Who is taken over has sent its PROXY header to another process.
        if settings.proxy_protocol and self._row is None and self.peer in self.listener.trusted:
            self._preface = Preface()
        self.transport.set_write_buffer_limits(high=settings.write_high_water_bytes)
        self.record = ConnectionRecord(self.listener.table, self.listener.add(self, self._row))
        self._wait(Phase.IDLE, settings.head_timeout_s)
        self.store_row()

    def get_buffer(self, sizehint: int) -> memoryview:
        chain = self._input
        if chain is None and self.phase != Phase.CLOSING and self._preface is None and self._reader.is_between_requests:
            self._keep(b"")
            self.store_row()
            chain = self._input
        self._view = _SCRATCH if chain is None or self.phase == Phase.CLOSING else chain.rest
        return self._view

    def _keep(self, data: bytes) -> None:
        """Begin a chain with this. Without a block a request can still be read, but only to be told so."""
        try:
            self._input = Chain.holding(self.listener.arena, Use.INPUT, data)
        except ArenaFull:
            self.surplus = True

    def buffer_updated(self, nbytes: int) -> None:
        self.read_bytes += nbytes
        if self.phase != Phase.CLOSING:
            self._guarded(partial(self._receive, nbytes))

    def _receive(self, nbytes: int) -> None:
        data = self._view[:nbytes]
        if self._preface is not None:
            data = self._take_preface(self._preface, data.tobytes())
        elif self._input is not None:
            self._input.filled(nbytes)
        if self.phase == Phase.BODY:
            reach("reading_body")
        if self.phase == Phase.IDLE and len(data):
            self._wait(Phase.HEAD, self.listener.settings.head_timeout_s)
        self._reader.receive_data(data)
        if self.phase >= Phase.BODY:
            self._advance()
        else:
            self.listener.turns.take(self, self._go_on)
        if self in self.listener.turns and self._reader.buffered_bytes > MAX_PIPELINED_BYTES:
            self.pause_reading()  # who waits in line brings no more along

    def _take_preface(self, preface: Preface, data: bytes) -> memoryview:
        """Read what a trusted proxy must send first; returns what lies behind it, from where it belongs."""
        rest = preface.take(data)
        if rest is None:
            return memoryview(b"")
        self._preface = None
        self.peer = preface.source or self.peer
        if len(rest):  # the request's beginning must lie where all of it lies before a row says so
            self._keep(rest.tobytes())
        self.store_row()
        return rest

    def _guarded(self, work: Callable[[], None]) -> None:
        """The root of all that a client's bytes can cause. Each fault gets its answer; none takes the process down."""
        try:
            work()
        except ArenaFull:
            self.refuse(Overloaded("The gateway has no memory to read another request.", retry_after_s=2), close=True)
        except Http1Error as exc:
            self.refuse(_ERRORS.get(exc.status, BadHttp)(exc.why), close=True, status=exc.status)
        except LongwireError as exc:
            self.refuse(exc, close=True)
        except Exception:
            log.exception("connection_fault")
            self.refuse(LocalError("The gateway failed to serve this request."), close=True)

    def _advance(self) -> None:
        """Act on what the reader has, until it needs more or a response is under way.

        Raises:
            Http1Error: the client's bytes are not acceptable.
        """
        while self.phase < Phase.ANSWERING and not self._is_writing_paused:
            if self.transport.get_write_buffer_size():
                # An adopter can send the rest of one response, so the next begins when the kernel has all of the last: the
                # transport says so (resume_writing).
                self.transport.set_write_buffer_limits(high=0)
                return
            event = self._reader.next_event()
            if isinstance(event, RequestHead):
                self._take_head(event)
            elif isinstance(event, bytes):
                self._serve(event)
            else:
                assert event is NEED_DATA, "a reader that is paused has a response under way"
                return
            if self.head is None:
                break  # it is answered: what is pipelined behind it has a turn of its own
        if self.phase != Phase.CLOSING and self._reader.buffered_bytes > MAX_PIPELINED_BYTES:
            self.pause_reading()

    def pause_reading(self) -> None:
        """Read nothing more for now; the loop then hears of neither FIN nor RST, so the listener looks for them."""
        self.is_reading_paused = True
        self.listener.deaf.add(self)
        self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.is_reading_paused:
            self.is_reading_paused = False
            self.listener.deaf.discard(self)
            self.transport.resume_reading()

    def _take_head(self, head: RequestHead) -> None:
        """Decide whatever the head allows: identity, route and size come before the body (Open WebUI CVE-2024-12537)."""
        self.head = head
        self.keep_alive = head.keep_alive and not self.surplus
        self.speaks_1_1 = head.minor == 1
        has_body = head.chunked or head.content_length > 0
        self.extra_headers = self.handlers.greet(head)
        try:
            self.pending = self.handlers.prepare(head, self)
            if self._is_passed_on(self.pending):
                return
        except LongwireError as exc:
            self.refuse(exc, close=has_body)
            return
        if has_body:
            self._wait(Phase.BODY, self.listener.settings.body_timeout_s)
            if head.expects_continue and self.record.answered.head != CONTINUE:
                self.record.note_answer(CONTINUE, self.written_bytes)
                self.store_row()  # first, as with any answer
                reach("row_before_continue")
                self.write(CONTINUE)

    def _is_passed_on(self, pending: Pending) -> bool:
        """Whether the request belongs to another shard, and is on its way there or has been answered for it.

        Raises:
            LongwireError: it belongs elsewhere, but this connection cannot go there.
        """
        neighbours = self.listener.neighbours
        return neighbours is not None and neighbours.pass_on(self, pending)

    def let_go(self) -> None:
        """Another process has the connection: to close one of a socket's two descriptors says nothing to the client."""
        self.phase = Phase.CLOSING
        self.listener.remove(self, self.record.give())  # first: a row must not name what may be another's
        chain, self._input = self._input, None
        if chain is not None:
            chain.give()
        self.transport.abort()

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
        extra = self.extra_headers
        self.listener.instruments.count_request(route or (pending.route if pending is not None else "other"), status)
        send_body = head is None or head.method != "HEAD"
        answer = whole_response(status, [*headers, *extra, *self.connection_header()], body, send_body=send_body)
        self.record.note_answer(answer, self.written_bytes)
        self.store_row()  # first: an adopter must not answer the request again
        reach("row_before_answer")
        self.write(answer)
        reach("answer_before_row")
        self.response_done()

    def refuse(self, error: LongwireError, *, close: bool = False, status: int = 0) -> None:
        """Answer with an error. ``close``: what follows on this connection cannot be trusted or is not wanted.

        In the middle of a response there is no place for another: the connection is cut.
        """
        if self.writer is not None:
            self.cut(CloseReason.INTERNAL_ERROR)
            return
        if close:
            self.keep_alive = False
        code, headers, body = error_parts(error)
        self.respond(status or code, headers, body)

    def attach(self, stream: Stream, door: Door, position: int) -> None:
        """Let the client read a stream from an index position on."""
        assert self.pending is not None
        writer = Writer(self, self.pending.route, [*self.extra_headers, *self.connection_header()])
        subscriber = Subscriber(stream, writer, door, position)
        writer.subscriber = subscriber
        self.writer = writer
        self.head = self.pending = None  # for as long as the stream lasts nobody asks for them, and there are thousands
        reach("stream_before_reader")
        self.record.note_stream(stream, door, position, self.written_bytes)
        if self._is_writing_paused:
            subscriber.pause()
        stream.attach(subscriber)
        if stream.state is State.OPENING:
            self.store_row()  # otherwise the head has been sent, and the row stored with it

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do something that takes time before the response can begin; cancelled if the client leaves."""
        self._task = self.loop.create_task(work)
        self._task.add_done_callback(self._take_result)

    def _take_result(self, task: asyncio.Task[None]) -> None:
        """What went wrong in it is answered like anything else."""
        if not task.cancelled():
            self._guarded(task.result)

    def connection_header(self) -> Headers:
        """``Connection: close`` where this response is the last."""
        return [] if self.keep_alive else [(b"connection", b"close")]

    def reader_ended(self, reason: CloseReason) -> None:
        self.listener.instruments.readers_ended[reason] += 1

    def response_done(self) -> None:
        """The response is complete: go on to the next request, or close."""
        if self.phase == Phase.CLOSING:
            return
        self._let_go_of_writer()
        self.head = None
        self.pending = None
        self.extra_headers = []
        self._task = None
        if not self.keep_alive:
            self._close_gently()
            return
        self._reader.start_next_cycle()
        answered = self._renew_input()
        is_idle = self._reader.is_between_requests
        settings = self.listener.settings
        self._wait(Phase.IDLE if is_idle else Phase.HEAD, settings.keep_alive_s if is_idle else settings.head_timeout_s)
        self.store_row()
        if answered is not None:
            answered.give()  # now that no row names its blocks
        self._resume_reading()
        if not is_idle:
            self.loop.call_soon(self.listener.turns.take, self, self._go_on)

    def _go_on(self) -> None:
        """Look at what has come. A pipelined request waits for a turn, too: a thousand of them must not recurse."""
        if self.phase < Phase.ANSWERING:
            self._resume_reading()
            self._guarded(self._advance)
        if self.has_left and not self.transport.is_closing():  # behind what it had asked for before
            self._leave(CloseReason.CLIENT_LEFT)
            self._wait(Phase.CLOSING, LINGER_S)  # an answer that is written may still go out, but not for ever
            self.transport.close()

    def _renew_input(self) -> Chain | None:
        """Answered bytes leave the arena, once the row says so; what was pipelined behind them begins a chain of its own."""
        chain, self._input = self._input, None
        left = self._reader.buffered_bytes
        if chain is not None and left:
            self._keep(chain.read(chain.end - left, left))
        return chain

    def pause_writing(self) -> None:
        """The client does not take what it asked for: nothing more is written, and no further request is looked at."""
        self._is_writing_paused = True
        watch_progress(self)
        if self.writer is not None and self.writer.subscriber is not None:
            self.writer.subscriber.pause()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self.stuck_since = 0.0
        if self.writer is not None and self.writer.subscriber is not None:
            self.writer.subscriber.resume()
        elif self.phase == Phase.PASSING and self.listener.neighbours is not None:
            self.listener.neighbours.note_flushed(self)
        elif self.phase < Phase.ANSWERING:
            self.transport.set_write_buffer_limits(high=self.listener.settings.write_high_water_bytes)
            self.loop.call_soon(self.listener.turns.take, self, self._go_on)

    def _let_go_of_writer(self) -> None:
        """The response has been given to the transport: keep its log until the kernel has it."""
        writer, self.writer = self.writer, None
        if writer is not None and writer.subscriber is not None:
            writer.subscriber.detach()  # first: what went the short way is counted then
            self.written_bytes += writer.sent_bytes
            self.listener.instruments.body_bytes_total += writer.sent_bytes
            self.flushing.append((self.written_bytes, writer.subscriber))
            self.listener.watched.add(self)
            self.loop.call_soon(self.check_flushed)

    def check_flushed(self) -> None:
        """Drop the holds of readers whose last byte has reached the kernel."""
        while self.flushing:
            mark, subscriber = self.flushing[0]
            if self.written_bytes - self.transport.get_write_buffer_size() < mark:
                return
            subscriber.flushed()
            del self.flushing[0]
        self.listener.note_quiet()

    def _wait(self, phase: int, seconds: float) -> None:
        self.phase = phase
        self.deadline = self.listener.clock.now() + seconds
        self.listener.watched.add(self)

    # The end.

    def _close_gently(self) -> None:
        """Send what is written, then close. The client may still be sending: what it sends is read and dropped for a
        while, because a reset would destroy the answer before it is read (RFC 9112 9.6)."""
        self._wait(Phase.CLOSING, LINGER_S)
        chain, self._input = self._input, None
        if chain is not None:
            self.store_row()  # first: a row must not name blocks that may be another's
            chain.give()
        self._resume_reading()
        if self._reader.is_between_requests and self._reader.next_event() in (NEED_DATA, PAUSED):
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()

    def cut(self, reason: CloseReason) -> None:
        """Break the response off: the client must see that it is not whole."""
        self.stuck_since = 0.0
        if not self.speaks_1_1:  # HTTP/1.0 knows the end of a body by its FIN: only a reset tells that this was not all
            reset_on_close(self.transport)
        self._leave(reason)
        self.abort()

    def abort(self) -> None:
        """Close now; what was not sent is dropped."""
        self.phase = Phase.CLOSING
        self.transport.abort()

    def eof_received(self) -> bool:
        """A FIN counts as leaving: nobody who still wants an answer half-closes here (and engines must hear of it)."""
        self.has_left = True
        self.listener.turns.take(self, self._go_on)
        return not self.transport.get_extra_info("ssl_object")  # stay half open until then, which TLS cannot

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave(CloseReason.CLIENT_LEFT)
        if self.listener.neighbours is not None:
            self.listener.neighbours.forget(self)
        self.phase = Phase.CLOSING
        for _, subscriber in self.flushing:
            subscriber.flushed()
        self.flushing.clear()
        self.listener.remove(self, self.record.give())  # first: a row must not name blocks that may be another's
        if self._input is not None:
            self._input.give()
            self._input = None

    def _leave(self, reason: CloseReason) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self.writer is not None:
            self.reader_ended(reason)
        self._let_go_of_writer()

    def store_row(self) -> None:
        """Write the row: a few times per request (see where it is called), never per event."""
        self.record.store(self)
