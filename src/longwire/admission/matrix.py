"""The matrix: what every tenant uses, counted by every shard, in shared memory without a lock.

What lives here: where a count lies, how it is stored and read, and the sums over all shards.
What must not: limits and refusals (limiter.py), which tenant has which row (its index), clocks.

Every tenant has a row, and one row more is the gateway's own. A row has cells for each slot, and the shard of a slot is the
only one that writes them: so nobody waits and nobody's count is lost. A cell is one aligned 64-bit word, stored whole
through ``memoryview.cast('Q')`` (a struct's ``pack_into`` zeroes its target first). A sum over the slots is read cell by
cell: it may be older than the last store, and limiter.py says what that costs.

What is counted by the minute carries its minute in the same word, so that both change together. Even and odd minutes have a
cell each: nothing is moved when a minute is over, and a writer killed at any moment leaves no count twice or in the
wrong minute.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final, NamedTuple

LAYOUT_VERSION = 1
_MAGIC = b"LWMATRIX"
_HEADER = struct.Struct("<8sIIII")  # magic, layout version, tenants, slots, cells

MAX_SLOTS = 256
"""A stream's id has one byte for its slot."""

MAX_TENANTS = 1_000_000
"""With 16 slots a gigabyte of address space, of which only what is written takes memory; beyond it a number is a mistake."""

CELLS = 8
"""Words of each tenant and slot: a cache line, so that two shards never write the same one."""

LIVE: Final = 0
"""Streams that live now."""
REQUESTS: Final = 1
"""Requests of an even minute; those of an odd one are in the next cell."""
TOKENS: Final = 3
"""Tokens of an even minute; those of an odd one are in the next cell."""
HELD: Final = 5
"""Tokens that live streams may need for their contexts."""
RESERVED: Final = 6
"""Tokens that are kept for the tenant's reserved slots, used or not."""

COUNT_BITS = 32
MAX_COUNT = (1 << COUNT_BITS) - 1
"""Counts stay here instead of running over into the minute beside them."""

MINUTE_S = 60.0

_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 0x0002


class WrongLayout(Exception):
    """The memory is no matrix, or one that this version cannot read."""


class Use(NamedTuple):
    """What a tenant (or the gateway as a whole) uses at one moment, over all slots."""

    live_streams: int
    requests_per_min: float
    tokens_per_min: float
    held_tokens: int
    reserved_tokens: int


