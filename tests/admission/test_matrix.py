"""Counts in shared memory: one writer per cell, pairs that change together, sums that any process can read."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.admission.matrix import (
    CELLS,
    COUNT_BITS,
    HELD,
    LIVE,
    MAX_COUNT,
    MAX_SLOTS,
    MAX_TENANTS,
    MINUTE_S,
    REQUESTS,
    RESERVED,
    TOKENS,
    Matrix,
    WrongLayout,
    in_window,
    minute_of,
)

F_GET_SEALS = 1034
F_SEAL_SHRINK = 0x0002


@contextmanager
def a_matrix(tenants: int = 3, slots: int = 4) -> Iterator[Matrix]:
    matrix = Matrix.create(tenants, slots)
    try:
        yield matrix
    finally:
        matrix.close()


def in_memory(content: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


# Making and attaching.


def test_another_process_finds_the_same_counts_behind_the_descriptor() -> None:
    with a_matrix() as matrix:
        matrix.words[matrix.index(2, 3) + HELD] = 77
        other = Matrix.attach(os.dup(matrix.fd))
        assert (other.tenants, other.slots, other.gateway_row) == (3, 4, 3)
        assert other.total(2, HELD) == 77
        other.words[other.index(2, 1) + HELD] = 3
        assert matrix.total(2, HELD) == 80
        other.close()


def test_the_memory_cannot_be_made_shorter_under_a_reader() -> None:
    with a_matrix() as matrix:
        assert fcntl.fcntl(matrix.fd, F_GET_SEALS) & F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(matrix.fd, 10)


def test_cells_of_two_slots_never_share_a_cache_line() -> None:
    with a_matrix() as matrix:
        starts = [matrix.index(row, slot) for row in range(4) for slot in range(4)]
        assert all(start * 8 % 64 == 0 for start in starts) and len(set(starts)) == 16
        assert max(starts) + CELLS == len(matrix.words)


@pytest.mark.parametrize("size", [(0, 1), (1, 0), (MAX_TENANTS + 1, 1), (1, MAX_SLOTS + 1)])
def test_no_matrix_of_an_absurd_size_is_made(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="slots"):
        Matrix.create(*size)


HEADER = struct.Struct("<8sIIII")


@pytest.mark.parametrize(
    ("header", "what"),
    [
        (b"", "no matrix"),
        (b"LWMATRIX", "layout 0"),
        (HEADER.pack(b"LWTABLE1", 1, 1, 1, 8), "no matrix"),
        (HEADER.pack(b"LWMATRIX", 2, 1, 1, 8), "layout 2 with 8 cells; this version of Longwire reads layout 1 with 8"),
        (HEADER.pack(b"LWMATRIX", 1, 1, 1, 9), "layout 1 with 9 cells"),
        (HEADER.pack(b"LWMATRIX", 1, 0, 1, 8), "0 tenants"),
        (HEADER.pack(b"LWMATRIX", 1, 1, 257, 8), "257 slots"),
        (HEADER.pack(b"LWMATRIX", 1, 1000, 1, 8), "shorter"),
    ],
)
def test_what_is_no_matrix_of_this_layout_is_refused_in_words(header: bytes, what: str) -> None:
    fd = in_memory(header + bytes(mmap.PAGESIZE))
    with pytest.raises(WrongLayout, match=what):
        Matrix.attach(fd)
    os.close(fd)  # it stayed ours


@pytest.mark.parametrize("place", [(-1, 0), (4, 0), (0, -1), (0, 4)])
def test_a_place_outside_is_an_error_and_not_somebody_elses_count(place: tuple[int, int]) -> None:
    with a_matrix() as matrix:
        with pytest.raises(IndexError):
            matrix.index(*place)


# Counts by the minute.


def test_a_minute_and_its_count_are_one_word() -> None:
    with a_matrix() as matrix:
        start = matrix.index(0, 0)
        matrix.count(start, REQUESTS, 8, 5)
        matrix.count(start, REQUESTS, 8, 2)
        assert matrix.words[start + REQUESTS] == 8 << COUNT_BITS | 7
        matrix.count(start, REQUESTS, 9, 1)
        assert matrix.words[start + REQUESTS] == 8 << COUNT_BITS | 7, "the last minute is not moved"
        assert matrix.window(0, REQUESTS, 9) == (7, 1)
        assert matrix.window(0, REQUESTS, 10) == (1, 0)
        assert matrix.window(0, REQUESTS, 11) == (0, 0)
        matrix.count(start, REQUESTS, 10, 4)
        assert matrix.window(0, REQUESTS, 10) == (1, 4)
        assert matrix.window(0, TOKENS, 10) == (0, 0), "cells are apart"


def test_counts_stop_at_their_bound_and_spare_the_minute() -> None:
    with a_matrix() as matrix:
        start = matrix.index(1, 2)
        matrix.count(start, TOKENS, 3, MAX_COUNT)
        matrix.count(start, TOKENS, 3, MAX_COUNT)
        assert matrix.window(1, TOKENS, 3) == (0, MAX_COUNT)


def test_a_clock_that_was_read_earlier_neither_loses_nor_hides_a_count() -> None:
    with a_matrix() as matrix:
        ahead, behind = matrix.index(0, 0), matrix.index(0, 1)
        matrix.count(ahead, REQUESTS, 7, 3)
        matrix.count(behind, REQUESTS, 6, 2)
        assert matrix.window(0, REQUESTS, 6) == (0, 5), "what others have counted since counts as now"
        assert matrix.window(0, REQUESTS, 7) == (2, 3)
        matrix.count(ahead, REQUESTS, 5, 1)
        assert matrix.window(0, REQUESTS, 7) == (2, 4), "a writer never goes back"


def test_what_is_taken_off_is_taken_off_its_own_minute_or_not_at_all() -> None:
    with a_matrix() as matrix:
        start = matrix.index(0, 0)
        matrix.count(start, TOKENS, 4, 100)
        matrix.count(start, TOKENS, 5, 10)
        matrix.take_off(start, TOKENS, 4, 60)
        assert matrix.window(0, TOKENS, 5) == (40, 10)
        matrix.take_off(start, TOKENS, 4, 60)
        assert matrix.window(0, TOKENS, 5) == (0, 10), "never less than nothing"
        matrix.take_off(start, TOKENS, 3, 10)
        assert matrix.window(0, TOKENS, 5) == (0, 10), "a minute that is forgotten"


@given(st.floats(0, 1e8), st.integers(0, 1000), st.integers(0, 1000))
def test_a_window_holds_this_minute_and_a_part_of_the_one_before(now: float, before: int, current: int) -> None:
    held = in_window(before, current, now)
    assert current <= held <= current + before
    assert minute_of(now) == now // MINUTE_S
    assert in_window(before, current, minute_of(now) * MINUTE_S) == before + current


# Slots.


def test_a_reset_forgets_one_slots_streams_and_no_use() -> None:
    with a_matrix() as matrix:
        for row in range(4):
            for slot in range(4):
                start = matrix.index(row, slot)
                matrix.words[start + LIVE] = 1
                matrix.words[start + HELD] = 10
                matrix.words[start + RESERVED] = 100
                matrix.count(start, REQUESTS, 1, 1)
                matrix.count(start, TOKENS, 1, 1000)
        matrix.reset(2)
        for row in range(4):
            use = matrix.use(row, 1 * MINUTE_S)
            assert use == (3, 4.0, 4000.0, 30, 400)
            assert matrix.words[matrix.index(row, 2) + LIVE] == 0


def test_statistics_and_repr_tell_size_and_streams() -> None:
    with a_matrix() as matrix:
        matrix.words[matrix.index(matrix.gateway_row, 1) + LIVE] = 5
        assert matrix.statistics() == {"tenants": 3, "slots": 4, "live_streams": 5}
        assert repr(matrix) == "<Matrix 3 tenants x 4 slots, 5 streams>"
