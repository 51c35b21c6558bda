"""Clients that leave, a few between two turns of the loop.

What lives here: whose turn it is. What must not: what leaving means (connection.py).

To take a connection down costs as much as several events. When thousands leave together, because a balancer or a network has
failed, whoever stays must not wait for all of that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .connection import ClientConnection

PER_TURN: Final = 4
"""At some 100 µs each: less than what the events of a turn take. Of 10,000 the last one's engine is told within a second."""


class Farewells:
    """Sees clients off, at once or in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[ClientConnection] = deque()
        self._room = PER_TURN
        self._is_due = False

    def __repr__(self) -> str:
        return f"<Farewells {len(self._waiting)} waiting>"

    def take(self, connection: ClientConnection) -> bool:
        """A client has left. True: its connection is taken down later, and stays open until then."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next)
        if self._room:
            self._room -= 1
            connection.see_off()
            return False
        self._waiting.append(connection)
        return True

    def _next(self) -> None:
        self._room = PER_TURN
        while self._waiting and self._room:
            self._room -= 1
            self._waiting.popleft().see_off()
        self._is_due = bool(self._waiting)
        if self._is_due:
            self._loop.call_soon(self._next)
