"""What clients want, one after the other, with a turn of the loop in between.

What lives here: whose turn it is. What must not: what is done then (connection.py, accepting.py).

To read and begin a request costs as much as many events, and so does it to accept a client or to take a connection down. The
loop hands over all that came since its last turn: were all of it done at once, a flood of one tenant's requests, or thousands
of clients that leave and come back together, would hold up every stream. So each turn has room for one, and events go in
between. There are two lines, of clients and of those who knock, and they alternate: neither can keep the other waiting.

A client is in line once, whatever it wants: the line is no longer than there are connections. What needs no line: the pieces
of a body whose head has had its turn, and connections that are reset, of which the loop says so itself: what they had asked for
and nobody has looked at is forgotten. A FIN is its last wish: what came before it is done first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Work = Callable[[], None]


class Turns:
    """Of one process's connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clients: dict[object, Work] = {}
        self._knocking: Work | None = None
        self._is_taken = False

    def __repr__(self) -> str:
        return f"<Turns {len(self._clients)} waiting>"

    def __contains__(self, client: object) -> bool:
        """Whether it waits in line."""
        return client in self._clients

    def take(self, client: object, work: Work) -> None:
        """Do it now if nobody has had this turn, else when it is the client's; or what else it wants by then, instead."""
        if self._is_taken:
            self._clients[client] = work
        else:
            self._begin()
            work()

    def knock(self, work: Work) -> None:
        """As :meth:`take`, for whoever accepts."""
        if self._is_taken:
            self._knocking = work
        else:
            self._begin()
            work()

    def _begin(self) -> None:
        self._is_taken = True
        self._loop.call_soon(self._next_client)

    def _next_client(self) -> None:
        if self._clients:
            self._loop.call_soon(self._next_knocking)
            self._clients.pop(next(iter(self._clients)))()
        else:
            self._next_knocking()

    def _next_knocking(self) -> None:
        work, self._knocking = self._knocking, None
        if work is not None:
            self._loop.call_soon(self._next_client)
            work()
        elif self._clients:
            self._next_client()
        else:
            self._is_taken = False
