"""The operator's connection: all tenants' streams, to be seen and cancelled over the public handlers.

What lives here: what is different about it. What must not: how one is made (passing.py makes it of a message in the shard's
inbox, which no stranger can reach), what its requests do (handlers.py).
"""

from __future__ import annotations

import asyncio
from typing import cast

from .connection import ClientConnection
from .record import ConnectionRecord, Phase


class OperatorConnection(ClientConnection):
    """Over a Unix socket that ends in the admin process. It has no row: that process is no client, and asks again. It counts
    for no limit, and its input lies in the arena only for as long as a request takes."""

    __slots__ = ()

    @property
    def is_operator(self) -> bool:
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.peer, self.serial = "", self.listener.next_serial()
        settings = self.listener.settings
        self.transport.set_write_buffer_limits(high=settings.write_high_water_bytes)
        self.record = ConnectionRecord(self.listener.table, None)
        self.listener.operators.add(self)
        self._wait(Phase.IDLE, settings.keep_alive_s)

    def pause_reading(self) -> None:
        """Only who sends much ahead is not read; admin asks for one thing at a time, so this is not admin as we know it."""
        self.abort()

    def _is_passed_on(self, pending: object) -> bool:
        return False  # admin has asked this shard on purpose
