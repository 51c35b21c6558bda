"""What clients want, one after the other, with a turn of the loop in between.

What lives here: whose turn it is. What must not: what is done then (connection.py).

To read and begin a request costs as much as twenty events, to accept a client or take a connection down as much as eight. The
loop hands over all that came since its last turn: were all of it done at once, a flood of one tenant's requests, or thousands
of clients that are cut and come back together, would hold up every stream. So each turn has room for one, and events go in
between. Who leaves and who comes wait in one line: else those who come would find no room yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """Of one process's connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[object, Callable[[], None]] = {}
        self._is_taken = False

    def __repr__(self) -> str:
        return f"<Turns {len(self._waiting)} waiting>"

    def take(self, client: object, work: Callable[[], None]) -> bool:
        """Whether it is this client's turn now. If not, ``work`` will be called when it is, or what else it wants by then."""
        if not self._is_taken:
            self._is_taken = True
            self._loop.call_soon(self._next)
            return True
        self._waiting[client] = work
        return False

    def _next(self) -> None:
        self._is_taken = bool(self._waiting)
        if self._is_taken:
            client = next(iter(self._waiting))
            self._loop.call_soon(self._next)
            self._waiting.pop(client)()
