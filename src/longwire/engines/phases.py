"""How far an answer has been read, and what was asked for.

What lives here: two enums, and which heads are those of an answer. What must not: what follows from them (exchange.py).
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """How far the answer has been read."""

    HEAD = 0
    EVENTS = 1
    BODY = 2
    REFUSAL = 3
    OVER = 4


class Expect(IntEnum):
    """What the request asked for."""

    EVENTS = 0
    JSON = 1
    ANY = 2

    def is_met_by(self, status: int, media_type: bytes) -> bool:
        """Whether a response with this head is what was asked for."""
        if status >= 300:
            return False
        if self is Expect.ANY:
            return True
        if self is Expect.EVENTS:
            return status != 204 and media_type == b"text/event-stream"
        return status != 204 and media_type.endswith(b"json")
