"""The public port: accepting clients, counting them, and looking after their deadlines.

What lives here: the set of connections and the sweep over it.
What must not: when a client is accepted (accepting.py), what a connection does with its bytes (connection.py).
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..observe.instruments import Instruments
from ..sockets import client_timeout_s, set_peer_options
from ..streams.memory import Memory
from ..wire.forwarded import TrustedNetworks
from ..words.clock import Clock
from ..words.settings import Settings
from ..words.sweep import Sweep
from . import deadlines
from .accepting import BACKLOG, Acceptor
from .connection import ClientConnection
from .handlers import Handlers
from .turns import Turns

if TYPE_CHECKING:
    from .passing import Neighbours

DEAF_S = 0.5
"""How often connections are looked at whose reading is paused: an engine is to be given back within a second."""

TICK_S = 2.0
"""How often a client's deadlines are looked at: they are seconds."""

SURPLUS_CONNECTIONS = 256
"""Beyond max_connections so many more are accepted, only to be told so in words; the rest is closed at once."""

_serials = itertools.count(1)
"""Of the process: it may serve several slots, and connections are passed from one to the other."""


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
        self.operators: set[ClientConnection] = set()
        """Connections of the operator's: they count for no limit."""
        self.neighbours: Neighbours | None = None
        """The other shards; None where there are none."""
        self.turns = Turns(self.loop)
        self._acceptor: Acceptor | None = None
        self._listening_socket: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._is_looking = False
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

    async def start(
        self,
        sock: socket.socket,
        tls: ssl.SSLContext | None = None,
        *,
        is_shared: bool = False,
        loads: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """Accept on a bound socket. ``is_shared``: other processes hold it, too, and it is not ours to close. ``loads``: the
        live streams of all shards that are known to be alive, by which new clients are shared out."""
        self.look_after()

        self._acceptor = Acceptor(
            sock, lambda client: self.welcome(client, tls), self.clock, self.instruments, self.turns
        )
        self._acceptor.is_tls = tls is not None
        if loads is not None:
            registry = self.handlers.gateway.registry
            self._acceptor.loads = lambda: (registry.live_count, loads())
        self._listening_socket = None if is_shared else sock
        if not is_shared:
            sock.listen(BACKLOG)  # one that is shared was opened by the keeper, and may have been shut by it since
        self._acceptor.start()

    def welcome(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """A client that has just been accepted."""
        sock.setblocking(False)
        set_peer_options(sock, client_timeout_s(self.settings.peer_timeout_s, self.settings.slow_reader_s))
        self.open(ClientConnection(self, self.handlers), sock, tls=tls)

    def look_after(self) -> None:
        """Have the connections' deadlines kept from now on; for a shard that has some before it accepts any."""
        if not self._is_looking:
            self._is_looking = True
            self._sweep.start()
            self._listening.start()

    def open(
        self,
        connection: ClientConnection,
        sock: socket.socket,
        on_failure: Callable[[], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Give a connection the socket that it is to have. A client that does not get through its TLS handshake is held no
        longer than one without a head."""
        task = self.loop.create_task(self._open(connection, sock, on_failure, tls))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(
        self,
        connection: ClientConnection,
        sock: socket.socket,
        on_failure: Callable[[], None] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        timeout_s = self.settings.head_timeout_s if tls is not None else None
        try:
            await self.loop.connect_accepted_socket(lambda: connection, sock, ssl=tls, ssl_handshake_timeout=timeout_s)
        except OSError:  # a handshake that fails is one, too; whoever it was has been told by TLS itself
            sock.close()
            if on_failure is not None:
                on_failure()

    def next_serial(self) -> int:
        """A number for a connection that none in any slot has or had."""
        return self.place.incarnation << 32 | next(_serials)

    def add(self, connection: ClientConnection, row: int | None) -> int | None:
        """Count a new connection; returns its row (the one it was taken over with), or None where it will not be adopted."""
        self.connections.add(connection)
        surplus = len(self.connections) - self.settings.max_connections
        if surplus > SURPLUS_CONNECTIONS:
            connection.abort()
            return row
        connection.surplus = connection.surplus or surplus > 0
        return self.table.take() if row is None else row

    def remove(self, connection: ClientConnection, row: int | None) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self.operators.discard(connection)
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
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        if self._listening_socket is not None:
            self._listening_socket.close()
            self._listening_socket = None

    def close(self) -> None:
        """Cut every connection."""
        self.stop_accepting()
        self._sweep.stop()
        self._listening.stop()
        self._is_looking = False
        for task in self._opening:
            task.cancel()
        for connection in [*self.connections, *self.operators]:
            connection.abort()

    def statistics(self) -> dict[str, int]:
        """``connections`` there are, and the ``operator``'s."""
        return {"connections": len(self.connections), "operator": len(self.operators)}
