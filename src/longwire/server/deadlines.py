"""What a client's connection waits for, and for how long.

What lives here: the looks that the listener's sweeps take at a connection: deadlines, slow readers, clients that have left.
What must not: timers (words.sweep), what is read or answered (connection.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..words.errors import RequestTimeout
from ..words.reasons import CloseReason
from .record import Phase, peer_has_left

if TYPE_CHECKING:
    from .connection import ClientConnection


def look(connection: ClientConnection, now: float) -> None:
    """Called by the sweep while there is something to wait for. Deadlines are by wall clock: no byte extends them."""
    if not (connection.deadline or connection.stuck_since or connection.flushing):
        connection.listener.watched.discard(connection)
    if connection.flushing:
        connection.check_flushed()
    if connection.stuck_since:
        _check_stuck(connection, now)
    if connection.deadline and now > connection.deadline:
        _act_on_deadline(connection)


def _act_on_deadline(connection: ClientConnection) -> None:
    if connection.phase == Phase.PASSING:
        if connection.listener.neighbours is not None:
            connection.listener.neighbours.give_up(connection)
    elif connection in connection.listener.turns:
        pass  # it waits for us
    elif connection.phase not in (Phase.IDLE, Phase.CLOSING):
        what = "request head" if connection.phase == Phase.HEAD else "request body"
        connection.refuse(RequestTimeout(f"The {what} did not arrive in time."), close=True)
    elif not connection.transport.get_write_buffer_size():
        connection.abort()
    elif not connection.stuck_since:
        watch_progress(connection)  # the end of an answer is on its way, slowly: only without progress is it cut


def watch_progress(connection: ClientConnection) -> None:
    """From now on the client must take something within ``slow_reader_s``."""
    connection.listener.watched.add(connection)
    connection.stuck_since = connection.listener.clock.now()
    connection.stuck_bytes = connection.transport.get_write_buffer_size()


def _check_stuck(connection: ClientConnection, now: float) -> None:
    unsent = connection.transport.get_write_buffer_size()
    if unsent < connection.stuck_bytes:
        connection.stuck_bytes = unsent
        connection.stuck_since = now
    elif now - connection.stuck_since > connection.listener.settings.slow_reader_s:
        connection.cut(CloseReason.SLOW_READER)


def listen(connection: ClientConnection) -> None:
    """Called by the listener, often, while reading is paused: an engine must hear within a second of a client that left."""
    if connection.is_reading_paused and peer_has_left(connection.transport):
        connection.cut(CloseReason.CLIENT_LEFT)
