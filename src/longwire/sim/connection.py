"""One client's connection to the stand-in.

What lives here: bytes to requests, and the steps of a reply to writes at their time.
What must not: what is answered (routes.py), how many there are (server.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Protocol, cast

from longwire.wire.http1 import CONTINUE, Http1Error, RequestHead, RequestReader

from .reply import Ending, Preempt, Queue, Reply, Step, Steps, refusal
from .wheel import Wheel

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_AHEAD_BYTES = 1024 * 1024
"""Pipelined bytes held while an answer is under way; more is no client that is tested here."""
STEPS_PER_TURN = 64
"""Writes of one connection in a row; then others have their turn."""
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Office(Protocol):
    """What a connection needs from the server."""

    @property
    def wheel(self) -> Wheel:
        """The timer of all streams."""

    def answer(self, head: RequestHead, body: bytes) -> Reply:
        """The reply to a request."""

    def connected(self, connection: Connection) -> None: ...

    def disconnected(self, connection: Connection) -> None: ...

    def ended(self, reply: Reply, *, cancelled: bool) -> None:
        """A reply is over: complete (or cut by a fault), or the client left first."""

    def park(self, reply: Reply, connection: Connection) -> bool:
        """Let a reply wait for its place; False: it has one already."""

    def preempt(self, pause_s: float) -> None:
        """All answers pause."""


class Connection(asyncio.Protocol):
    """Reads requests, and plays one reply at a time."""

    __slots__ = (
        "_due", "_head", "_office", "_paused", "_reader", "_reply", "_starved", "_steps", "_transport", "_wheel", "dies_idle",
    )  # fmt: skip

    def __init__(self, office: Office) -> None:
        self._office = office
        self._wheel = office.wheel
        self._reader = RequestReader(MAX_HEAD_BYTES, MAX_BODY_BYTES)
        self._transport: asyncio.Transport | None = None
        self._head: RequestHead | None = None
        self._reply: Reply | None = None
        self._steps: Steps | None = None
        self._due = 0.0
        self._paused = False
        self._starved = False
        self.dies_idle = False

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "answering" if self._steps is not None else "idle"
        return f"<Connection {state}{', paused' if self._paused else ''}>"

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Each write goes to the kernel at once, and pause_writing means that the kernel's own buffer is full.
        self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._office.connected(self)

    def data_received(self, data: bytes) -> None:
        self._reader.receive_data(data)
        if self._steps is None:
            self._read()
        elif self._reader.buffered_bytes > MAX_AHEAD_BYTES:
            self._close()

    def eof_received(self) -> bool:
        # A client that has closed its side has left; engines (uvicorn, llama.cpp) see it so too.
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._transport = None
        self._office.disconnected(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._starved:
            self._starved = False
            self.wake()

    # Requests.

    def _read(self) -> None:
        """Take what has been received: at most one request, whose reply then has the connection."""
        if self.dies_idle:
            self._close()
            return
        try:
            event = self._reader.next_event()
            while isinstance(event, RequestHead):
                self._head = event
                if event.expects_continue and self._transport is not None:
                    self._transport.write(CONTINUE)
                event = self._reader.next_event()
        except Http1Error as exc:
            reply = refusal(exc.status, exc.why).reply()
            reply.keeps_alive = False
            self._play(reply)
            return
        if isinstance(event, bytes) and self._head is not None:
            reply = self._office.answer(self._head, event)
            reply.keeps_alive = reply.keeps_alive and self._head.keep_alive
            self._play(reply)

    def _play(self, reply: Reply) -> None:
        self.dies_idle = reply.dies_idle
        self._reply = reply
        self._steps = reply.steps()
        self._due = self._wheel.now()
        self.wake()

    # The reply.

    def wake(self) -> None:
        """Write what is due, up to the next pause."""
        steps = self._steps
        if steps is None or self._transport is None:
            return  # It ended, or the client left, while it was on the wheel.
        if self._paused:
            self._starved = True
            return
        write = self._transport.write
        writes = 0
        for step in steps:
            if type(step) is bytes:
                write(step)
                writes += 1
                if self._is_paused():  # write() may have called pause_writing().
                    self._starved = True
                    return
                if writes == STEPS_PER_TURN:
                    self._wheel.call_soon(self)
                    return
            elif type(step) is float:
                if step > 0:
                    self._due += step
                    self._wheel.call_at(self._due, self)
                    return
                if step:
                    self._wheel.call_soon(self)
                    return
            elif self._obey(step):
                return

    def _obey(self, step: Step) -> bool:
        """An order or the end; whether the reply has to wait, or is over."""
        if isinstance(step, Preempt):
            self._office.preempt(step.pause_s)
            return False
        if isinstance(step, Queue):
            assert self._reply is not None
            return self._office.park(self._reply, self)
        self._finish(cast("Ending", step))
        return True

    def let_in(self) -> None:
        """The reply that waited has its place: its time begins now."""
        self._due = self._wheel.now()
        self._wheel.call_soon(self)

    def delay(self, pause_s: float) -> None:
        """Whatever was due is due so much later, or sooner by a pause below zero."""
        self._due += pause_s

    def _is_paused(self) -> bool:
        return self._paused

    def _finish(self, ending: Ending) -> None:
        """The reply is over, but for what the kernel still has to take."""
        if ending is Ending.STALL:
            return
        if ending is Ending.HALF_CLOSE:
            if self._transport is not None:
                self._transport.write_eof()
            return
        self._end(cancelled=False)
        if ending is Ending.DONE:
            self._reader.start_next_cycle()
            # Not from here: a pipeline of a thousand requests would be a thousand frames deep.
            if not self._reader.is_between_requests:
                self._wheel.call_soon(_NextRequest(self))
        elif ending is Ending.CLOSE:
            self._close()
        else:
            self._reset()

    def read_on(self) -> None:
        """Look for a request that came behind the last one."""
        if self._transport is not None and self._steps is None:
            self._read()

    def _leave(self) -> None:
        """The client is gone: stop generating at once."""
        if self._steps is not None:
            self._end(cancelled=True)

    def _end(self, *, cancelled: bool) -> None:
        reply, self._reply, self._steps = self._reply, None, None
        assert reply is not None
        self._office.ended(reply, cancelled=cancelled)

    def abort(self) -> None:
        """Cut the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        """Close with RST. What was written is in the kernel already, unless the peer reads slowly."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._transport.abort()


class _NextRequest:
    """The wheel's way to a connection that has something to read."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def wake(self) -> None:
        self._connection.read_on()
