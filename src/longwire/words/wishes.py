"""What a request may wish for the clocks of its own generation.

What lives here: the names, as a client writes them, and what a number of each means.
What must not: reading the header (server/timeouts.py), what becomes of a wish (engines/clocks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FIRST_BYTE: Final = "first-byte"
FIRST_TOKEN: Final = "first-token"
SILENCE: Final = "silence"
TOTAL: Final = "total"
MIN_RATE: Final = "min-rate"
"""Tokens per second, and the only one that is no time; 0: any."""

WISHES: Final = (FIRST_BYTE, FIRST_TOKEN, SILENCE, TOTAL, MIN_RATE)
"""All of them. Times are seconds; 0 is the longest that there may be."""

NO_WISHES: Final[Mapping[str, float]] = MappingProxyType({})
"""What most requests wish."""
