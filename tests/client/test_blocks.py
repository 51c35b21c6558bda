"""Event blocks out of bytes that were cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.client import blocks
from longwire.client.blocks import Block, BlockSplitter, BlockTooLarge

VECTORS = [
    pytest.param(b"data: a\n\n", [Block((b"a",))], id="lf"),
    pytest.param(b"data: a\r\n\r\n", [Block((b"a",))], id="crlf"),
    pytest.param(b"data: a\r\r", [Block((b"a",))], id="cr"),
    pytest.param(b"data: a\n\r\ndata: b\r\r\n", [Block((b"a",)), Block((b"b",))], id="mixed"),
    pytest.param(b"data: a\rdata: b\n\n", [Block((b"a", b"b"))], id="cr-then-lf-lines"),
    pytest.param(b"\xef\xbb\xbfdata: a\n\n", [Block((b"a",))], id="byte-order-mark"),
    pytest.param(b"data: a\ndata: b\ndata\n\n", [Block((b"a", b"b", b""))], id="several-lines"),
    pytest.param(b"data:a\n\ndata:  a\n\n", [Block((b"a",)), Block((b" a",))], id="one-space-is-stripped"),
    pytest.param(b": ping\n\ndata: a\n\n: ping\n\n", [Block((b"a",))], id="comments-are-no-blocks"),
    pytest.param(b": ping\ndata: a\n\n", [Block((b"a",))], id="comment-inside"),
    pytest.param(b"id: 1-7\ndata: a\n\n", [Block((b"a",), id="1-7")], id="id"),
    pytest.param(b"id: 1\0\ndata: a\n\n", [Block((b"a",))], id="id-with-nul-is-ignored"),
    pytest.param(b"retry: 250\n\n", [Block((), retry_ms=250)], id="bare-retry"),
    pytest.param(b"retry: 2x\ndata: a\n\n", [Block((b"a",))], id="retry-that-is-no-number"),
    pytest.param(b"event: error\ndata: a\n\n", [Block((b"a",), event=b"error")], id="event"),
    pytest.param(b"unknown: x\ndata: a\n\n", [Block((b"a",))], id="unknown-field"),
    pytest.param("data: é漢\n\n".encode(), [Block(("é漢".encode(),))], id="multi-byte"),
    pytest.param(b"data: a\n\ndata: cut\n", [Block((b"a",))], id="unfinished-block-is-dropped"),
    pytest.param(b"\n\n\ndata: a\n\n\n\n", [Block((b"a",))], id="blank-lines"),
]


def split(parts: list[bytes]) -> list[Block]:
    splitter = BlockSplitter()
    found = []
    for part in parts:
        splitter.receive_data(part)
        while (block := splitter.next_block()) is not None:
            found.append(block)
    return found


@pytest.mark.parametrize(("wire", "expected"), VECTORS)
def test_whole(wire: bytes, expected: list[Block]) -> None:
    assert split([wire]) == expected


@pytest.mark.parametrize(("wire", "expected"), VECTORS)
def test_byte_by_byte(wire: bytes, expected: list[Block]) -> None:
    assert split([bytes([byte]) for byte in wire]) == expected


@pytest.mark.parametrize(("wire", "expected"), VECTORS)
def test_cut_once_at_every_offset(wire: bytes, expected: list[Block]) -> None:
    for at in range(len(wire) + 1):
        assert split([wire[:at], b"", wire[at:]]) == expected


LINE = st.binary(max_size=20).filter(lambda line: not set(line) & set(b"\r\n"))


@given(
    bodies=st.lists(st.lists(LINE, min_size=1, max_size=3).map(tuple), max_size=5),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 400)),
)
def test_any_data_any_cuts(bodies: list[tuple[bytes, ...]], end: bytes, cuts: list[int]) -> None:
    wire = b"".join(b"".join(b"data: " + line + end for line in lines) + end for lines in bodies)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    parts = [wire[start:stop] for start, stop in pairwise(edges)]
    assert [block.data for block in split(parts)] == bodies


@given(st.lists(LINE, min_size=1, max_size=4).map(tuple), st.none() | st.just(b"error"))
def test_encoding_keeps_data_and_event_and_drops_the_rest(data: tuple[bytes, ...], event: bytes | None) -> None:
    wire = Block(data, event=event, id="1-2", retry_ms=3).encode()
    assert split([wire]) == [Block(data, event=event)]


def test_a_block_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_BYTES", 100)
    with pytest.raises(BlockTooLarge, match="100 bytes"):
        split([b"data: " + b"x" * 60] * 2)
    with pytest.raises(BlockTooLarge):
        split([b"data: " + b"x" * 20 + b"\n"] * 6)
    assert len(split([b"data: " + b"x" * 60 + b"\n\n"] * 6)) == 6


def test_repr_tells_what_is_pending() -> None:
    splitter = BlockSplitter()
    splitter.receive_data(b"data: a\ndat")
    assert splitter.next_block() is None
    assert repr(splitter) == "<BlockSplitter buffered=3 fields=1>"
