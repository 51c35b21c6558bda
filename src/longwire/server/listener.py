"""The public port: accepting clients, counting them, and looking after their deadlines.

What lives here: the set of connections and the one tick over it.
What must not: what a connection does with its bytes (connection.py).
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from ..observe.instruments import Instruments
from ..streams.arena import Arena
from ..streams.tables import Table
from ..words.clock import Clock
from ..words.settings import Settings
from .connection import ClientConnection
from .handlers import Handlers

TICK_S = 1.0
"""Deadlines of clients are seconds; looking at 10,000 connections takes about a millisecond."""

SURPLUS_CONNECTIONS = 256
"""Beyond max_connections so many more are accepted, only to be told so in words; the rest is closed at once."""


class Listener:
    """Owns the client connections of this process."""

    def __init__(
        self, arena: Arena, table: Table, settings: Settings, clock: Clock, instruments: Instruments, handlers: Handlers
    ) -> None:
        self.arena = arena
        self.table = table
        self.settings = settings
        self.clock = clock
        self.instruments = instruments
        self.handlers = handlers
        self.loop = asyncio.get_running_loop()
        self.connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._tick_s = min(TICK_S, settings.head_timeout_s / 4, settings.slow_reader_s / 4, settings.keep_alive_s / 4)

    def __repr__(self) -> str:
        return f"<Listener {len(self.connections)} connections>"

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept on a bound socket."""
        self._server = await self.loop.create_server(
            lambda: ClientConnection(self, self.handlers), sock=sock, ssl=tls, backlog=4096
        )
        self.clock.call_later(self._tick_s, self._tick)

    def add(self, connection: ClientConnection, row: int | None) -> int | None:
        """Count a new connection; returns its row (the one it was taken over with), or None where it will not be adopted."""
        self.connections.add(connection)
        surplus = len(self.connections) - self.settings.max_connections
        if surplus > SURPLUS_CONNECTIONS:
            connection.abort()
            return None
        connection.surplus = surplus > 0
        return self.table.take() if row is None else row

    def remove(self, connection: ClientConnection, row: int | None) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if row is not None:
            self.table.give(row)

    @staticmethod
    def fd_of(transport: asyncio.Transport) -> int:
        """The descriptor for the row; -1 under TLS of our own, whose state is not in the socket."""
        if transport.get_extra_info("ssl_object") is not None:
            return -1
        sock = transport.get_extra_info("socket")
        return sock.fileno() if sock is not None else -1

    def _tick(self) -> None:
        now = self.clock.now()
        for connection in list(self.connections):
            connection.tick(now)
        if self._server is not None:
            self.clock.call_later(self._tick_s, self._tick)

    def stop_accepting(self) -> None:
        """No new connections; those there are go on."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """Cut every connection."""
        self.stop_accepting()
        self._server = None
        for connection in list(self.connections):
            connection.abort()

    def statistics(self) -> dict[str, int]:
        """``connections`` there are."""
        return {"connections": len(self.connections)}
