"""Bringing logs up to date that have grown by a block, a few at a time.

What lives here: the line in which they wait. What must not: what is brought up to date (stream.py).

Streams that were begun together fill their blocks together. To count the events of a block takes as long as another event or
two on their way: of five hundred streams at one moment, and every event behind them is late. So the kernel goes on storing,
readers go on getting, and the index follows within a fraction of a second.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ..words.clock import Clock

if TYPE_CHECKING:
    from .stream import Stream

AT_ONCE = 4
"""About a hundred microseconds."""
SHARE = 16
"""Of a line that is longer, this part at a time: however fast blocks are filled, the line empties."""
STEP_S = 0.002
"""A few events go in between."""


class Settling:
    """Whoever is in line is settled soon, in order. One that has ended meanwhile has been settled by that."""

    __slots__ = ("_clock", "_line")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line: dict[Stream, None] = {}
        """In order, and each once: no longer than there are streams."""

    def __repr__(self) -> str:
        return f"<Settling, {len(self._line)} in line>"

    def add(self, stream: Stream) -> None:
        """Have a stream settled soon."""
        if not self._line:
            self._clock.call_later(STEP_S, self._step)
        self._line[stream] = None

    def _step(self) -> None:
        try:
            for stream in list(islice(self._line, max(AT_ONCE, len(self._line) // SHARE))):
                del self._line[stream]
                stream.settle()
        finally:
            # Whatever goes wrong with one is told to the loop, and the others have their turn all the same.
            if self._line:
                self._clock.call_later(STEP_S, self._step)
