"""The public port: accepting clients, counting them, and looking after their deadlines.

What lives here: the set of connections and the sweep over it.
What must not: what a connection does with its bytes (connection.py).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from ..observe.instruments import Instruments
from ..streams.memory import Memory
from ..wire.forwarded import TrustedNetworks
from ..words.clock import Clock
from ..words.settings import Settings
from ..words.sweep import Sweep
from . import deadlines
from .connection import ClientConnection
from .handlers import Handlers

DEAF_S = 0.5
"""How often connections are looked at whose reading is paused: an engine is to be given back within a second."""

TICK_S = 2.0
"""How often a client's deadlines are looked at: they are seconds."""

SURPLUS_CONNECTIONS = 256
"""Beyond max_connections so many more are accepted, only to be told so in words; the rest is closed at once."""


class Listener:
    """Owns the client connections of this process."""

    def __init__(
        self, memory: Memory, settings: Settings, clock: Clock, instruments: Instruments, handlers: Handlers
    ) -> None:
        self.place = memory.place
        self.arena = memory.arena
        self.table = memory.connections
        self.settings = settings
        self.clock = clock
        self.instruments = instruments
        self.handlers = handlers
        self.loop = asyncio.get_running_loop()
        self.trusted = TrustedNetworks.parse(settings.trusted_proxies)
        self.connections: set[ClientConnection] = set()
        self._serial = 0
        self._server: asyncio.Server | None = None
        self._quiet: asyncio.Event | None = None
        tick_s = min(TICK_S, settings.head_timeout_s / 4, settings.slow_reader_s / 4, settings.keep_alive_s / 4)
        self.watched: set[ClientConnection] = set()
        """Connections that wait for something that may not come; the thousands that only stream are not looked at."""
        self.deaf: set[ClientConnection] = set()
        """Connections whose reading is paused: the loop does not tell when their clients leave."""
        self._listening: Sweep[ClientConnection] = Sweep(
            clock, DEAF_S, lambda: self.deaf, lambda connection, _: deadlines.listen(connection)
        )
        self._sweep: Sweep[ClientConnection] = Sweep(clock, tick_s, lambda: self.watched, deadlines.look)

    def __repr__(self) -> str:
        return f"<Listener {len(self.connections)} connections>"

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept on a bound socket. A client that does not get through its TLS handshake is held no longer than one without a
        head."""
        self._server = await self.loop.create_server(
            lambda: ClientConnection(self, self.handlers),
            sock=sock,
            ssl=tls,
            backlog=4096,
            ssl_handshake_timeout=self.settings.head_timeout_s if tls is not None else None,
        )
        self._sweep.start()
        self._listening.start()

    def next_serial(self) -> int:
        """A number for a connection that none in this slot has or had."""
        self._serial += 1
        return self.place.incarnation << 32 | self._serial

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
        self.deaf.discard(connection)
        self.watched.discard(connection)
        self.note_quiet()
        if row is not None:
            self.table.give(row)

    async def wait_quiet(self, seconds: float) -> None:
        """Wait until no response is under way any more, but no longer than that."""
        self._quiet = asyncio.Event()
        self.note_quiet()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), seconds)

    def note_quiet(self) -> None:
        """A response is over: was it the last?"""
        if self._quiet is not None and not any(connection.is_answering for connection in self.connections):
            self._quiet.set()

    def stop_accepting(self) -> None:
        """No new connections; those there are go on."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """Cut every connection."""
        self.stop_accepting()
        self._sweep.stop()
        self._listening.stop()
        self._server = None
        for connection in list(self.connections):
            connection.abort()

    def statistics(self) -> dict[str, int]:
        """``connections`` there are."""
        return {"connections": len(self.connections)}
