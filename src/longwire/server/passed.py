"""A client's connection that the shard of another slot has passed here, with the beginning of a request.

What lives here: its row and its input, before it has a transport. What must not: messages and inboxes (passing.py).
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from ..streams.arena import ArenaFull, Use
from ..streams.chain import Chain
from ..streams.counters import bytes_read, bytes_written, take_reading
from .connection import ClientConnection
from .listener import Listener
from .parcel import Parcel
from .record import Answered, ConnectionRecord, Phase

_HAS_COUNTERS = hasattr(socket, "TCP_INFO")


class PassedConnection(ClientConnection):
    """A :class:`ClientConnection` that has begun in another process. Its first request is answered here whatever happens: two
    shards that do not agree on its owner must not send it to and fro."""

    __slots__ = ("_data", "_is_first")

    def __init__(self, listener: Listener, parcel: Parcel, sock: socket.socket) -> None:
        row = listener.table.take()
        super().__init__(listener, listener.handlers, row)
        self.peer, self.serial = parcel.peer, parcel.serial
        self._data, self._is_first = parcel.data, True
        self.read_bytes, self.written_bytes = _count(sock, parcel)
        try:
            self._input = Chain.holding(listener.arena, Use.INPUT, parcel.data)
        except ArenaFull:
            self.surplus = True
        self.record = ConnectionRecord(listener.table, row)
        self.record.answered = Answered(written_base=self.written_bytes)
        self.phase = Phase.HEAD
        # At once, and not when there is a transport: from the message to the row this process must not be killed.
        self.record.store(self, sock.fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        settings = self.listener.settings
        self.transport.set_write_buffer_limits(high=settings.write_high_water_bytes)
        self.listener.add(self, self._row)
        if self.phase == Phase.CLOSING:
            return
        self._wait(Phase.HEAD, settings.head_timeout_s)
        self._reader.receive_data(self._data)
        self._data = b""
        # When the transport has begun to read, and not before: an answer may have to stop it.
        self.loop.call_soon(self.listener.turns.take, self, self._go_on)

    def abandon(self) -> None:
        """There will be no transport."""
        self.listener.remove(self, self.record.give())
        if self._input is not None:
            self._input.give()
            self._input = None

    def _is_passed_on(self, pending: object) -> bool:
        if self._is_first:
            self._is_first = False
            return False
        return super()._is_passed_on(pending)  # type: ignore[arg-type]


def _count(sock: socket.socket, parcel: Parcel) -> tuple[int, int]:
    """Bytes read and written so far: by the kernel's account, because an adopter will go by that; where it has none, by the
    sender's."""
    told = (parcel.read_base + len(parcel.data), parcel.written)
    if not _HAS_COUNTERS:
        return told
    try:
        reading = take_reading(sock)
    except OSError:
        return told
    return bytes_read(reading), bytes_written(reading, connected=False)
