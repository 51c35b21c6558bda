"""How far an answer has been read, and what was asked for.

What lives here: two enums. What must not: what follows from them (exchange.py).
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
