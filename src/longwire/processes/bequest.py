"""What a dead shard's descriptor table holds, as its guardian passes it on.

What lives here: the sockets that rows name, and those of clients that had been accepted and had no row yet.
What must not: what becomes of them (adopt.py, server).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from ..adopt import Rows, Socket
from ..keeper.channel import MAX_DESCRIPTORS
from ..keeper.guardian import GuardianGone, fetch_sockets
from ..streams.counters import bytes_read, bytes_written, take_reading

log = logging.getLogger("longwire.shard")

FETCH_S = 5.0
"""For all sockets of one dead shard: it takes milliseconds. What has not come by then is cut."""

MAX_NUMBER = 1 << 20
"""No descriptor table has a higher number (fs.nr_open). The search ends much earlier, where nothing is open any more."""


class Bequest(NamedTuple):
    """What the dead have left: the ``ends`` of their guardians by incarnation, of whom the newcomers are not ours to look for
    (``mixed``), and who leaves other slots as well (``shared``)."""

    ends: dict[int, int]
    mixed: Container[int] = ()
    shared: Container[int] = ()

    def fetch(
        self, rows: Rows, public: socket.socket, named_elsewhere: Callable[[], Iterable[Socket]] = tuple
    ) -> tuple[dict[Socket, socket.socket], list[socket.socket]]:
        """Every socket that the rows name, and the newcomers; from the guardians of whoever had them.

        ``public`` is the listening socket. ``named_elsewhere`` are the sockets that rows of other slots name; it is asked for
        only where one of them could be taken for a newcomer.
        """
        wanted: dict[int, list[int]] = {}
        for owner, fd in rows.sockets:
            wanted.setdefault(owner, []).append(fd)
        found: dict[Socket, socket.socket] = {}
        others: dict[Socket, socket.socket] = {}
        for owner, end_fd in self.ends.items():
            end = socket.socket(fileno=end_fd)
            named = _fetch(end, owner, wanted.get(owner, []))
            found |= {(owner, number): sock for number, sock in named.items()}
            if owner not in self.mixed:
                others |= _fetch_others(end, owner, set(wanted.get(owner, [])))
            end.close()
        newcomers = _find_newcomers(others, {_identity(sock) for sock in found.values()}, public)
        if any(owner in self.shared for owner, _ in newcomers):
            for key in newcomers.keys() & set(named_elsewhere()):
                newcomers.pop(key).close()
        return found, list(newcomers.values())


def _fetch(end: socket.socket, owner: int, numbers: list[int]) -> dict[int, socket.socket]:
    try:
        fetched = fetch_sockets(end, numbers, FETCH_S)
    except GuardianGone as exc:
        fetched = exc.fetched
    except OSError as exc:
        log.error("fetch_failed", extra={"fields": {"owner": owner, "problem": str(exc)}})
        fetched = {}
    return {number: socket.socket(fileno=fd) for number, fd in fetched.items()}


def _fetch_others(end: socket.socket, owner: int, named: set[int]) -> dict[Socket, socket.socket]:
    """The sockets that no row names. Numbers are given out from the lowest, so behind the highest that is known nothing is
    open where a whole batch is empty."""
    found: dict[Socket, socket.socket] = {}
    highest = max(named, default=0)
    for start in range(0, MAX_NUMBER, MAX_DESCRIPTORS):
        batch = [number for number in range(start, start + MAX_DESCRIPTORS) if number not in named]
        fetched = _fetch(end, owner, batch)
        found |= {(owner, number): sock for number, sock in fetched.items()}
        if not fetched and start > highest:
            break
    return found


def _find_newcomers(
    others: dict[Socket, socket.socket], known: set[int], public: socket.socket
) -> dict[Socket, socket.socket]:
    """Those of clients of ours of which not a byte was read: they were accepted, and killed was whoever would have said so in a
    row. All else is closed: what was idle, or on its way out."""
    port = _port(public)
    newcomers: dict[Socket, socket.socket] = {}
    for key, sock in others.items():
        is_ours = sock.family == public.family and sock.type == socket.SOCK_STREAM and _port(sock) == port
        if is_ours and _identity(sock) not in known and _is_untouched(sock):
            known.add(_identity(sock))
            newcomers[key] = sock
        else:
            sock.close()
    return newcomers


def _is_untouched(sock: socket.socket) -> bool:
    try:
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        reading = take_reading(sock)
    except OSError:
        return False
    return not bytes_read(reading) and not bytes_written(reading, connected=False)


def _port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1]) if sock.family in (socket.AF_INET, socket.AF_INET6) else 0


def _identity(sock: socket.socket) -> int:
    """The same for every descriptor of one socket."""
    return os.fstat(sock.fileno()).st_ino
