"""An index whose beginning is not known yet: that of a log which was taken over.

What lives here: entries of which the first are only counted, and take no memory. What must not: how they are found
(rereading.py), what an entry says (words.events).

An array with zeros in their place would do the same. But to touch 64 KB for each of a thousand long logs lengthens the pause.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import chain, repeat


class LateEntries:
    """In place of the ``array("Q")`` of a log, until somebody asks for all of it: mostly to the end of its stream. The first
    ``count`` entries read as 0. There are no slices and no negative positions."""

    __slots__ = ("_base", "_count", "_known", "append", "frombytes")

    append: Callable[[int], None]
    frombytes: Callable[[bytes], None]

    def __init__(self, count: int) -> None:
        self._base = self._count = count
        self._known = array("Q")
        self.append = self._known.append
        self.frombytes = self._known.frombytes

    def __repr__(self) -> str:
        return f"<LateEntries {len(self)}, known from {self._base} on>"

    def __len__(self) -> int:
        return self._base + len(self._known)

    def __iter__(self) -> Iterator[int]:
        return chain(repeat(0, self._base), self._known)

    def __getitem__(self, position: int) -> int:
        return self._known[position - self._base] if position >= self._base else 0

    def __setitem__(self, position: int, entry: int) -> None:
        assert position >= self._base, "entries below are learned, not changed"
        self._known[position - self._base] = entry

    def learn(self, first: int, entries: array[int]) -> None:
        """Those from ``first`` on, up to what is known at least."""
        if first < self._base:
            self._known[:0] = entries[: self._base - first]
            self._base = first

    def completed(self, beginning: array[int]) -> array[int]:
        """All of them, in an ordinary array: these in place of the first ``count``, and what has come behind those."""
        return beginning + self._known[self._count - self._base :]
