"""Chains: bytes in a list of blocks, which the kernel fills and from which sockets are written.

What lives here: appending, reading, and the place of an offset. What must not: which blocks are free (arena.py), what the bytes
mean (log.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Self

from ..words.faultpoint import reach
from .arena import BLOCK_BYTES, BLOCK_SHIFT, NO_BLOCK, OFFSET_MASK, PAUSE_BLOCKS, Arena, ArenaFull, Use

_EMPTY = memoryview(b"")


class Chain:
    """Bytes in a list of blocks, appended at the end; offset 0 is the first byte of the first block.

    ``rest`` is the free rest of the last block, where the next bytes may be stored: never empty while not ``is_full``. With
    ``on_full``, a chain that finds no block calls it, stands still (:attr:`is_full`) and waits for :meth:`extend`. ``stored``
    (first block, bytes) takes over a chain that another process has begun, and may find it full."""

    __slots__ = ("_arena", "_view", "blocks", "is_full", "on_full", "rest", "use")

    def __init__(
        self, arena: Arena, use: Use, on_full: Callable[[], None] | None = None, stored: tuple[int, int] | None = None
    ) -> None:
        self._arena = arena
        self._view = arena.view
        self.use = use
        self.is_full = False
        self.on_full = on_full
        self.rest = _EMPTY
        if stored is None:
            self.blocks = array("I", (arena.take(use),))
            self._seek(0)
        else:
            first, end = stored
            self.blocks = arena.claimed(first, use, end)
            if use in (Use.RECORDS, Use.REQUEST):
                self._cut(end)
            self._seek(end)
            self.is_full = not self.rest  # whoever stores more extends it first, and waits if there is no block

    @classmethod
    def holding(cls, arena: Arena, use: Use, data: bytes) -> Self:
        """A chain that begins with these bytes.

        Raises:
            ArenaFull: there is no room; nothing is held.
        """
        chain = cls(arena, use)
        try:
            chain.append(data)
        except ArenaFull:
            chain.give()
            raise
        return chain

    def __repr__(self) -> str:
        return f"<Chain {self.use.name.lower()} {self.end} bytes in {len(self.blocks)} blocks>"

    def _seek(self, end: int) -> None:
        """Point ``rest`` at offset ``end``."""
        index, offset = divmod(end, BLOCK_BYTES)
        if index == len(self.blocks):  # the last block is exactly full and its successor could not be taken yet
            self.rest = _EMPTY
            return
        start = self._arena.position(self.blocks[index])
        self.rest = self._view[start + offset : start + BLOCK_BYTES]

    @property
    def end(self) -> int:
        """Bytes stored so far: the offset of the next. It follows from what is left of the last block."""
        return len(self.blocks) * BLOCK_BYTES - len(self.rest)

    @property
    def first(self) -> int:
        """The number of the first block, from which the links lead to all others."""
        return self.blocks[0]

    def filled(self, count: int) -> None:
        """``count`` bytes were stored at the start of ``rest``. A full block gets its successor at once.

        Raises:
            ArenaFull: the bytes are stored, but no block is free and nobody is there to wait for one.
        """
        self.rest = self.rest[count:]
        if not self.rest:
            self._extend_or_wait()

    def _extend_or_wait(self) -> None:
        if self.on_full is None:
            self.extend()
        elif self._arena.free_blocks < PAUSE_BLOCKS:
            self.is_full = True
            self.on_full()
        else:
            self.extend()

    def extend(self) -> None:
        """Link the next block where the last one is full.

        Raises:
            ArenaFull: none is free; call again when one is.
        """
        if not self.rest:
            end = self.end
            self.blocks.append(self._arena.take(self.use, self.blocks[-1]))
            if len(self.blocks) > 2 and self.use is Use.LOG:
                # What is behind by a whole block was sent, or waits for a slow reader.
                self._arena.let_go_of(self.blocks[-3])
            reach("block_crossing")
            self._seek(end)
        self.is_full = False

    def append(self, data: bytes) -> int:
        """Copy ``data`` to the end; return the offset of its first byte.

        Raises:
            ArenaFull: nothing was stored: the blocks are taken before the first byte is written.
        """
        start = self.end
        need = (start + len(data) + BLOCK_BYTES) // BLOCK_BYTES - len(self.blocks)
        if need > self._arena.available(self.use, more=True):
            raise ArenaFull
        self.extend()
        at = 0
        while at < len(data):
            room = min(len(self.rest), len(data) - at)
            self.rest[:room] = data[at : at + room]
            self.rest = self.rest[room:]
            self.extend()
            at += room
        return start

    def slices(self, start: int, length: int) -> list[memoryview]:
        """Views of ``length`` bytes from offset ``start``: one, or more where they cross blocks."""
        offset = start & OFFSET_MASK
        index = start >> BLOCK_SHIFT
        position = self._arena.position(self.blocks[index]) + offset
        if offset + length <= BLOCK_BYTES:
            return [self._view[position : position + length]]
        views = []
        while length:
            part = min(length, BLOCK_BYTES - offset)
            position = self._arena.position(self.blocks[index]) + offset
            views.append(self._view[position : position + part])
            length -= part
            offset = 0
            index += 1
        return views

    def read(self, start: int, length: int) -> bytes:
        """A copy of ``length`` bytes from offset ``start``."""
        return b"".join(self.slices(start, length))

    def find_end(self, least: int) -> int:
        """Where the stored bytes end, by what lies there: behind them all is zero. At least ``least``."""
        for index in range(len(self.blocks) - 1, -1, -1):
            base = self._arena.position(self.blocks[index])
            if left := bytes(self._view[base : base + BLOCK_BYTES]).rstrip(b"\0"):
                return max(least, index * BLOCK_BYTES + len(left))
        return least

    def go_to(self, end: int) -> None:
        """Be so many bytes long, which are there already."""
        self._seek(end)
        self.is_full = not self.rest

    def _cut(self, end: int) -> None:
        """Forget what lies behind the end: whoever has died was about to append it, and had told nobody. The bytes that the
        kernel stores are never ahead of the blocks that they need."""
        need = end // BLOCK_BYTES + 1
        surplus = self.blocks[need:]
        del self.blocks[need:]
        self._arena.links[self.blocks[-1]] = NO_BLOCK
        self._arena.wipe_later([self.blocks[-1], *surplus])
        self._arena.give(surplus, self.use)

    def _wipe_from(self, start: int) -> None:
        """Zero all bytes from an offset on."""
        end = self.end
        for index in range(start >> BLOCK_SHIFT, len(self.blocks)):
            first = index << BLOCK_SHIFT
            if end > max(start, first):
                self._arena.wipe(self.blocks[index], max(0, start - first), min(BLOCK_BYTES, end - first))

    def rewind(self) -> None:
        """Forget every byte. The first block stays; nobody may hold a view of any."""
        self._wipe_from(0)
        surplus = self.blocks[1:]
        del self.blocks[1:]
        self._arena.links[self.first] = NO_BLOCK
        self.is_full = False
        self._seek(0)
        self._arena.give(surplus, self.use)

    def replace(self, data: bytes) -> None:
        """Store ``data`` in place of all that was stored. Where that is no longer than before, it takes no block.

        Raises:
            ArenaFull: it is longer, and there is no room; nothing is stored any more.
        """
        need = len(data) // BLOCK_BYTES + 1
        if need > len(self.blocks):
            self.rewind()
            self.append(data)
            return
        self._wipe_from(len(data))
        surplus = self.blocks[need:]
        del self.blocks[need:]
        self._arena.links[self.blocks[-1]] = NO_BLOCK
        for index, block in enumerate(self.blocks):
            part = data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
            start = self._arena.position(block)
            self._view[start : start + len(part)] = part
        self._seek(len(data))
        self._arena.give(surplus, self.use)

    def give(self) -> None:
        """Give the blocks back. Whoever counts holders (Log) calls this once, when the last is gone."""
        assert len(self.blocks), "the chain's blocks were given back already"
        self._wipe_from(0)
        blocks, self.blocks = self.blocks, array("I")
        self.rest = _EMPTY
        self.on_full = None  # it leads back to who holds the chain: a cycle that only the collector would find
        self._arena.give(blocks, self.use)
