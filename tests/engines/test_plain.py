"""An event that is told by its form says what parsing it would say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwire.engines.plain import MAX_FRAME_BYTES, PlainForm, learn, parse_object, read_fields

TEXTS = ["plain", "", " ", 'a"b', "a\\", '"}', "\n\t", "光🚀", '","content":"x', '"finish_reason":null', "\u2028"]


def frame(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


def block_of(value: object, **style: Any) -> bytes:
    return b"data: " + json.dumps(value, **style).encode() + b"\n\n"


def learnt(value: dict[str, Any], **style: Any) -> PlainForm:
    form = learn(block_of(value, **style), value, "content", value["choices"][0]["delta"]["content"])
    assert form is not None
    return form


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize("first", TEXTS)
def test_every_text_is_read(first: str, style: dict[str, Any]) -> None:
    form = learnt(frame(first), **style)
    for text in TEXTS:
        assert form.text(block_of(frame(text), **style)) == text
    assert form.text(block_of(frame("x", more=1), **style)) is None


PIECES = st.lists(
    st.sampled_from(['"', "\\", "{", "}", "a", ":", ",", '"content":"', "\n", "\x01", "u0041"]), max_size=8
)


@given(inner=PIECES.map("".join))
def test_whatever_stands_between_is_one_string_or_nothing(inner: str) -> None:
    """Also what is no JSON, and what would close the string and go on with other keys."""
    form = learnt(frame("x"))
    block = form.head + inner.encode() + form.tail
    text = form.text(block)
    # None is no statement: a key that stands twice, for one, is left to whoever parses the event.
    assert text is None or parse_object(read_fields(block)[1]) == frame(text)


def test_bytes_that_are_no_text_are_none() -> None:
    form = learnt(frame("x"))
    assert form.text(form.head + b"\xff" + form.tail) is None
    assert form.text(form.head[:-1] + form.tail) is None


def no_form(value: object, text: str = "x", block: bytes = b"") -> bool:
    assert isinstance(value, dict)
    return learn(block or block_of(value), value, "content", text) is None


def test_a_place_that_is_not_the_texts_is_not_learnt() -> None:
    elsewhere = {"meta": {"content": "x"}, **frame("x")}
    assert no_form(elsewhere)
    assert no_form(frame("x"), block=block_of(frame("x")).replace(b"data: ", b"data:"))
    assert no_form(frame("x"), block=b": note\n" + block_of(frame("x")))
    assert no_form(frame("x"), block=block_of(frame("x")).replace(b'"content": ', b'"content"  :  '))
    assert no_form(frame("x", more="y" * MAX_FRAME_BYTES))
    twice = block_of(frame("x")).replace(b'"content": "x"', b'"content": "y", "content": "x"')
    assert no_form(frame("x"), block=twice)
    assert no_form({"choices": [5]})


def test_fields_of_any_block_are_read() -> None:
    assert read_fields(b"data: x \n\n") == (None, b"x")
    assert read_fields(b"data:x\n\n") == read_fields(b"data: x\r\n\r\n") == (None, b"x")
    assert read_fields(b"event: error\ndata: x\ndata: y\n\n") == (b"error", b"x\ny")
    assert read_fields(b": ping\n\n") == read_fields(b"") == (None, b"")


@pytest.mark.parametrize("data", [b"", b"5", b"[]", b"{", b"\xff", b'{"a":' * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_what_is_no_object_is_none(data: bytes) -> None:
    assert parse_object(data) is None
