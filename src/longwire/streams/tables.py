"""The two tables in shared memory: streams and connections.

What lives here: fixed-size rows with one writer, readable by any process without a lock, and their field layouts.
What must not: what is done with a row (adopt.py), any object that holds one.

A row is two slots written in turn, each with generation and CRC. The generation is stored last, as one aligned 64-bit
word through ``memoryview.cast('Q')`` (a struct's ``pack_into`` zeroes its target first, so that readers would see torn
values): a reader takes the newest slot whose CRC is right, and a writer killed in mid-write leaves the older one. What
changes with every read is kept in single aligned words in front of the slots, which are stored whole by the processor.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import NamedTuple

from ..words.faultpoint import reach
from .shared import LayoutMismatch, make_memory

LAYOUT_VERSION = 3
_MAGIC = b"LWTABLE1"
_HEADER = struct.Struct("<8sIIII")
_SLOT_HEADER = struct.Struct("<QII")  # generation, CRC of the rest, length of the payload
_SLOT_FACTS = struct.Struct("<II")

_TOUCHED = 7
"""The word of the first page that says how many rows were ever taken: an adopter need not look at the others."""

WORDS = 4
"""Aligned 64-bit words per row, for what changes with every read."""

RECORDS_WORD = 1
ATTEMPTS_WORD = 2
FIRST_TOKEN_WORD = 3

HAS_COMMENTS = 1 << 63
"""In a stream's word 1: the engine has sent comments, so only a reading from the start tells which entries have no seq."""
RECORDS_MASK = HAS_COMMENTS - 1

COUNT_BITS = 29
COUNT_MASK = (1 << COUNT_BITS) - 1
"""A stream of the largest size that can be set (4 GiB) may consist of events of a few bytes: 29 bits count 500 million of them,
and the other 35 hold an offset of 32 GiB, more than such a stream has with framing and ids."""

MAX_READS = 8
"""How often a reader that was overtaken by the writer in both slots tries again. A row is written a few times in its life."""


def pack_word(offset: int, count: int) -> int:
    """An offset in bytes (35 bits) and a count (29 bits) as one word, so that both change together."""
    return offset << COUNT_BITS | count


