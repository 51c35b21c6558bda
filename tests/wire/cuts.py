"""The same bytes, cut in every way that a network may choose."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

from hypothesis import strategies as st

TRAILING = b"GET /next HTTP/1.1\r\n"
"""What may follow a message on its connection: a decoder must leave it alone."""


def pieces_at(data: bytes, offsets: set[int]) -> list[bytes]:
    """``data`` cut at the offsets."""
    inner = sorted(offset for offset in offsets if 0 < offset < len(data))
    return [data[start:end] for start, end in pairwise([0, *inner, len(data)])]


def ways(data: bytes) -> Iterator[list[bytes]]:
    """In one piece, byte by byte, and in two pieces cut at every offset."""
    yield [data]
    yield pieces_at(data, set(range(len(data))))
    for offset in range(1, len(data)):
        yield pieces_at(data, {offset})


@st.composite
def cut_anyhow(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """In pieces cut at a random set of offsets."""
    return pieces_at(data, draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=12)))


def count_calls(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, ``work`` calls: a cost that no other process can disturb."""
    calls = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls
