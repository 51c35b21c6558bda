"""Accepting clients from a socket that other shards accept from, too.

What lives here: how many are taken at a time, when some are left to others, and what happens near the descriptor limit.
What must not: what becomes of a connection (listener.py, connection.py).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ..observe.instruments import Instruments
from ..words.clock import Clock
from ..words.errors import Overloaded
from .respond import error_parts, whole_response
from .turns import Turns

log = logging.getLogger("longwire.server")

BACKLOG: Final = 4096

ACCEPTS_PER_LOOK: Final = 16
"""Before the shards' loads are compared again. Each has a turn of its own, so the others' loops see that there are more."""

DESCRIPTOR_RESERVE: Final = 256
"""Descriptors that new clients cannot take: for engines' connections of those that are there, what other shards pass here, and
files. With a very low limit an eighth of it."""

PAUSE_S: Final = 0.1
"""After accept has failed for want of something. The socket stays readable all the while: to try at once would be to spin."""

YIELD_S: Final = 0.003
"""How long a shard that has more streams than another one leaves new clients to it. If nobody takes them they have waited that
long: a shard that hangs costs no more."""

LOAD_SLACK: Final = 4
"""Live streams by which a shard may be ahead without leaving new clients to others: below it, equal is equal enough."""

LINGER_S: Final = 1.0
MAX_REFUSED: Final = 64
"""Clients that were refused and have not been closed yet: a close at once would reset them before they had read why."""

PEEK_BYTES: Final = 64 * 1024

WANTING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors that pass when somebody has left."""

# Nothing of the request is known yet, so this is the one answer for all. An EventSource gives up on it, for good: that is why
# max_connections, which is refused in the client's own words, should be reached before this is.
_REFUSAL_STATUS, _REFUSAL_HEADERS, _REFUSAL_BODY = error_parts(
    Overloaded("This gateway has no room for another connection; try again.", retry_after_s=2)
)
_REFUSAL: Final = whole_response(_REFUSAL_STATUS, [*_REFUSAL_HEADERS, (b"connection", b"close")], _REFUSAL_BODY)


def descriptor_ceiling() -> int:
    """The first descriptor number that a new client may not have: numbers are given out from the lowest, so the number
    itself tells how many are in use."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 30
    return limit - min(DESCRIPTOR_RESERVE, limit // 8)


class Acceptor:
    """Takes clients from one listening socket and hands each to ``take``."""

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[socket.socket], None],
        clock: Clock,
        instruments: Instruments,
        turns: Turns,
    ) -> None:
        self._sock = sock
        self._take = take
        self._clock = clock
        self._instruments = instruments
        self._loop = asyncio.get_running_loop()
        self.ceiling = descriptor_ceiling()
        self.turns = turns
        self.is_tls = False
        """Whether clients speak TLS with us: a refusal in plain words would be garbage to them."""
        self.loads: Callable[[], tuple[int, Sequence[int]]] = lambda: (0, ())
        """Live streams of this shard, and of all that are known to be alive."""
        self._is_open = False
        self._is_reading = False
        self._allowed = 0
        self._refused: deque[socket.socket] = deque()

    def __repr__(self) -> str:
        state = "accepting" if self._is_reading else "pausing" if self._is_open else "closed"
        return f"<Acceptor {state} below descriptor {self.ceiling}>"

    def start(self) -> None:
        """Accept from now on."""
        self._is_open = True
        self._go_on()

    def stop(self) -> None:
        """Accept nothing more. The socket stays as it is: it may not be ours alone."""
        self._is_open = False
        self._halt()
        while self._refused:
            self._refused.popleft().close()

    def _go_on(self) -> None:
        if self._is_open and not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._sock.fileno(), self._knocked)

    def _halt(self) -> None:
        self._allowed = 0
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _knocked(self) -> None:
        """There are new clients. Another shard that has so much less to do may have them, if it takes them soon."""
        if self._allowed:
            return  # in line
        own, all_loads = self.loads()
        if all_loads and own > min(all_loads) + LOAD_SLACK:
            self._halt()
            self._clock.call_later(YIELD_S, self._accept_left)
        else:
            self._accept_some()

    def _accept_left(self) -> None:
        """Nobody has taken them: whatever the others do, clients wait for no longer than one pause."""
        if self._is_open:
            self._go_on()
            self._accept_some()

    def _accept_some(self) -> None:
        self._allowed = ACCEPTS_PER_LOOK
        self.turns.knock(self._accept)

    def _accept(self) -> None:
        """One of them."""
        if not self._allowed:
            return  # it was stopped while it was in line
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another shard has it, or it has left
            self._allowed = 0
            return
        except OSError as exc:
            self._failed(exc)
            return
        sock.setblocking(False)
        if sock.fileno() >= self.ceiling:
            self._refuse(sock)
        else:
            self._take(sock)
        self._allowed -= 1
        if self._allowed:
            self.turns.knock(self._accept)

    def _failed(self, exc: OSError) -> None:
        if exc.errno == errno.EINVAL:  # it was shut down, for all who have it
            self.stop()
            return
        if exc.errno not in WANTING:
            log.warning("accept_failed", extra={"fields": {"problem": str(exc)}})
        self._instruments.accept_pauses_total += 1
        self._halt()
        self._clock.call_later(PAUSE_S, self._go_on)

    def _refuse(self, sock: socket.socket) -> None:
        self._instruments.accepts_refused_total += 1
        if self.is_tls:
            sock.close()
            return
        with suppress(OSError):
            sock.send(_REFUSAL)
            sock.shutdown(socket.SHUT_WR)
        if len(self._refused) >= MAX_REFUSED:
            self._close_refused()
        self._refused.append(sock)
        self._clock.call_later(LINGER_S, self._close_refused)

    def _close_refused(self) -> None:
        """Close the oldest. There is a call for each, and one that finds none left has been overtaken."""
        if self._refused:
            sock = self._refused.popleft()
            with suppress(OSError):
                sock.recv(PEEK_BYTES)  # what lies unread would turn the close into a reset
            sock.close()