class Table:
    """``rows`` rows of up to ``row_bytes`` payload bytes each. Rows are taken and given back by their one writer."""

    def __init__(self, name: str, rows: int, row_bytes: int, fd: int | None = None) -> None:
        self.name = name
        self.rows = rows
        self.row_bytes = row_bytes
        slot_bytes = -(-(_SLOT_HEADER.size + row_bytes) // 8) * 8
        self._slot_bytes = slot_bytes
        self._stride = 8 * WORDS + 2 * slot_bytes
        total = mmap.PAGESIZE + rows * self._stride + 8 * WORDS  # and words that belong to no row
        self.fd = make_memory(name, total) if fd is None else fd
        self._map = mmap.mmap(self.fd, total)
        view = memoryview(self._map)
        view[: _HEADER.size] = _HEADER.pack(_MAGIC, LAYOUT_VERSION, rows, row_bytes, slot_bytes)
        self._head = view[: mmap.PAGESIZE].cast("Q")
        self._view = view[mmap.PAGESIZE :]
        self.words = self._view[: (rows * self._stride // 8 + WORDS) * 8].cast("Q")
        """Every word of the table; a row's own begin at :meth:`word_index`. Behind the last row are some for what has
        no row."""
        self._free: list[int] = []
        self._fresh = 0

    @classmethod
    def attach(cls, name: str, fd: int, row_bytes: int) -> Table:
        """The table that another process has made, to read its rows; :meth:`claim` before writing any.

        Raises:
            LayoutMismatch: the memory is not of this version's making.
        """
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size or header[: len(_MAGIC)] != _MAGIC:
            raise LayoutMismatch(f"this memory is no table of {name}")
        _, layout, rows, stored_row_bytes, _ = _HEADER.unpack(header)
        if (layout, stored_row_bytes) != (LAYOUT_VERSION, row_bytes):
            raise LayoutMismatch(
                f"the table of {name} has layout {layout} with rows of {stored_row_bytes} bytes, and this version reads "
                f"layout {LAYOUT_VERSION} with rows of {row_bytes}"
            )
        return cls(name, rows, row_bytes, fd)

    def claim(self) -> dict[int, bytes]:
        """Become the table's writer, after another one has died: rows that are empty can be taken. Returns the others."""
        self._fresh = self.rows_touched
        found = {row: payload for row in range(self._fresh) if (payload := self.read(row)) is not None}
        self._free = [row for row in range(self._fresh) if row not in found]
        return found

    def __repr__(self) -> str:
        return f"<Table {self.name} {self.rows_used} of {self.rows} rows used>"

    @property
    def rows_used(self) -> int:
        """Rows that are taken."""
        return self._fresh - len(self._free)

    @property
    def rows_touched(self) -> int:
        """Rows that were ever taken, by whichever process: those behind them are empty."""
        return min(self._head[_TOUCHED], self.rows)

    def take(self) -> int | None:
        """A row's index with all its words 0, or None where the table is full."""
        if self._free:
            row = self._free.pop()
        elif self._fresh < self.rows:
            row = self._fresh
            self._fresh += 1
            self._head[_TOUCHED] = self._fresh
        else:
            return None
        index = self.word_index(row)
        for word in range(index, index + WORDS):
            self.words[word] = 0
        return row

    def give(self, row: int) -> None:
        """Give a row back; its slots read as empty from now on."""
        self.write(row, b"")
        self._free.append(row)

    def word_index(self, row: int) -> int:
        """Index in :attr:`words` of the row's first word."""
        return row * self._stride // 8

    def write(self, row: int, payload: bytes) -> None:
        """Store the payload in the older slot, its generation last."""
        if len(payload) > self._slot_bytes - _SLOT_HEADER.size:
            raise ValueError(f"{len(payload)} bytes do not fit into a row of {self.name}")
        words, base = self.words, row * self._stride + 8 * WORDS
        generations = words[base // 8], words[(base + self._slot_bytes) // 8]
        generation = max(generations) + 1
        slot = base + self._slot_bytes if generations[0] > generations[1] else base
        told = len(payload).to_bytes(4, "little") + payload
        stored = zlib.crc32(told, generation & 0xFFFFFFFF).to_bytes(4, "little") + told
        words[slot // 8] = 0
        reach("in_row")  # from here on this slot is no row's, and the other one stands
        self._view[slot + 8 : slot + 8 + len(stored)] = stored
        words[slot // 8] = generation

    def read(self, row: int) -> bytes | None:
        """The payload of the newest valid slot; None where there is none or the row was given back."""
        base = row * self._stride + 8 * WORDS
        slots = [base, base + self._slot_bytes]
        for _ in range(MAX_READS):
            slots.sort(key=lambda slot: self.words[slot // 8], reverse=True)
            for slot in slots:
                payload = self._read_slot(slot)
                if payload is not None:
                    return payload or None
            if not any(self.words[slot // 8] for slot in slots):
                break
        return None

    def _read_slot(self, slot: int) -> bytes | None:
        generation = self.words[slot // 8]
        crc, length = _SLOT_FACTS.unpack(self._view[slot + 8 : slot + 16])
        if not generation or length > self._slot_bytes - _SLOT_HEADER.size:
            return None
        body = bytes(self._view[slot + 12 : slot + 16 + length])
        if zlib.crc32(body, generation & 0xFFFFFFFF) != crc or self.words[slot // 8] != generation:
            return None
        return body[4:]

    def statistics(self) -> dict[str, int]:
        """``rows`` in all and ``used``."""
        return {"rows": self.rows, "used": self.rows_used}

    def close(self) -> None:
        """Unmap; for tests and the end of the process."""
        self.words.release()
        self._head.release()
        self._view.release()
        self._map.close()
        os.close(self.fd)


# The rows' fields. Times are monotonic microseconds; offsets and counts are in bytes.


class StreamRow(NamedTuple):
    """What a process needs to take a stream over.

    Its words: 0 the checkpoint (upstream offset, entries), 1 the records' length and :data:`HAS_COMMENTS`, 2 how often its
    adoption was begun and not ended, 3 when the first token came (monotonic microseconds).
    """

    id: bytes
    owner: int
    """The incarnation that wrote this row: whose descriptor table ``fd`` is a number in."""
    epoch: int
    tenant: int
    state: int
    kind: int
    reason: int
    fd: int
    """Descriptor of the upstream connection; -1 where there is none."""
    read_base: int
    """Bytes that had been read on that connection before this stream's answer."""
    written_base: int
    """Bytes that had been written on it before this stream's request."""
    log_block: int
    end: int
    """Once the stream has ended: bytes of the upstream's chain and entries, packed as in the checkpoint. They stand in the row
    so that the end is one write: whoever finds the stream live reads on from the checkpoint, which is still that of a live
    one."""
    records_block: int
    records_bytes: int
    """Length of the records, once the stream has ended: those of the end itself are in nothing but the row."""
    request_block: int
    request_bytes: int
    created_us: int
    prompt_hash: bytes
    key_hash: bytes
    body_hash: bytes
    asker: int
    """Serial of the connection whose request started this stream."""
    asked_at: int
    """Bytes that had been written on that connection before: which of its requests it was."""
    ended_us: int
    on_disconnect: int
    grace_ms: int
    facts: bytes
    """A short JSON object: tenant, model, engine, route, choices, and of an ended stream its counts (read at adoption and by
    operators, never on the hot path)."""


class ConnectionRow(NamedTuple):
    """What a process needs to take a client's connection over.

    Its words: 0 the reader's checkpoint (bytes written since the head was begun, and entries), 2 how often its adoption was
    begun and not ended.
    """

    owner: int
    """The incarnation that wrote this row: whose descriptor table ``fd`` is a number in."""
    fd: int
    serial: int
    """No other connection of this slot has or had it: rows are reused."""
    phase: int
    stream: int
    """Row of the stream that the current or last response reads; -1 where it read none."""
    stream_id: bytes
    """Its id: rows are reused."""
    door: int
    start_position: int
    """Index position at which the reader began."""
    written_base: int
    """Bytes that had been written on this connection before the current or last response."""
    answer_bytes: int
    """Length of that response, where it is no stream's: ``head`` holds all of it if it is short enough."""
    read_base: int
    """Bytes that had been read on it before the first byte of ``input_block``."""
    input_block: int
    keep_alive: int
    eof: int
    """Always 0, and read by nobody: the connection's state tells of a FIN. The byte is there as long as this layout is."""
    head: bytes
    """The response head (or the whole short response) as it is sent."""


MAX_STORED_HEAD_BYTES = 1536
"""A response head that is larger is not stored: the connection then ends with its process instead of being adopted."""
MAX_FACTS_BYTES = 512

_STREAM = struct.Struct("<17sIIIBBBxiQQIQIQIQQ16s16s16sQQQBxxxI")
_CONNECTION = struct.Struct("<IiQBxxxi17sBxxIQQQIBB")
STREAM_ROW_BYTES = _STREAM.size + MAX_FACTS_BYTES
CONNECTION_ROW_BYTES = _CONNECTION.size + MAX_STORED_HEAD_BYTES


def pack_stream(row: StreamRow) -> bytes:
    """The payload of a streams row."""
    return _STREAM.pack(*row[:-1]) + row.facts[:MAX_FACTS_BYTES]


def unpack_stream(payload: bytes) -> StreamRow:
    """Inverse of :func:`pack_stream`."""
    return StreamRow._make((*_STREAM.unpack_from(payload), payload[_STREAM.size :]))


def pack_connection(row: ConnectionRow) -> bytes:
    """The payload of a connections row."""
    return _CONNECTION.pack(*row[:-1]) + row.head


def unpack_connection(payload: bytes) -> ConnectionRow:
    """Inverse of :func:`pack_connection`."""
    return ConnectionRow._make((*_CONNECTION.unpack_from(payload), payload[_CONNECTION.size :]))
