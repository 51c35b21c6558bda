"""The chunked coding: read strictly, the same however it is cut, at a cost that grows with its bytes and no faster."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.cuts import TRAILING, count_calls, cut_anyhow, ways

from longwire.wire.chunked import (
    LAST_CHUNK,
    MAX_SIZE_LINE_BYTES,
    MAX_TRAILER_BYTES,
    ChunkedDecoder,
    ChunkedError,
    ChunkedTooLarge,
    encode_chunk,
)

# (what our encoder is given, what it writes): the decoder must read back the first from the second.
ENCODED: dict[str, tuple[list[bytes], bytes]] = {
    "an empty body": ([], b"0\r\n\r\n"),
    "one byte": ([b"a"], b"1\r\na\r\n0\r\n\r\n"),
    "an event": ([b"data: a\n\n"], b"9\r\ndata: a\n\n\r\n0\r\n\r\n"),
    "two digits, lower case": ([b"x" * 0xAB], b"ab\r\n" + b"x" * 0xAB + b"\r\n0\r\n\r\n"),
    "several": ([b"a", b"bc", b"\r\n"], b"1\r\na\r\n2\r\nbc\r\n2\r\n\r\n\r\n0\r\n\r\n"),
    "what looks like an end": ([b"0\r\n\r\n"], b"5\r\n0\r\n\r\n\r\n0\r\n\r\n"),
    "any byte": ([bytes(range(256))], b"100\r\n" + bytes(range(256)) + b"\r\n0\r\n\r\n"),
}

# (wire, body): what others may send and we never do.
READ: dict[str, tuple[bytes, bytes]] = {
    "upper-case hex": (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "leading zeros": (b"000a\r\n0123456789\r\n000\r\n\r\n", b"0123456789"),
    "16 digits": (b"0000000000000001\r\na\r\n0000000000000000\r\n\r\n", b"a"),
    "extensions": (b"1;a\r\na\r\n1;a=b;c=d\r\nb\r\n0;last\r\n\r\n", b"ab"),
    "extensions with white space": (b"1 ; a\r\na\r\n1\t;a = b ;\tc\r\nb\r\n0\r\n\r\n", b"ab"),
    "quoted extensions": (b'1;a="b;c=\xff\t"\r\na\r\n1;a="\\"\\\\";b=""\r\nb\r\n0\r\n\r\n', b"ab"),
    "trailers, which are dropped": (b"1\r\na\r\n0\r\nVary: *\r\nX-Empty:\r\nX: \xff\t\r\n\r\n", b"a"),
    "the longest size line": (b"1;" + b"x" * (MAX_SIZE_LINE_BYTES - 4) + b"\r\na\r\n0\r\n\r\n", b"a"),
    "the longest trailers": (b"0\r\n" + b"x:" + b"y" * (MAX_TRAILER_BYTES - 4) + b"\r\n\r\n", b""),
}

# (wire, body before the fault)
REFUSED: dict[str, tuple[bytes, bytes]] = {
    "no size": (b"\r\na\r\n", b""),
    "no hex": (b"xyz\r\n", b""),
    "0x": (b"0x1\r\na\r\n0\r\n\r\n", b""),
    "a plus sign": (b"+1\r\na\r\n0\r\n\r\n", b""),
    "a minus sign": (b"-1\r\na\r\n0\r\n\r\n", b""),
    "an underscore, as int() reads": (b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n", b""),
    "white space before": (b" 1\r\na\r\n0\r\n\r\n", b""),
    "white space behind": (b"1 \r\na\r\n0\r\n\r\n", b""),
    "17 digits": (b"00000000000000001\r\na\r\n0\r\n\r\n", b""),
    "a fraction": (b"1.5\r\na\r\n0\r\n\r\n", b""),
    "Arabic digits": ("\u0661\r\na\r\n0\r\n\r\n".encode(), b""),
    "NUL in the size": (b"1\0\r\na\r\n0\r\n\r\n", b""),
    "bare LF behind the size": (b"1\na\r\n0\r\n\r\n", b""),
    "bare CR behind the size": (b"1\ra\r\n0\r\n\r\n", b""),
    "CR CR LF": (b"1\r\r\na\r\n0\r\n\r\n", b""),
    "a second size line where data is to end": (b"1\r\na1\r\nb\r\n0\r\n\r\n", b"a"),
    "data longer than its size": (b"1\r\nab\r\n0\r\n\r\n", b"a"),
    "data shorter than its size": (b"3\r\na\r\n0\r\n\r\n", b"a\r\n"),
    "bare LF behind the data": (b"1\r\na\n0\r\n\r\n", b"a"),
    "bare CR behind the data": (b"1\r\na\r0\r\n\r\n", b"a"),
    "two bytes for a line end (CVE-2025-43859)": (b"1\r\naXX0\r\n\r\n", b"a"),
    "the second chunk's size": (b"1\r\na\r\n2\r\nbc\r\nz\r\n", b"abc"),
    "an extension without a name": (b"1;\r\na\r\n0\r\n\r\n", b""),
    "an extension without a value": (b"1;a=\r\na\r\n0\r\n\r\n", b""),
    "an extension with NUL": (b"1;a=\0\r\na\r\n0\r\n\r\n", b""),
    "an extension with LF": (b"1;a\nb\r\na\r\n0\r\n\r\n", b""),
    "an extension with CR": (b"1;a\rb\r\na\r\n0\r\n\r\n", b""),
    "an open quote": (b'1;a="b\r\na\r\n0\r\n\r\n', b""),
    "a quote in a value": (b'1;a="b"c"\r\na\r\n0\r\n\r\n', b""),
    "a size line too long": (b"1;" + b"x" * (MAX_SIZE_LINE_BYTES - 3) + b"\r\na\r\n0\r\n\r\n", b""),
    "bare LF at the end": (b"0\n\n", b""),
    "bare LF behind the last chunk": (b"0\r\n\n", b""),
    "a trailer without a colon": (b"0\r\nGET / HTTP/1.1\r\n\r\n", b""),
    "a folded trailer": (b"0\r\na: b\r\n c\r\n\r\n", b""),
    "a trailer with white space before its colon": (b"0\r\na : b\r\n\r\n", b""),
    "a trailer with NUL": (b"0\r\na: \0\r\n\r\n", b""),
    "a trailer with bare LF": (b"0\r\na: b\nc: d\r\n\r\n", b""),
    "trailers too large": (b"0\r\n" + b"x: y\r\n" * (MAX_TRAILER_BYTES // 6 + 1) + b"\r\n", b""),
    "one trailer too large": (b"0\r\nx:" + b"y" * (MAX_TRAILER_BYTES - 3) + b"\r\n\r\n", b""),
    "Content-Length as trailer": (b"1\r\na\r\n0\r\ncontent-length: 5\r\n\r\n", b"a"),
    "Transfer-Encoding as trailer": (b"0\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
    "Host as trailer": (b"0\r\nHOST: a\r\n\r\n", b""),
}


class Outcome(NamedTuple):
    body: bytes
    verdict: str
    rest: bytes = b""


def decode(pieces: list[bytes], max_body_bytes: int = 1 << 40) -> Outcome:
    """What a decoder makes of the pieces; any exception but its own fails the test."""
    decoder = ChunkedDecoder(max_body_bytes)
    body = b""
    for index, piece in enumerate(pieces):
        try:
            spans = decoder.feed(piece)
        except ChunkedError as exc:
            body += b"".join(piece[start:end] for start, end in exc.spans)
            return Outcome(body, type(exc).__name__)
        body += b"".join(piece[start:end] for start, end in spans)
        if decoder.done:
            return Outcome(body, "done", piece[decoder.consumed :] + b"".join(pieces[index + 1 :]))
        assert decoder.consumed == len(piece)
    return Outcome(body, "unfinished")


def read_every_way(wire: bytes) -> Outcome:
    """Decode whole, byte by byte, cut in two at every offset, and with trailing bytes: all must agree."""
    whole = decode([wire])
    for pieces in ways(wire) if len(wire) < 600 else (pieces for pieces, _ in zip(ways(wire), range(2), strict=False)):
        assert decode(pieces) == whole, pieces
    if whole.verdict == "done":
        for pieces in ([wire + TRAILING], [wire, TRAILING], [bytes([byte]) for byte in wire + TRAILING]):
            assert decode(pieces) == Outcome(whole.body, "done", TRAILING)
    return whole


# Vectors.


@pytest.mark.parametrize("name", ENCODED)
def test_what_is_encoded_is_read_back(name: str) -> None:
    bodies, wire = ENCODED[name]
    assert b"".join(map(encode_chunk, bodies)) + LAST_CHUNK == wire
    assert read_every_way(wire) == Outcome(b"".join(bodies), "done")


@pytest.mark.parametrize("name", READ)
def test_what_the_rfc_allows_is_read(name: str) -> None:
    wire, body = READ[name]
    assert read_every_way(wire) == Outcome(body, "done")


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_forbids_is_refused_and_the_body_before_it_is_known(name: str) -> None:
    wire, body = REFUSED[name]
    assert read_every_way(wire) == Outcome(body, "ChunkedError")


@pytest.mark.parametrize("name", [*ENCODED, *READ])
def test_a_message_without_its_last_byte_is_not_done(name: str) -> None:
    wire = ENCODED[name][1] if name in ENCODED else READ[name][0]
    assert decode([wire[:-1]]).verdict == "unfinished"


# Bounds.


@pytest.mark.parametrize(
    "wire",
    [
        b"5\r\nabcde\r\n",
        b"3\r\nabc\r\n2\r\nde\r\n",
        b"ffffffffffffffff\r\n",
        b"8000000000000000\r\n",
        b"1\r\na\r\n4;x\r\n",
    ],
)
def test_a_body_is_refused_when_its_sizes_announce_too_much_and_not_later(wire: bytes) -> None:
    until_the_size = decode([wire], 4)
    assert until_the_size.verdict == "ChunkedTooLarge"
    assert len(until_the_size.body) < 4
    for pieces in ways(wire):
        assert decode(pieces, 4) == until_the_size


def test_a_body_as_large_as_it_may_be_is_read() -> None:
    assert decode([b"3\r\nabc\r\n1\r\nd\r\n" + LAST_CHUNK], 4) == Outcome(b"abcd", "done")
    assert issubclass(ChunkedTooLarge, ChunkedError)


@pytest.mark.parametrize(
    "prefix", [b"1;" + b"a" * 300, b"0\r\nx:" + b"a" * MAX_TRAILER_BYTES, b"1\r\na\rx", b"1\r\nab"]
)
def test_a_line_that_never_ends_is_refused_before_it_grows(prefix: bytes) -> None:
    assert decode([bytes([byte]) for byte in prefix]).verdict == "ChunkedError"


# States.


def test_its_state_says_where_it_stands() -> None:
    decoder = ChunkedDecoder()
    assert decoder.at_boundary and not decoder.is_in_data
    for data, at_boundary, is_in_data in [
        (b"2", False, False),
        (b"\r\n", False, True),
        (b"a", False, True),
        (b"b", False, False),
        (b"\r\n", True, False),
        (b"1\r\nc\r\n", True, False),
        (b"0\r\n", False, False),
        (b"\r\n", False, False),
    ]:
        decoder.feed(data)
        assert (decoder.at_boundary, decoder.is_in_data) == (at_boundary, is_in_data), data
    assert decoder.done


def test_nothing_is_read_behind_the_end() -> None:
    decoder = ChunkedDecoder()
    decoder.feed(LAST_CHUNK)
    assert decoder.feed(b"5\r\nabcde\r\n") == []
    assert decoder.consumed == 0


# Cost.


@pytest.mark.parametrize("piece_bytes", [1, 6, 1 << 20])
def test_one_byte_chunks_cost_the_same_each_however_many_there_are(piece_bytes: int) -> None:
    def cost(chunks: int) -> int:
        wire = encode_chunk(b"x") * chunks
        decoder = ChunkedDecoder()
        return count_calls(
            lambda: [decoder.feed(wire[at : at + piece_bytes]) for at in range(0, len(wire), piece_bytes)]
        )

    few, many = cost(250), cost(1000)
    assert many < 4.2 * few


class CountedBytes(bytes):
    """Bytes that count how many of them are copied by slicing."""

    copied = 0

    def __getitem__(self, key: object) -> bytes:  # type: ignore[override]
        assert isinstance(key, slice)
        found = super().__getitem__(key)
        CountedBytes.copied += len(found)
        return found


def test_no_byte_of_a_piece_is_copied_twice() -> None:
    wire = CountedBytes((b"1;x\r\na\r\n" + b"2\r\nbc\r\n") * 500 + LAST_CHUNK)
    CountedBytes.copied = 0
    ChunkedDecoder().feed(wire)
    assert CountedBytes.copied <= len(wire)


@pytest.mark.parametrize("piece", [b';a=""', b";a", b";a=b", b' ;a="\\""', b" ", b"\t;", b';a="', b"="])
def test_extensions_made_to_confuse_are_refused_at_once(piece: bytes) -> None:
    """Fifty quoted values behind one another once took 2^50 steps to refuse; a test that hangs has failed."""
    line = b"1" + (piece * 256)[: MAX_SIZE_LINE_BYTES - 4] + b"@\r\n"
    assert decode([line]).verdict == "ChunkedError"
    assert decode([line[:-3] + b"\0\r\n"]).verdict == "ChunkedError"


# Properties.


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_any_body_survives_encoding_and_any_cut(bodies: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(map(encode_chunk, bodies)) + LAST_CHUNK
    pieces = data.draw(cut_anyhow(wire + TRAILING))
    assert decode(pieces) == Outcome(b"".join(bodies), "done", TRAILING)


fragments = st.sampled_from(
    [
        b"0",
        b"1",
        b"a",
        b"F",
        b"\r\n",
        b"\r",
        b"\n",
        b";",
        b"=",
        b'"',
        b" ",
        b"x",
        b":",
        b"\0",
        b"1\r\na\r\n",
        b"0\r\n",
        b"\r\n\r\n",
    ]
)


@given(st.one_of(st.lists(fragments, max_size=24).map(b"".join), st.binary(max_size=40)), st.data())
def test_no_bytes_raise_anything_else_and_no_cut_changes_the_outcome(wire: bytes, data: st.DataObject) -> None:
    whole = decode([wire] if wire else [])
    assert decode(data.draw(cut_anyhow(wire)) if wire else []) == whole
    if whole.verdict == "done":
        assert re.match(rb"[0-9A-Fa-f]", wire)