class Matrix:
    """Counts of ``tenants`` rows, and one more for the gateway as a whole, in ``slots`` columns of CELLS words."""

    __slots__ = ("_map", "_pitch", "fd", "gateway_row", "slots", "tenants", "words")

    def __init__(self, fd: int, tenants: int, slots: int) -> None:
        """Map what :meth:`create` or :meth:`attach` has found to be a matrix of this size; ``fd`` is ours from now on."""
        self.fd = fd
        self.tenants = tenants
        self.slots = slots
        self.gateway_row = tenants
        self._pitch = slots * CELLS
        self._map = mmap.mmap(fd, _size_bytes(tenants, slots))
        self.words = memoryview(self._map)[mmap.PAGESIZE :].cast("Q")

    @classmethod
    def create(cls, tenants: int, slots: int) -> Matrix:
        """A new matrix, all counts 0, in a memfd of its own.

        Raises:
            ValueError: for no or too many tenants or slots.
        """
        if not (1 <= tenants <= MAX_TENANTS and 1 <= slots <= MAX_SLOTS):
            raise ValueError(f"a matrix has 1 to {MAX_TENANTS} tenants and 1 to {MAX_SLOTS} slots")
        fd = os.memfd_create("longwire-matrix", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, _size_bytes(tenants, slots))
            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
            os.pwrite(fd, _HEADER.pack(_MAGIC, LAYOUT_VERSION, tenants, slots, CELLS), 0)
            return cls(fd, tenants, slots)
        except OSError:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Matrix:
        """The matrix behind a descriptor that another process has made and passed; it is the matrix' from now on.

        Raises:
            WrongLayout: it is none, or of another version; the descriptor stays the caller's.
        """
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise WrongLayout("This memory holds no matrix of tenants' counts.")
        _, version, tenants, slots, cells = _HEADER.unpack(header)
        if (version, cells) != (LAYOUT_VERSION, CELLS):
            raise WrongLayout(
                f"The matrix of tenants' counts has layout {version} with {cells} cells; this version of Longwire "
                f"reads layout {LAYOUT_VERSION} with {CELLS}."
            )
        if not (1 <= tenants <= MAX_TENANTS and 1 <= slots <= MAX_SLOTS):
            raise WrongLayout(f"The matrix of tenants' counts says that it has {tenants} tenants and {slots} slots.")
        if os.fstat(fd).st_size < _size_bytes(tenants, slots):
            raise WrongLayout("The matrix of tenants' counts is shorter than its header says.")
        return cls(fd, tenants, slots)

    def close(self) -> None:
        """Unmap; for tests and the end of the process."""
        self.words.release()
        self._map.close()
        os.close(self.fd)

    # One slot's cells: for its one writer.

    def index(self, row: int, slot: int) -> int:
        """Where in :attr:`words` the cells of a row and slot begin.

        Raises:
            IndexError: there is no such row or slot; a wrong place would be somebody else's count.
        """
        if not (0 <= row <= self.tenants and 0 <= slot < self.slots):
            raise IndexError(f"row {row} and slot {slot} in a matrix of {self.tenants} tenants and {self.slots} slots")
        return row * self._pitch + slot * CELLS

    def count(self, start: int, cell: int, minute: int, amount: int) -> None:
        """Add to a count by the minute; ``start`` is a row's and slot's :meth:`index`."""
        index = start + cell + (minute & 1)
        word = self.words[index]
        stored = word >> COUNT_BITS
        if stored < minute:
            word = 0
        # A later minute than ours was left by a writer whose clock was read later; time does not go back.
        count = min((word & MAX_COUNT) + amount, MAX_COUNT)
        self.words[index] = max(stored, minute) << COUNT_BITS | count

    def take_off(self, start: int, cell: int, minute: int, amount: int) -> None:
        """Take back what was counted in a minute, if that is still remembered."""
        index = start + cell + (minute & 1)
        word = self.words[index]
        if word >> COUNT_BITS == minute:
            self.words[index] = minute << COUNT_BITS | max(0, (word & MAX_COUNT) - amount)

    def reset(self, slot: int) -> None:
        """Forget the streams of a slot, in all rows: its shard is gone, and who takes them over counts them anew.

        What was counted by the minute stays: it was used, whoever counted it.
        """
        for row in range(self.tenants + 1):
            start = self.index(row, slot)
            self.words[start + LIVE] = 0
            self.words[start + HELD] = 0

    # Sums over all slots: for whoever asks.

    def total(self, row: int, cell: int) -> int:
        """A count over all slots."""
        start = self.index(row, 0) + cell
        words = self.words
        total = 0
        for index in range(start, start + self._pitch, CELLS):
            total += words[index]
        return total

    def window(self, row: int, cell: int, minute: int) -> tuple[int, int]:
        """What was counted in the minute before and in this one, over all slots."""
        start = self.index(row, 0) + cell
        words = self.words
        before = current = 0
        for index in range(start, start + self._pitch, CELLS):
            for word in (words[index], words[index + 1]):
                counted_in = word >> COUNT_BITS
                if counted_in >= minute:  # later: by a shard that has looked at the clock since we did
                    current += word & MAX_COUNT
                elif counted_in == minute - 1:
                    before += word & MAX_COUNT
        return before, current

    def use(self, row: int, now: float) -> Use:
        """What a row's tenant uses now (``now`` as the shards' clocks have it)."""
        return Use(
            live_streams=self.total(row, LIVE),
            requests_per_min=in_window(*self.window(row, REQUESTS, minute_of(now)), now),
            tokens_per_min=in_window(*self.window(row, TOKENS, minute_of(now)), now),
            held_tokens=self.total(row, HELD),
            reserved_tokens=self.total(row, RESERVED),
        )

    def statistics(self) -> dict[str, int]:
        """Its size, and the live streams of all slots."""
        return {"tenants": self.tenants, "slots": self.slots, "live_streams": self.total(self.gateway_row, LIVE)}

    def __repr__(self) -> str:
        return f"<Matrix {self.tenants} tenants x {self.slots} slots, {self.total(self.gateway_row, LIVE)} streams>"


def minute_of(now: float) -> int:
    """The minute that a moment lies in."""
    return int(now // MINUTE_S)


def in_window(before: int, current: int, now: float) -> float:
    """What the last 60 seconds hold: this minute's count, and of the minute before the part that is not yet so long ago."""
    return before * (1.0 - now % MINUTE_S / MINUTE_S) + current


def _size_bytes(tenants: int, slots: int) -> int:
    return mmap.PAGESIZE + (tenants + 1) * slots * CELLS * 8
