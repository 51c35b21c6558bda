"""What is left of a process: its rows, as far as they can be true, and the blocks that they hold.

What lives here: becoming the writer of a dead process's memory, and giving up what cannot be gone on with.
What must not: sockets, any object that is made of a row (adopt.py).
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..words.ids import slot_of
from .memory import Memory
from .tables import ConnectionRow, StreamRow, Table, unpack_connection, unpack_stream
from .terms import State

log = logging.getLogger("longwire.adopt")

Socket = tuple[int, int]
"""Whose descriptor table, and the number in it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is left of a process: both tables' rows by index."""

    streams: dict[int, StreamRow]
    connections: dict[int, ConnectionRow]

    @property
    def sockets(self) -> set[Socket]:
        """Every socket that a row names and that is needed to go on."""
        streams = {(row.owner, row.fd) for row in self.streams.values() if row.fd >= 0 and row.state != State.ENDED}
        return streams | {(row.owner, row.fd) for row in self.connections.values() if row.fd >= 0}


def claim_rows(memory: Memory) -> Rows:
    """Become the writer of a dead process's memory: read its rows, and find out which blocks they hold. Rows that cannot be
    true are given up: whose bytes and sockets they name is not known."""
    streams = _readable(memory.streams, unpack_stream)
    connections = _readable(memory.connections, unpack_connection)
    ids = Counter(row.id for row in streams.values())
    live = [row for row in streams.values() if row.state != State.ENDED]
    named = [(row.owner, row.fd) for row in live] + [(row.owner, row.fd) for row in connections.values()]
    sockets = Counter(key for key in named if key[1] >= 0)
    for index, row in list(streams.items()):
        is_shared = row.state != State.ENDED and sockets[row.owner, row.fd] > 1
        if is_shared or ids[row.id] > 1 or slot_of(row.id) != memory.place.slot:
            _give_up(memory.streams, index, streams)
    for index, connection in list(connections.items()):
        if sockets[connection.owner, connection.fd] > 1:
            _give_up(memory.connections, index, connections)
    firsts = [block for row in streams.values() for block in (row.log_block, row.records_block, row.request_block)]
    memory.arena.claim([*firsts, *(row.input_block for row in connections.values())])
    return Rows(streams, connections)


Row = TypeVar("Row", StreamRow, ConnectionRow)


def _readable(table: Table, unpack: Callable[[bytes], Row]) -> dict[int, Row]:
    """The rows that this version could have written."""
    found: dict[int, Row] = {}
    for index, payload in table.claim().items():
        try:
            found[index] = unpack(payload)
        except struct.error:
            _give_up(table, index, found)
    return found


def _give_up(table: Table, index: int, rows: dict[int, Row]) -> None:
    log.error("row_given_up", extra={"fields": {"table": table.name, "row": index}})
    rows.pop(index, None)
    table.give(index)
