"""A body that is no stream of events: a whole answer, or the words of a refusal.

What lives here: where the body's bytes lie in what was received, where it ends, and which entries it becomes.
What must not: heads and what an ending means (exchange.py), events (wire/framer.py).
"""

from __future__ import annotations

from ..wire.chunked import ChunkedDecoder, ChunkedError
from ..words.events import MAX_ENTRY_BYTES
from .base import Sink


class Body:
    """Finds a body's bytes. Where it is neither ``chunked`` nor has a ``length``, it ends with its connection."""

    __slots__ = ("_decoder", "_left", "done", "has_surplus")

    def __init__(self, chunked: bool, length: int | None) -> None:
        self._decoder = ChunkedDecoder() if chunked else None
        self._left = length
        self.done = length == 0
        self.has_surplus = False
        """Bytes came behind its end: the engine is out of step with us, and its connection must not be used again."""

    @property
    def is_within_chunk(self) -> bool:
        """More of the same HTTP chunk is to come."""
        return self._decoder is not None and self._decoder.is_in_data

    def feed(self, data: bytes) -> tuple[list[tuple[int, int]], ChunkedError | None]:
        """``(start, end)`` of each run of body bytes in ``data``, and what was wrong behind them."""
        if self._decoder is None:
            return self._feed_plain(data), None
        try:
            spans = self._decoder.feed(data)
        except ChunkedError as exc:
            return exc.spans, exc
        self.done = self._decoder.done
        self.has_surplus = self.done and self._decoder.consumed < len(data)
        return spans, None

    def _feed_plain(self, data: bytes) -> list[tuple[int, int]]:
        taken = len(data)
        if self._left is not None:
            taken = min(self._left, taken)
            self._left -= taken
            self.done = not self._left
            self.has_surplus = taken < len(data)
        return [(0, taken)] if taken else []


class Pieces:
    """The entries that a body becomes: one per HTTP chunk of the engine's, or one per read where it sends none."""

    __slots__ = ("_length", "_ready", "_start")

    def __init__(self) -> None:
        self._start = 0
        self._length = 0
        self._ready: list[tuple[int, int]] = []

    def add(self, start: int, length: int, *, ends: bool) -> None:
        """Bytes of the body at offset ``start`` of the upstream's; ``ends``: their piece is whole with them."""
        if not self._length:
            self._start = start
        self._length += length
        if ends or self._length >= MAX_ENTRY_BYTES >> 1:
            self.close()

    def close(self) -> None:
        """The open piece, if there is one, is whole."""
        if self._length:
            self._ready.append((self._start, self._length))
            self._length = 0

    def pass_on(self, sink: Sink) -> None:
        """Append what is whole."""
        for start, length in self._ready:
            sink.append_plain(start, length)
        self._ready.clear()
