"""The memory of one slot: what outlives the shard that serves it.

What lives here: the arena and both tables as one thing that is made once and attached to by each incarnation.
What must not: what is done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from ..words.ids import Place
from .arena import Arena
from .tables import CONNECTION_ROW_BYTES, STREAM_ROW_BYTES, Table


class Memory(NamedTuple):
    """The arena, both tables, and whose they are."""

    arena: Arena
    streams: Table
    connections: Table
    place: Place = Place()

    @classmethod
    def make(cls, arena_bytes: int, streams: int, connections: int, place: Place = Place()) -> Self:
        """Fresh memory for so many streams and connections."""
        return cls(
            Arena(arena_bytes),
            Table("streams", streams, STREAM_ROW_BYTES),
            Table("connections", connections, CONNECTION_ROW_BYTES),
            place,
        )

    @property
    def fds(self) -> tuple[int, int, int]:
        """The three descriptors, as :meth:`attach` takes them."""
        return self.arena.fd, self.streams.fd, self.connections.fd

    @classmethod
    def attach(cls, fds: Sequence[int], place: Place) -> Self:
        """The memory that another process has made, to be taken over as ``place``.

        Raises:
            LayoutMismatch: it was laid out by a version that this one cannot go on from.
        """
        arena, streams, connections = fds
        return cls(
            Arena.attach(arena),
            Table.attach("streams", streams, STREAM_ROW_BYTES),
            Table.attach("connections", connections, CONNECTION_ROW_BYTES),
            place,
        )
