"""How an event is written down: one 64-bit word that says where its bytes lie.

What lives here: the packing of that word, the kinds of entries of a stream's event index, and the form of a framed one.
What must not: the bytes themselves (arena), how they were found (wire), who reads them (streams).

An entry of the index is ``start << 28 | length << 3 | kind``: 36 bits of offset in its chain (64 GiB a stream), 25 bits of
length (32 MiB an event), 3 bits of kind. One integer per event, so that appending one is a single ``array.append``.
"""

from __future__ import annotations

KIND_BITS = 3
LENGTH_BITS = 25
START_SHIFT = KIND_BITS + LENGTH_BITS
LENGTH_MASK = (1 << LENGTH_BITS) - 1
KIND_MASK = (1 << KIND_BITS) - 1

MAX_ENTRY_BYTES = LENGTH_MASK

# Kinds are three independent bits.
FRAMED = 1
"""The bytes are a whole HTTP chunk (size line, event, CRLF) already: they can go out as they are."""
RECORD = 2
"""The bytes lie in the gateway records' chain, not among the upstream's bytes."""
SILENT = 4
"""The entry has no seq: a comment or a heartbeat. It is sent, but no cursor ever points at it."""

FRAME_END = b"\n\n\r\n"
"""Where a framed event ends. A single-line event has an empty line nowhere else, and a carriage return never."""


def pack(start: int, length: int, kind: int) -> int:
    """Pack an entry. ``start`` is an offset in bytes in its chain, ``length`` in bytes."""
    return start << START_SHIFT | length << KIND_BITS | kind


def framed_bytes(body_bytes: int) -> int:
    """Length of the HTTP chunk that carries ``body_bytes`` (> 0) bytes: digits, CRLF, body, CRLF."""
    return ((body_bytes.bit_length() + 3) >> 2) + 4 + body_bytes


def size_line_bytes(frame_bytes: int) -> int:
    """Length of the size line (digits and CRLF) of a canonical HTTP chunk that is ``frame_bytes`` long in all.

    Inverse of :func:`framed_bytes`: a chunk of n bytes has d hex digits without leading zeros, so d follows from the total.
    """
    for digits in range(1, 9):
        body = frame_bytes - 4 - digits
        if body > 0 and 4 * digits - 4 < body.bit_length() <= 4 * digits:
            return digits + 2
    raise ValueError(f"no canonical HTTP chunk is {frame_bytes} bytes long")
