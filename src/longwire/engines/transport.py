"""One connection to an upstream, as an asyncio protocol.

What lives here: receiving straight into the sink's memory, sending the request, noticing the end.
What must not: parsing (exchange.py), which connection is used (pool.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from ..wire.framer import LONGEST_WHOLE, WHOLE_STARTS, is_whole_frame
from ..words.events import FRAME_END
from ..words.reasons import CloseReason
from .base import Store
from .exchange import Exchange

log = logging.getLogger("longwire.engines")

MAX_DRAIN_BYTES = 64 * 1024
"""What may follow an end marker before the connection is given up: the last chunk, and perhaps a straggling event."""

_SCRATCH = memoryview(bytearray(16 * 1024))
"""Where bytes go that belong to no answer. They are never looked at by anyone else."""

SIZE_LINE_BYTES = len(f"{LONGEST_WHOLE - 1:x}\r\n")
"""At most, of a frame that goes the short way. Behind it a single-line event has a line feed nowhere but at its end."""


class Home(Protocol):
    """Whose connections they are. Itself, and not two of its methods: those would be 128 bytes for each connection."""

    def freed(self, connection: UpstreamConnection, reusable: bool) -> None:
        """An exchange has let a connection go."""

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection has closed."""


class UpstreamConnection(asyncio.BufferedProtocol):
    """A pooled connection."""

    __slots__ = (
        "_begun", "_chain", "_chain_start", "_drained_bytes", "_home", "_mark", "_stray_bytes", "_unopened",
        "_write", "_write_on", "drains_since_purge", "exchange", "exchanges", "idle_since", "is_closed", "transport",
        "was_idle", "written_bytes",
    )  # fmt: skip

    def __init__(self, home: Home) -> None:
        self._home = home
        self._chain: Store | None = None
        self._drained_bytes = 0
        self.drains_since_purge = 0
        """Not 0 while only the end of a body is waited for; the pool counts on, and gives up on a body that does not end."""
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.exchanges = 0
        self._stray_bytes = 0
        self._chain_start = 0
        self._write_on: Callable[[bytes], None] | None = None
        self._write: Callable[[bytes], None] | None = None
        """Where frames go, also while the rest of one is waited for; :attr:`_write_on` is None then."""
        self._begun = b""
        """The beginning of a frame whose rest comes into the next block."""
        self._mark = b""
        self.written_bytes = 0
        self.idle_since = 0.0
        self.was_idle = False
        """It has waited for a request at some time, in which the engine may have closed it."""
        self.is_closed = False
        self._unopened: tuple[socket.socket, Callable[[], object]] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else repr(self.exchange) if self.exchange else "idle"
        return f"<UpstreamConnection {state}, exchange {self.exchanges}>"

    # Called by who uses the connection.

    def is_idle(self) -> bool:
        """No exchange is under way."""
        return self.exchange is None

    @property
    def is_kept(self) -> bool:
        """It was not made for its request: an engine that closes it just now has done nothing wrong."""
        return self.was_idle or self.exchanges > 1

    @property
    def fd(self) -> int:
        """The descriptor, for the streams table; -2 under TLS, whose state is not in the socket."""
        if self.transport is None:
            return -1
        if self.tls is not None:
            return -2
        sock = self.transport.get_extra_info("socket")
        return sock.fileno() if sock is not None else -1

    @property
    def tls(self) -> ssl.SSLObject | None:
        """What speaks TLS on it, if it is under TLS."""
        if self.transport is None:
            return None
        return cast("ssl.SSLObject | None", self.transport.get_extra_info("ssl_object"))

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Start an exchange: send its request, and from now on receive into its sink."""
        assert self.exchange is None and self.transport is not None, "one exchange at a time"
        self.exchange = exchange
        self.exchanges += 1
        self._join_chain(exchange.sink.chain)
        self._drained_bytes = 0
        self.drains_since_purge = 0
        self.written_bytes += len(request)
        self.transport.write(request)

    def take_over(self, exchange: Exchange, read_bytes: int, written_bytes: int) -> None:
        """Be in the middle of an exchange whose process has died; its transport comes later."""
        self._stray_bytes, self.written_bytes = read_bytes, written_bytes
        self.exchange = exchange
        self.exchanges = 1
        self._join_chain(exchange.sink.chain)

    def go_on(self, rest: list[memoryview]) -> None:
        """Send the rest of a request that had been sent in part. Receiving has begun with the transport."""
        assert self.transport is not None
        if rest:
            self.written_bytes += sum(len(part) for part in rest)
            self.transport.write(b"".join(rest))  # a copy, as in Call: blocks may go before the kernel has taken all

    @property
    def read_bytes(self) -> int:
        """Bytes received in all. While an answer goes into a chain, the chain counts."""
        return self._stray_bytes + (self._chain.end - self._chain_start if self._chain is not None else 0)

    def _join_chain(self, chain: Store) -> None:
        self._chain, self._chain_start = chain, chain.end

    def _leave_chain(self) -> None:
        self._stray_bytes = self.read_bytes
        self._chain = None
        self._write = self._write_on = None
        self._begun = b""

    def resume_reading(self) -> None:
        """Go on after the sink was full."""
        unopened, self._unopened = self._unopened, None
        if unopened is not None:
            unopened[1]()
        elif self.transport is not None and not self.is_closed:
            self.transport.resume_reading()

    def open_later(self, sock: socket.socket, open: Callable[[], object]) -> None:
        """Taken over with a sink that is full: nothing can be received yet, so it has no transport. ``open`` is called when
        reading is resumed; until then the socket waits as it is, and the engine with it."""
        self._unopened = sock, open

    def close(self) -> None:
        """Close now; what was not sent is dropped."""
        unopened, self._unopened = self._unopened, None
        if unopened is not None:
            unopened[0].close()
            self._home.lost(self)
        if self.transport is not None and not self.is_closed:
            self.transport.abort()
        self.is_closed = True

    # Called by the exchange.

    def release(self, reusable: bool) -> None:
        self.exchange = None
        self._leave_chain()
        self._home.freed(self, reusable and not self.is_closed and self._has_sent_all)

    def splice(self, write: Callable[[bytes], None], mark: bytes) -> None:
        self._write = self._write_on = write
        self._mark = mark

    def unsplice(self) -> None:
        """Let no frame go the short way any more. Half a frame becomes the exchange's."""
        begun, self._begun = self._begun, b""
        self._write = self._write_on = None
        if begun and self.exchange is not None:
            self.exchange.hold(begun)

    def drain(self) -> None:
        self._leave_chain()
        self.drains_since_purge = 1
        if not self._has_sent_all and self.exchange is not None:
            self.exchange.abandon()

    @property
    def _has_sent_all(self) -> bool:
        """The request is with the kernel. An engine that answers without reading it may never read what comes next either."""
        return self.transport is not None and not self.transport.get_write_buffer_size()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's class
        if self.is_closed:
            self.transport.abort()  # nobody wants it any more

    def get_buffer(self, sizehint: int) -> memoryview:
        chain = self._chain
        return _SCRATCH if chain is None else chain.rest

    def buffer_updated(self, nbytes: int) -> None:
        try:  # as _guarded does, which would be a call per event; this costs nothing until something is raised
            write = self._write_on
            if write is None or (chain := self._chain) is None:
                self._receive(nbytes)
                return
            # The hot path, once per event: five searches in C show that the read is one whole frame (as framer.is_whole_frame
            # does, written out to save the call) with an ordinary delta in it, and it goes on. What is written is the copy that
            # was searched: the transport takes bytes as they are, and views only after two more calls.
            rest = chain.rest
            data = rest[:nbytes].tobytes()
            if (
                nbytes < LONGEST_WHOLE
                and self._mark in data
                and data.startswith(WHOLE_STARTS[nbytes])
                and data.endswith(FRAME_END)
                and data.find(b"\n", 6) == nbytes - 4
                and data.find(b"\r", 6) == nbytes - 2
                and nbytes < len(rest)
            ):
                chain.rest = rest[nbytes:]
                try:
                    write(data)
                except Exception as exc:  # noqa: BLE001 - told where the reader is ended
                    self._lose_reader(exc)
                return
            if nbytes != len(rest) or not self._begin_frame(chain, data):
                self._receive(nbytes)
        except Exception:
            log.exception("exchange_fault")
            self._fail(self.exchange)

    def _begin_frame(self, chain: Store, data: bytes) -> bool:
        """The block is full, and in mid-frame: as nothing says anything else, hold its beginning until its rest has come. One
        event in eighty lies like this; on the long way it cost thirty times what an ordinary one costs."""
        exchange = self.exchange
        assert exchange is not None
        is_frame = data.count(b"\n") <= 1 and data.find(b"\n", SIZE_LINE_BYTES) < 0
        if not is_frame or chain.end + LONGEST_WHOLE > exchange.max_stream_bytes:
            return False
        exchange.sink.settle_soon()  # the index lags by little more than a block
        self._begun = data
        self._write_on = None
        chain.filled(len(data))
        if chain.is_full and self._chain is chain:
            exchange.sink.unsplice()
            self._pause()
        return True

    def _end_frame(self, chain: Store, begun: bytes, nbytes: int) -> bool:
        """Both parts of the frame go on, if they are one."""
        rest = chain.rest
        data = begun + rest[:nbytes].tobytes()
        write = self._write
        if write is None or nbytes >= len(rest) or len(data) >= LONGEST_WHOLE:
            return False
        if self._mark not in data or not is_whole_frame(data):
            return False
        self._begun = b""
        self._write_on = write
        chain.rest = rest[nbytes:]
        try:
            write(data)
        except Exception as exc:  # noqa: BLE001 - as above
            self._lose_reader(exc)
        return True

    def _lose_reader(self, fault: Exception) -> None:
        """The log has the frame, and its reader cannot be written to: no fault of this answer's."""
        assert self.exchange is not None
        self.exchange.sink.lose_reader(fault)

    def _receive(self, nbytes: int) -> None:
        """Anything else: the exchange reads it."""
        chain, exchange = self._chain, self.exchange
        if chain is None or exchange is None:
            self._stray_bytes += nbytes
            self._receive_stray(nbytes)
            return
        if self._begun and self._end_frame(chain, self._begun, nbytes):
            return
        if self._write is not None:
            exchange.sink.unsplice()
        self._guarded(exchange, exchange.receive, chain.rest, nbytes)
        if chain.is_full and self._chain is chain:
            self._pause()

    def _pause(self) -> None:
        """No block is free: the kernel keeps what comes, and the engine waits."""
        assert self.transport is not None
        self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended(None)
        if self.transport is not None:
            self.transport.abort()  # closing would wait for an engine that has said goodbye to read the rest of its request
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._ended(exc)
        self._home.lost(self)

    def _ended(self, error: Exception | None) -> None:
        self.is_closed = True
        exchange = self.exchange
        if exchange is None:
            return
        if self._chain is None:
            exchange.abandon()
            return
        self._guarded(exchange, self._end, exchange, error)

    def _end(self, exchange: Exchange, error: Exception | None) -> None:
        if self._write is not None:
            exchange.sink.unsplice()
        exchange.ended(error)

    def _guarded(self, exchange: Exchange, work: Callable[..., None], *arguments: object) -> None:
        """The root of all that an engine's bytes can cause in an exchange, which may have let the connection go by then."""
        try:
            work(*arguments)
        except Exception:
            log.exception("exchange_fault")
            self._fail(exchange)

    def _fail(self, exchange: Exchange | None) -> None:
        """A fault of ours in one answer ends that answer with its reason, and no other stream hears of it. Left to the loop it
        would break the connection, and the engine would be blamed."""
        if exchange is not None:
            exchange.fail(CloseReason.INTERNAL_ERROR, CloseReason.INTERNAL_ERROR.help)
        else:
            self.close()

    def _receive_stray(self, nbytes: int) -> None:
        """Bytes that belong to no answer. Behind an end marker they are the end of its body; else the engine is out of step
        with us, and its connection must not be used again."""
        exchange = self.exchange
        if exchange is None:
            self.close()
            return
        self._drained_bytes += nbytes
        self._guarded(exchange, exchange.drain, _SCRATCH, nbytes)
        if self.exchange is exchange and self._drained_bytes > MAX_DRAIN_BYTES:
            exchange.abandon()
