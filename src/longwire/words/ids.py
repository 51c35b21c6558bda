"""Stream ids and cursors.

What lives here: how a stream is named (unguessable) and how a place in it is written and read.
What must not: where streams are kept (streams), how a cursor arrives in a request (server).

A cursor is ``<epoch>-<seq>``: short, sortable within an epoch, and of characters that need no CORS preflight when a browser
sends it as ``Last-Event-ID`` (WHATWG HTML 9.2; anything over 128 bytes or outside the safe set would).
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from .errors import BadCursor

RANDOM_BYTES = 16
"""128 random bits: guessing one of a million live ids takes 2^108 tries."""

STREAM_ID_BYTES = RANDOM_BYTES + 1
"""The last byte is the slot whose shard keeps the stream: any other shard knows from the id alone whom to ask."""

MAX_SLOTS = 256
"""What a byte can name: one shard per core of the largest machines there are."""

STREAM_ID_PREFIX = "lw_"
_STREAM_ID = re.compile(r"lw_([0-9a-f]{34})\Z")
_CURSOR = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,15})\Z")
MAX_CURSOR_CHARS = 32


class Cursor(NamedTuple):
    """The last event that a reader has: the next one it gets is ``seq + 1``. ``epoch`` 0 means "any"."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"


BEFORE_FIRST = Cursor(0, -1)
"""The cursor of a reader that has nothing yet."""


class Place(NamedTuple):
    """Which process this is: ``slot`` of ``slots``, and the ``incarnation``, a number that no other process of this gateway
    has or had."""

    slot: int = 0
    slots: int = 1
    incarnation: int = 1


def make_stream_id(slot: int = 0) -> bytes:
    """A fresh stream id as raw bytes (17), kept by the shard of ``slot``."""
    return secrets.token_bytes(RANDOM_BYTES) + bytes((slot,))


def slot_of(raw: bytes) -> int:
    """The slot whose shard keeps the stream with this raw id."""
    return raw[RANDOM_BYTES]


def format_stream_id(raw: bytes) -> str:
    """``lw_`` and 34 hex digits."""
    return STREAM_ID_PREFIX + raw.hex()


def parse_stream_id(text: str) -> bytes | None:
    """The raw id, or None where the text cannot be one (which callers treat like an unknown id)."""
    match = _STREAM_ID.match(text)
    return bytes.fromhex(match[1]) if match else None


def parse_cursor(text: str) -> Cursor:
    """Read ``<epoch>-<seq>``, a bare ``<seq>``, or ``-1`` and the empty string for "from the start".

    Raises:
        BadCursor: for anything else. A client that sends garbage must hear of it; replaying everything (or nothing) instead
            would double or lose tokens.
    """
    if text in ("", "-1"):
        return BEFORE_FIRST
    match = _CURSOR.match(text) if len(text) <= MAX_CURSOR_CHARS else None
    if match is None:
        raise BadCursor("The cursor must be <epoch>-<seq>, as in the id lines of the stream.", param="after")
    return Cursor(int(match[1] or 0), int(match[2]))
