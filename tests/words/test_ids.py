"""Stream ids are unguessable and read back; a cursor is read in every spelling there is, and garbage is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.words.errors import BadCursor
from longwire.words.ids import (
    BEFORE_FIRST,
    MAX_CURSOR_CHARS,
    STREAM_ID_BYTES,
    Cursor,
    format_stream_id,
    make_stream_id,
    parse_cursor,
    parse_stream_id,
    slot_of,
)

RAW = bytes(range(17))
PUBLIC = "lw_000102030405060708090a0b0c0d0e0f10"


# Stream ids.


def test_an_id_is_written_and_read() -> None:
    assert format_stream_id(RAW) == PUBLIC
    assert parse_stream_id(PUBLIC) == RAW


@given(st.binary(min_size=STREAM_ID_BYTES, max_size=STREAM_ID_BYTES))
def test_every_id_is_read_back(raw: bytes) -> None:
    assert parse_stream_id(format_stream_id(raw)) == raw


def test_ids_are_random_in_all_their_128_bits() -> None:
    made = [make_stream_id() for _ in range(200)]
    assert len(set(made)) == 200
    assert {len(raw) for raw in made} == {17}
    for bit in range(128):
        assert len({raw[bit // 8] >> bit % 8 & 1 for raw in made}) == 2, f"bit {bit} never changes"


@pytest.mark.parametrize("slot", [0, 1, 255])
def test_an_id_says_which_slot_keeps_the_stream(slot: int) -> None:
    assert slot_of(make_stream_id(slot)) == slot


@pytest.mark.parametrize(
    "text",
    [
        *("", "lw_", "lw", PUBLIC[3:], PUBLIC[:-1], PUBLIC + "0", PUBLIC + "\n", " " + PUBLIC, PUBLIC.upper(), "\0"),
        *(
            PUBLIC.replace("lw", "LW"),
            PUBLIC.replace("0a", "0A"),
            PUBLIC.replace("0a", "0g"),
            PUBLIC.replace("lw_", "lw-"),
        ),
        *(PUBLIC.replace("00", "\u0660\u0660"), "lw_" + "0" * 10_000, "lw_../../etc/passwd", "lw_%00"),
    ],
)
def test_what_cannot_be_an_id_is_none(text: str) -> None:
    assert parse_stream_id(text) is None


# Cursors.


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        ("1-0", Cursor(1, 0)),
        ("1-41", Cursor(1, 41)),
        ("007-0041", Cursor(7, 41)),
        ("999999999-999999999999999", Cursor(999_999_999, 999_999_999_999_999)),
        ("41", Cursor(0, 41)),
        ("0", Cursor(0, 0)),
        ("-1", BEFORE_FIRST),
        ("", BEFORE_FIRST),
    ],
)
def test_a_cursor_is_read(text: str, cursor: Cursor) -> None:
    assert parse_cursor(text) == cursor


@given(st.integers(1, 999_999_999), st.integers(0, 999_999_999_999_999))
def test_every_cursor_is_read_back_and_needs_no_preflight(epoch: int, seq: int) -> None:
    text = str(Cursor(epoch, seq))
    assert parse_cursor(text) == Cursor(epoch, seq)
    assert len(text) <= MAX_CURSOR_CHARS
    assert set(text) <= set("0123456789-")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "abc",
            "1-",
            "-",
            "-2",
            "--1",
            "1--1",
            "1-2-3",
            "1_2",
            "1-0x5",
            "+1",
            "1-+1",
            " 1",
            "1 ",
            "1-1\n",
            "1.5",
            "1e3",
            "1,2",
        ),
        *("$", "*", "0-0;", "1-\u0661", "\uff11", "null", "NaN", "\0", "1-1\0"),
        *("9" * 16, "1-" + "9" * 16, "9" * 10 + "-1", "9" * 5000, "0" * 33),
    ],
)
def test_a_malformed_cursor_is_an_error_and_never_a_guess(text: str) -> None:
    """A server that replayed everything for a bad cursor (deer-flow 4011) doubled what its clients had."""
    with pytest.raises(BadCursor) as caught:
        parse_cursor(text)
    assert caught.value.status == 400
    assert caught.value.param == "after"
    assert len(text) < 4 or text not in caught.value.message


@given(st.text(max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        cursor = parse_cursor(text)
    except BadCursor:
        return
    assert cursor == BEFORE_FIRST or (cursor.epoch >= 0 and cursor.seq >= 0)
