"""The arena: one piece of shared memory, cut into blocks, into which sockets are read and out of which they are written.

What lives here: taking and giving back blocks, chains of blocks, and the account of who holds how many.
What must not: what the bytes mean (log.py), any socket, any knowledge of HTTP.

The memory is a memfd sealed against shrinking, so that another process can map it and a truncation cannot kill either.
A block is linked into its chain before it is handed out, and is filled to its last byte before the next is taken: an
offset in a chain is found by division, and a process that takes over finds the bytes that the kernel had already
stored.

A transport keeps the memoryview that it was given, so a log counts its holders (log.py): itself, and every reader until
its bytes have wholly reached the kernel. Only then do the blocks go back: one recycled too early would send one
tenant's bytes to another.

Over 400 lines: blocks and the chains of them are one account, and each keeps to what the other promises.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Self

from ..words.faultpoint import reach
from .shared import LayoutMismatch, make_memory

BLOCK_BYTES = 16 * 1024
"""Four pages: a short answer takes one block and touches only the pages it fills; a long one costs a read call per 16 KiB."""
BLOCK_SHIFT = BLOCK_BYTES.bit_length() - 1
OFFSET_MASK = BLOCK_BYTES - 1

RESERVE_BLOCKS = 64
"""Blocks that only streams under way may take. New work is refused before the arena is wholly full, so that what runs
can go on."""

PAUSE_BLOCKS = 16
"""Below so many free blocks upstreams are not read any more: what was received already may still need records of its own."""

WAKE_BLOCKS = 2 * PAUSE_BLOCKS
"""So many must be free before a stream that waits goes on: at the mark where it stopped it would stop again after one block."""

LAYOUT_VERSION = 2
_MAGIC = b"LWARENA1"
_HEADER = struct.Struct("<8sIIQ")
_PAGE = mmap.PAGESIZE
_NO_BLOCK = 0

_EMPTY = memoryview(b"")


class ArenaFull(Exception):
    """No block is free. Reading pauses, or a new stream is refused; nothing is ever dropped."""


class Use(IntEnum):
    """What a block is held for, for the account."""

    LOG = 0
    RECORDS = 1
    REQUEST = 2
    INPUT = 3


_FLOOR_FIRST = (0, 0, PAUSE_BLOCKS, PAUSE_BLOCKS // 2)
_FLOOR_MORE = (0, 0, PAUSE_BLOCKS, RESERVE_BLOCKS)
"""By use: how many blocks must stay free when a chain takes its first, and when it takes more. What streams under way must
still say goes before all. A short request is heard almost to the end: it may be a reader that comes back, or a cancel."""


class Arena:
    """Blocks of shared memory.

    ``arena_bytes`` is rounded up to whole blocks. Block numbers start at 1, so that 0 in a link means "none".
    """

    def __init__(self, arena_bytes: int, fd: int | None = None) -> None:
        count = max(RESERVE_BLOCKS + 1, -(-arena_bytes // BLOCK_BYTES))
        links_bytes = -(-(4 * (count + 1)) // _PAGE) * _PAGE
        self.blocks = count
        # Block n starts at base + n * BLOCK_BYTES; block 0's place is taken by the header and links.
        self._base = -(-(_PAGE + links_bytes) // BLOCK_BYTES) * BLOCK_BYTES - BLOCK_BYTES
        total = self._base + (count + 1) * BLOCK_BYTES
        self.fd = make_memory("arena", total) if fd is None else fd
        self.map = mmap.mmap(self.fd, total)
        self.view = memoryview(self.map)
        self.view[: _HEADER.size] = _HEADER.pack(_MAGIC, LAYOUT_VERSION, BLOCK_BYTES, count)
        self.links = self.view[_PAGE : _PAGE + 4 * (count + 1)].cast("I")
        self._warm: list[int] = []
        self._fresh = 1
        self._walked: dict[int, array[int]] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_waking = False
        self.used = [0] * len(Use)

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """The arena that another process has made, with every block free until :meth:`claim` says otherwise.

        Raises:
            LayoutMismatch: the memory is not of this version's making.
        """
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size or header[: len(_MAGIC)] != _MAGIC:
            raise LayoutMismatch("this memory is no arena")
        _, layout, block_bytes, count = _HEADER.unpack(header)
        if (layout, block_bytes) != (LAYOUT_VERSION, BLOCK_BYTES):
            raise LayoutMismatch(f"the arena has layout {layout} with blocks of {block_bytes} bytes")
        return cls(count * BLOCK_BYTES, fd)

    def __repr__(self) -> str:
        return f"<Arena {self.blocks - self.free_blocks} of {self.blocks} blocks used>"

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._warm) + self.blocks + 1 - self._fresh

    @property
    def has_room(self) -> bool:
        """Whether new work may begin; what runs already may still take the reserve."""
        return self.free_blocks > RESERVE_BLOCKS

    def position(self, block: int) -> int:
        """Where a block starts in :attr:`view`."""
        return self._base + block * BLOCK_BYTES

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for blocks."""
        return bool(self._waiting)

    def available(self, use: Use, *, more: bool) -> int:
        """How many blocks may be taken for a use; ``more``: by a chain that has one already."""
        return max(0, self.free_blocks - (_FLOOR_MORE if more else _FLOOR_FIRST)[use])

    def take(self, use: Use, after: int = _NO_BLOCK) -> int:
        """Take a block, linked behind ``after`` before anyone can write to it.

        Raises:
            ArenaFull: none is free for this use.
        """
        if not self.available(use, more=after != _NO_BLOCK):
            raise ArenaFull
        if self._warm:
            block = self._warm.pop()
        else:
            block = self._fresh
            self._fresh += 1
        self.links[block] = _NO_BLOCK
        if after:
            self.links[after] = block
        self.used[use] += 1
        return block

    def give(self, blocks: array[int], use: Use) -> None:
        """Give blocks back, and wake whoever waits for one."""
        self.used[use] -= len(blocks)
        self._warm.extend(blocks)
        if self._waiting:
            self.wake(WAKE_BLOCKS)

    def when_free(self, call: Callable[[], None]) -> None:
        """Call once when blocks have become free. The call may find them taken again and must then ask anew."""
        self._waiting.append(call)

    def wake(self, least_free: int) -> None:
        """Call those who wait, in order, while so many blocks are free. Whoever is called may give blocks back, too."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            for _ in range(len(self._waiting)):
                if self.free_blocks < least_free:
                    break
                self._waiting.popleft()()
        finally:
            self._is_waking = False

    def claim(self, firsts: Iterable[int]) -> None:
        """Take the chains that begin with these blocks out of the free ones; for a process that has attached itself.

        All of them must be named before any block is taken. Whoever goes on with a chain finds it with :meth:`walk`.
        """
        for first in firsts:
            if 0 < first <= self.blocks and first not in self._walked:
                self._walked[first] = self.walk(first)
        used = bytearray(self.blocks + 1)
        for blocks in self._walked.values():
            for block in blocks:
                used[block] = 1
        self._fresh = used.rfind(1) + 1 or 1
        self._warm = [block for block in range(1, self._fresh) if not used[block]]

    def claimed(self, first: int, use: Use) -> array[int]:
        """The blocks of a chain that is gone on with, counted for its use from now on."""
        blocks = self._walked.pop(first, None) or self.walk(first)
        self.used[use] += len(blocks)
        return blocks

    def free_unclaimed(self) -> None:
        """Give back the chains that were claimed and that nobody went on with."""
        for blocks in self._walked.values():
            self._warm.extend(blocks)
        self._walked.clear()

    def walk(self, first: int) -> array[int]:
        """The block numbers of a chain, from its links: how a process that takes over finds it."""
        blocks = array("I")
        while first and len(blocks) <= self.blocks:
            blocks.append(first)
            first = self.links[first]
        return blocks

    def statistics(self) -> dict[str, int]:
        """``blocks`` in all, ``free``, and the number held for each use."""
        return {"blocks": self.blocks, "free": self.free_blocks, **{use.name.lower(): self.used[use] for use in Use}}

    def close(self) -> None:
        """Unmap. Only for tests and the end of the process: views into the arena must be gone."""
        self.links.release()
        self.view.release()
        self.map.close()
        os.close(self.fd)


class Chain:
    """Bytes in a list of blocks, appended at the end; offset 0 is the first byte of the first block.

    ``rest`` is the free rest of the last block, where the next bytes may be stored: never empty while not ``is_full``.
    With ``on_full``, a chain that finds no block calls it, stands still
    (:attr:`is_full`) and waits for :meth:`extend`. ``stored`` (first block, bytes) takes over a chain that another
    process has begun."""

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
            self.blocks = arena.claimed(first, use)
            self._seek(end)
            if not self.rest:
                self._extend_or_wait()

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

    def rewind(self) -> None:
        """Forget every byte. The first block stays; nobody may hold a view of any."""
        surplus = self.blocks[1:]
        del self.blocks[1:]
        self._arena.links[self.first] = _NO_BLOCK
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
        surplus = self.blocks[need:]
        del self.blocks[need:]
        self._arena.links[self.blocks[-1]] = _NO_BLOCK
        for index, block in enumerate(self.blocks):
            part = data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
            start = self._arena.position(block)
            self._view[start : start + len(part)] = part
        self._seek(len(data))
        self._arena.give(surplus, self.use)

    def give(self) -> None:
        """Give the blocks back. Whoever counts holders (Log) calls this once, when the last is gone."""
        assert len(self.blocks), "the chain's blocks were given back already"
        blocks, self.blocks = self.blocks, array("I")
        self.rest = _EMPTY
        self.on_full = None  # it leads back to who holds the chain: a cycle that only the collector would find
        self._arena.give(blocks, self.use)
