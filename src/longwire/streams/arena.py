"""The arena: one piece of shared memory, cut into blocks, into which sockets are read and out of which they are written.

What lives here: taking and giving back blocks, and the account of who holds how many.
What must not: what the bytes mean (log.py), any socket, any knowledge of HTTP.

The memory is a memfd sealed against shrinking, so that another process can map it and a truncation cannot kill either.
A block is linked into its chain before it is handed out, and is filled to its last byte before the next is taken: an
offset in a chain is found by division, and a process that takes over finds the bytes that the kernel had already
stored.

A transport keeps the memoryview that it was given, so a log counts its holders (log.py): itself, and every reader until
its bytes have wholly reached the kernel. Only then do the blocks go back: one recycled too early would send one
tenant's bytes to another. And what goes back is wiped, so that behind the last byte of a chain there is nothing: where no
counter tells how much was received before a process died, that does (:meth:`Chain.find_end`). Chains whose length a row tells
may have something behind their end when they are taken over; it is wiped before their blocks are taken again.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum

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

LAYOUT_VERSION = 3
_MAGIC = b"LWARENA1"
_HEADER = struct.Struct("<8sIIQ")
_PAGE = mmap.PAGESIZE
NO_BLOCK = 0

_TOUCHED = 7
"""The word of the first page that says which block was taken last of all: the kernel gives those behind it as zeros."""

_EMPTY = memoryview(b"")
_ZEROS = bytes(BLOCK_BYTES)


WARM_FLOOR_BLOCKS = 1024
"""16 MiB stay in memory however idle they are: taking a warm block costs a microsecond, a cold one fifty."""

TRIM_BLOCKS = 128
"""Given back to the system in one step: 2 MiB, less than a millisecond where they lie side by side."""


class ArenaFull(Exception):
    """No block is free. Reading pauses, or a new stream is refused; nothing is ever dropped."""


class BrokenChain(Exception):
    """Stored blocks are not what a row says of them: whatever they hold, it cannot be told whose it is."""


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
        self._head = self.view[:_PAGE].cast("Q")
        self.links = self.view[_PAGE : _PAGE + 4 * (count + 1)].cast("I")
        self._warm: list[int] = []
        self._cold: list[int] = []
        self._least_warm = 0
        self._fresh = 1
        self._walked: dict[int, array[int]] = {}
        self._unwiped: set[int] = set()
        """Blocks, free or in use, in which something may lie that their chain does not hold: wiped when they are taken."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_waking = False
        self.used = [0] * len(Use)

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """The arena that another process has made, with every block free until :meth:`claim` says otherwise.

        Raises:
            LayoutMismatch: the memory is not of this version's making.
        """
        return cls(cls.check(fd) * BLOCK_BYTES, fd)

    @staticmethod
    def check(fd: int) -> int:
        """How many blocks an arena has that another process has made; nothing of it is touched. Raises as :meth:`attach`."""
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size or header[: len(_MAGIC)] != _MAGIC:
            raise LayoutMismatch("this memory is no arena")
        _, layout, block_bytes, count = _HEADER.unpack(header)
        if (layout, block_bytes) != (LAYOUT_VERSION, BLOCK_BYTES):
            raise LayoutMismatch(
                f"the arena has layout {layout} with blocks of {block_bytes} bytes, and this version reads layout "
                f"{LAYOUT_VERSION} with blocks of {BLOCK_BYTES}"
            )
        return int(count)

    def __repr__(self) -> str:
        return f"<Arena {self.blocks - self.free_blocks} of {self.blocks} blocks used>"

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._warm) + len(self._cold) + self.blocks + 1 - self._fresh

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

    def take(self, use: Use, after: int = NO_BLOCK) -> int:
        """Take a block, linked behind ``after`` before anyone can write to it.

        Raises:
            ArenaFull: none is free for this use.
        """
        if not self.available(use, more=after != NO_BLOCK):
            raise ArenaFull
        if self._warm:
            block = self._warm.pop()
            if len(self._warm) < self._least_warm:
                self._least_warm = len(self._warm)
        elif self._cold:
            block = self._cold.pop()
        else:
            block = self._fresh
            self._fresh += 1
            self._head[_TOUCHED] = max(self._head[_TOUCHED], block)
        if self._unwiped and block in self._unwiped:
            self._unwiped.discard(block)
            self.wipe(block, 0, BLOCK_BYTES)
        self.links[block] = NO_BLOCK
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

    def trim(self) -> int:
        """Give memory back to the system whose blocks nobody has needed since the last call; how many blocks it was.

        The least number of warm blocks in between is what was never needed. They are taken from the end that is reused last.
        """
        idle = min(self._least_warm - WARM_FLOOR_BLOCKS, TRIM_BLOCKS)
        self._least_warm = len(self._warm)
        if idle <= 0:
            return 0
        blocks, self._warm[:idle] = sorted(self._warm[:idle]), []
        self._least_warm -= idle
        start = blocks[0]
        for block, following in zip(blocks, [*blocks[1:], 0], strict=True):
            if following != block + 1:  # one call for each run of neighbours
                self.map.madvise(mmap.MADV_REMOVE, self.position(start), (block + 1 - start) * BLOCK_BYTES)
                start = following
        self._cold.extend(blocks)
        return idle

    def let_go_of(self, block: int) -> None:
        """Nobody will look at a block soon: take its pages out of this process's page tables. What they hold stays.

        What a process had mapped is torn down before anyone hears of its death, and gigabytes take a part of the pause.
        """
        self.map.madvise(mmap.MADV_DONTNEED, self.position(block), BLOCK_BYTES)

    def wipe(self, block: int, start: int, stop: int) -> None:
        """Zero these bytes of a block."""
        base = self.position(block)
        self.view[base + start : base + stop] = _ZEROS[: stop - start]

    def wipe_later(self, blocks: Iterable[int]) -> None:
        """Something may lie in these behind what their chain holds: it is wiped before they are taken again. To do it now would
        touch every page of a thousand blocks in the pause of an adoption."""
        self._unwiped.update(blocks)

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

        All of them must be named before any block is taken. A block that two chains have, or one twice, may hold either's
        bytes: no such chain can be gone on with (:meth:`claimed`), and neither can one whose links lead out of the arena.
        """
        links, owner = array("I", self.links.tobytes()), array("I", bytes(4 * (self.blocks + 1)))
        named, broken = [NO_BLOCK], set()
        for first in filter(None, firsts):
            number = len(named)
            named.append(first)
            blocks, block = array("I"), first
            while block:
                if block > self.blocks or owner[block]:
                    broken |= {number, owner[block] if block <= self.blocks else number}
                    break
                owner[block] = number
                blocks.append(block)
                block = links[block]
            self._walked.setdefault(first, blocks)
        for number in broken:
            for block in self._walked.pop(named[number], ()):
                owner[block] = 0
        self._fresh = max(1, -(-len(owner.tobytes().rstrip(b"\0")) // owner.itemsize))
        self._warm = [block for block in range(1, self._fresh) if not owner[block]]
        # Whoever died may have been about to wipe one, or to name one in a row.
        touched = max(min(self._head[_TOUCHED], self.blocks), self._fresh - 1)
        self._unwiped = {*self._warm, *range(self._fresh, touched + 1)}

    def claimed(self, first: int, use: Use, end: int) -> array[int]:
        """The blocks of a chain of ``end`` bytes that is gone on with, counted for its use from now on.

        Raises:
            BrokenChain: it was not claimed, was gone on with already, or has fewer bytes.
        """
        if end > len(self._walked.get(first, ())) * BLOCK_BYTES or first not in self._walked:
            raise BrokenChain(f"there is no chain of {end} bytes at block {first}")
        blocks = self._walked.pop(first)
        self.used[use] += len(blocks)
        return blocks

    def free_unclaimed(self) -> None:
        """Give back the chains that were claimed and that nobody went on with."""
        for blocks in self._walked.values():
            self._unwiped.update(blocks)
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
        self._head.release()
        self.links.release()
        self.view.release()
        self.map.close()
        os.close(self.fd)
