"""How a run of log entries becomes bytes for one client: framing, and ids where the client asked for them.

What lives here: the doors. What they give is a function of the log alone; what several readers get alike they leave there.
What must not: transports, response heads, what an event says.

Four doors: with or without HTTP chunks (an HTTP/1.0 client gets none), with or without ``id:`` lines. Whatever the door,
two readers of one stream get the same bytes, and every event is an HTTP chunk of its own however many share a write.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from ..words.events import FRAMED, KIND_BITS, LENGTH_MASK, SILENT
from .log import Log, LostEvents

__all__ = ["LAST_CHUNK", "Buffers", "Door", "LostEvents", "encode", "end_bytes", "numbered"]

Buffers = list[bytes | memoryview]

LAST_CHUNK: Final = b"0\r\n\r\n"

MAX_KEPT_BYTES = 4096
"""Of what all readers at the tail of a channel get alike, and one has been given already: a few events, and no more memory
than a page for each log that several read."""

_ENGINES_IDS = re.compile(rb"^id(?::[^\n]*)?\n", re.MULTILINE)
_ID_LINE: Final = b"id: %d-%d\n"
_FRAME: Final = b"%x\r\n%b\r\n"


class Door(IntEnum):
    """Bit 0: HTTP chunks. Bit 1: ids. Stored in the connections table, so the numbers are part of its layout."""

    BARE = 0
    FRAMED = 1
    BARE_IDS = 2
    FRAMED_IDS = 3


def encode(door: Door, log: Log, position: int, limit_bytes: int, limit_events: int) -> tuple[Buffers, int, int]:
    """Encode entries from ``position`` on.

    Stops at the first entry that reaches a limit, so at least one is encoded. Returns ``(buffers, next_position,
    bytes)``. Views among the buffers (of the door with frames alone) point into the arena: hold the log until they have reached
    the kernel."""
    stop = min(log.deliverable, position + limit_events)
    if position < log.known_from:
        log.fill(position, stop)
    if door is Door.FRAMED:
        return _encode_framed(log, position, stop, limit_bytes)
    key = (door, position, stop)
    if log.encoded is not None and log.encoded[0] == key and len(log.encoded[1]) <= limit_bytes:
        data = log.encoded[1]
        return [data], stop, len(data)
    data, position = _encode_each(door, log, position, stop, limit_bytes)
    if log.is_shared and position == stop and len(data) <= MAX_KEPT_BYTES:
        log.encoded = key, data
    return [data], position, len(data)


def _encode_each(door: Door, log: Log, position: int, stop: int, limit_bytes: int) -> tuple[bytes, int]:
    """Events one by one, as ids and bare doors need it; and the position behind the last."""
    blocks: list[bytes] = []
    total = 0
    while position < stop and total < limit_bytes:
        block = _block(door, log, position)
        if door & Door.FRAMED:
            block = _FRAME % (len(block), block)
        blocks.append(block)
        total += len(block)
        position += 1
    return b"".join(blocks), position


def end_bytes(door: Door) -> bytes:
    """What follows the last entry of a sealed log."""
    return LAST_CHUNK if door & Door.FRAMED else b""


def _block(door: Door, log: Log, position: int) -> bytes:
    """One event without framing, with its id where the door has ids."""
    block = log.block(position)
    if not door & Door.BARE_IDS:
        return block
    # An id of the engine's own, with data or without, would override ours, the one that a reader can come back with.
    if b"id" in block:
        block = _ENGINES_IDS.sub(b"", block)
    if log.entries[position] & SILENT:
        return block
    return _ID_LINE % (log.epoch_at(position), log.seq_at(position)) + block


def numbered(frame: bytes, epoch: int, seq: int) -> bytes:
    """What the door with frames and ids makes of a frame of one ``data:`` line (framer.py), which has no id of the engine's."""
    block = _ID_LINE % (epoch, seq) + frame[frame.index(b"\n") + 1 : -2]
    return _FRAME % (len(block), block)


def _encode_framed(log: Log, position: int, stop: int, limit_bytes: int) -> tuple[Buffers, int, int]:
    """The door of the hot path: whole runs of the arena go out as they lie there."""
    buffers: Buffers = []
    total = 0
    while position < stop and total < limit_bytes:
        following, start, length = log.run_of_frames(position, stop, limit_bytes - total)
        if following > position:
            buffers += log.upstream.slices(start, length)
        else:
            word = log.entries[position]
            length = word >> KIND_BITS & LENGTH_MASK
            if word & FRAMED:
                buffers += log.frame_views(position)
            else:
                size_line = b"%x\r\n" % length
                buffers.append(size_line)
                buffers += log.frame_views(position)
                buffers.append(b"\r\n")
                length += len(size_line) + 2
            following = position + 1
        position = following
        total += length
    return buffers, position, total
