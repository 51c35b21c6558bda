"""A connection's row in the shared table: what an adopter will need to know of it.

What lives here: the phases, the current or last response as the row has it, and writing the row.
What must not: reading rows (takeover.py), the connection's own work (connection.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from ..streams.doors import Door
from ..streams.stream import Stream
from ..streams.tables import MAX_STORED_HEAD_BYTES, ConnectionRow, Table, pack_connection

if TYPE_CHECKING:
    from .connection import ClientConnection


TCP_ESTABLISHED = 1
_RESET = struct.pack("ii", 1, 0)


class Phase:
    """What the connection waits for; stored in its row."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    ANSWERING = 3
    CLOSING = 4
    PASSING = 5


class Answered(NamedTuple):
    """The current or last response, as far as an adopter must know it; the fields are those of :class:`ConnectionRow`."""

    stream: int = -1
    stream_id: bytes = bytes(17)
    door: int = 0
    start_position: int = 0
    written_base: int = 0
    answer_bytes: int = 0
    head: bytes = b""


class ConnectionRecord:
    """Writes one connection's row. Without a row (the table was full) the connection is not adopted, and nothing is written."""

    __slots__ = ("_fd", "_row", "_table", "answered", "word", "words")

    def __init__(self, table: Table, row: int | None) -> None:
        self._table = table
        self._row = row
        self._fd: int | None = None
        """Kept: a connection has one transport for life, and its row is written several times per request."""
        self.words = table.words
        self.word = table.word_index(row if row is not None else table.rows)
        self.answered = Answered()

    def note_stream(self, stream: Stream, door: Door, position: int, written_bytes: int) -> None:
        """A response begins that reads a stream."""
        self.words[self.word] = 0
        self.answered = Answered(stream.row, stream.id, door, position, written_bytes)

    def note_head(self, head: bytes, door: Door) -> None:
        """The response head as it is sent: an adopter must send the very same bytes."""
        kept = head if len(head) <= MAX_STORED_HEAD_BYTES else b""
        self.answered = self.answered._replace(head=kept, answer_bytes=len(head), door=door)

    def note_answer(self, answer: bytes, written_bytes: int) -> None:
        """A whole response that reads no stream: stored itself, if it is short enough, for its end may have to be sent."""
        kept = answer if len(answer) <= MAX_STORED_HEAD_BYTES else b""
        self.answered = Answered(written_base=written_bytes, answer_bytes=len(answer), head=kept)

    def note_passing(self, slot: int, input_bytes: int, peer: str, written_bytes: int) -> None:
        """The connection is on its way to another slot. The kernel's counts say nothing of what we received any more, once
        the other shard reads, so the row says it: ``answer_bytes`` is the input's length, ``head`` the peer's address."""
        self.answered = Answered(
            start_position=slot, written_base=written_bytes, answer_bytes=input_bytes, head=peer.encode()
        )

    def store(self, connection: ClientConnection, fd: int | None = None) -> None:
        """Write the row. ``fd``: of a connection that has no transport yet."""
        if self._row is None:
            return
        chain = connection.input_chain
        answered = self.answered
        if fd is None and (fd := self._fd) is None:
            fd = self._fd = fd_of(connection.transport)
        row = ConnectionRow(
            owner=connection.listener.place.incarnation,
            fd=fd,
            serial=connection.serial,
            phase=connection.phase,
            stream=answered.stream,
            stream_id=answered.stream_id,
            door=answered.door,
            start_position=answered.start_position,
            written_base=answered.written_base,
            answer_bytes=answered.answer_bytes,
            read_base=connection.read_bytes - (chain.end if chain is not None else 0),
            input_block=chain.first if chain is not None else 0,
            keep_alive=int(connection.keep_alive),
            eof=0,
            head=answered.head,
        )
        self._table.write(self._row, pack_connection(row))

    def give(self) -> int | None:
        """The connection is gone: hand its row back to whoever gave it."""
        row, self._row = self._row, None
        return row


def fd_of(transport: asyncio.Transport) -> int:
    """The descriptor for the row; -1 under TLS of our own, whose state is not in the socket."""
    if transport.get_extra_info("ssl_object") is not None:
        return -1
    sock = transport.get_extra_info("socket")
    return sock.fileno() if sock is not None else -1


def peer_has_left(transport: asyncio.Transport) -> bool:
    """While reading is paused the loop hears of neither FIN nor RST; the kernel's state of the connection tells of both."""
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != TCP_ESTABLISHED


def reset_on_close(transport: asyncio.Transport) -> None:
    """Let the peer see a reset in place of an orderly end."""
    if (sock := transport.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def address_of(transport: asyncio.Transport) -> str:
    """The peer's address; empty where it has none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
