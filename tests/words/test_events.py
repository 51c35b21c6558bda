"""An index entry is one word, and the length of a frame says the length of its size line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.wire.chunked import encode_chunk
from longwire.words.events import (
    FRAMED,
    KIND_BITS,
    KIND_MASK,
    LENGTH_BITS,
    LENGTH_MASK,
    MAX_ENTRY_BYTES,
    RECORD,
    SILENT,
    START_SHIFT,
    framed_bytes,
    pack,
    size_line_bytes,
)

MAX_START = (1 << 64 - START_SHIFT) - 1
EDGES = sorted({size for digits in range(1, 8) for size in (16 ** (digits - 1), 16**digits - 1, 16**digits)})


@given(st.integers(0, MAX_START), st.integers(0, MAX_ENTRY_BYTES), st.integers(0, KIND_MASK))
def test_a_word_holds_what_was_packed_into_64_bits(start: int, length: int, kind: int) -> None:
    word = pack(start, length, kind)
    assert 0 <= word < 1 << 64
    assert word >> START_SHIFT == start
    assert word >> KIND_BITS & LENGTH_MASK == length
    assert word & KIND_MASK == kind


def test_the_largest_of_everything_fits() -> None:
    assert pack(MAX_START, MAX_ENTRY_BYTES, KIND_MASK) == (1 << 64) - 1
    assert 1 << LENGTH_BITS == 32 << 20
    assert MAX_START + 1 == 64 << 30


def test_kinds_are_independent_bits() -> None:
    kinds = [FRAMED, RECORD, SILENT]
    assert sum(kinds) == FRAMED | RECORD | SILENT == KIND_MASK


@pytest.mark.parametrize("body_bytes", EDGES[:8])
def test_a_frame_is_as_long_as_the_encoder_makes_it(body_bytes: int) -> None:
    frame = encode_chunk(b"x" * body_bytes)
    assert framed_bytes(body_bytes) == len(frame)
    assert size_line_bytes(len(frame)) == frame.index(b"\n") + 1


@given(st.one_of(st.integers(1, 1 << 28), st.sampled_from(EDGES)))
def test_the_two_lengths_are_inverse(body_bytes: int) -> None:
    frame_bytes = framed_bytes(body_bytes)
    assert frame_bytes - size_line_bytes(frame_bytes) - 2 == body_bytes


def test_a_length_that_no_frame_has_is_an_error() -> None:
    possible = {framed_bytes(body_bytes) for body_bytes in range(1, 5000)}
    for frame_bytes in range(5000):
        if frame_bytes in possible:
            size_line_bytes(frame_bytes)
        else:
            with pytest.raises(ValueError, match=f"is {frame_bytes} bytes long"):
                size_line_bytes(frame_bytes)
    assert sorted(set(range(6, 5000)) - possible) == [21, 262, 4103]
