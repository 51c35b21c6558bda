"""One connection to the endpoint.

What lives here: the asyncio protocol that stamps each read and hands it to the answer's reader.
What must not: what is asked, when, and what becomes of it (sender.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Protocol

from .reading import AnswerReader, State

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Owner(Protocol):
    """Who is told."""

    def answered(self, connection: Connection, now_ns: int) -> None:
        """The response is over; the connection's reader says how."""

    def lost(self, connection: Connection, error: Exception | None) -> None:
        """The connection has ended."""


class Connection(asyncio.Protocol):
    """``reader`` is that of the response under way; None while the connection is idle."""

    __slots__ = ("_owner", "answers", "last_ns", "reader", "transport")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.reader: AnswerReader | None = None
        self.transport: asyncio.Transport | None = None
        self.answers = 0
        """Responses that it has brought: an idle connection that the endpoint closes is no failure."""
        self.last_ns = 0

    def __repr__(self) -> str:
        return f"<Connection {self.answers} answers, {self.reader!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.last_ns = now_ns
        reader = self.reader
        if reader is None:
            self.close()  # Bytes that nobody asked for: whose they are cannot be known.
            return
        reader.receive_data(data, now_ns)
        if reader.state is State.OVER:
            self.answers += 1
            self._owner.answered(self, now_ns)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._owner.lost(self, error)

    def begin(self, request: bytes, reader: AnswerReader) -> None:
        """Send a request, and read its answer with ``reader``."""
        assert self.transport is not None and self.reader is None
        self.reader = reader
        self.transport.write(request)

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        """End it, and say nothing more."""
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """End it as a client that vanishes does: with RST."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self.transport.abort()
