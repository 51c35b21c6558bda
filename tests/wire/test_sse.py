"""Server-sent events: where each ends, what it says, and how one is written, whatever the line ends and the cuts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.cuts import count_calls, cut_anyhow, ways

from longwire.wire.sse import (
    SseEvent,
    SseSplitter,
    encode_comment,
    encode_event,
    is_comment,
    normalise_line_ends,
    parse_event,
)

# (data, event, id, block): what the encoder writes, the parser reads back.
ENCODED: dict[str, tuple[bytes, bytes | None, bytes | None, bytes]] = {
    "data": (b"a", None, None, b"data: a\n\n"),
    "empty data": (b"", None, None, b"data: \n\n"),
    "a leading space": (b" a", None, None, b"data:  a\n\n"),
    "two lines": (b"a\nb", None, None, b"data: a\ndata: b\n\n"),
    "a line end at the end": (b"a\n", None, None, b"data: a\ndata: \n\n"),
    "an empty line inside": (b"a\n\nb", None, None, b"data: a\ndata: \ndata: b\n\n"),
    "what looks like a field": (b"id: 7\nevent: x", None, None, b"data: id: 7\ndata: event: x\n\n"),
    "a name": (b"a", b"ping", None, b"event: ping\ndata: a\n\n"),
    "an id": (b"a", None, b"1-7", b"id: 1-7\ndata: a\n\n"),
    "all": (b"a", b"ping", b"1-7", b"id: 1-7\nevent: ping\ndata: a\n\n"),
    "characters of several bytes": ("你好 🙂\u2028".encode(), None, None, "data: 你好 🙂\u2028\n\n".encode()),
    "NUL": (b"\0", None, None, b"data: \0\n\n"),
    "a colon": (b":", None, None, b"data: :\n\n"),
}

# (block, what it says)
READ: dict[str, tuple[bytes, SseEvent]] = {
    "no space behind the colon": (b"data:a\n\n", SseEvent(b"a", None, False)),
    "one space is taken, no more": (b"data:  a \n\n", SseEvent(b" a ", None, False)),
    "a tab is no space": (b"data:\ta\n\n", SseEvent(b"\ta", None, False)),
    "a field without a colon is empty": (b"data\n\n", SseEvent(b"", None, False)),
    "two such are one line end": (b"data\ndata\n\n", SseEvent(b"\n", None, False)),
    "CRLF": (b"event: x\r\ndata: a\r\n\r\n", SseEvent(b"a", b"x", False)),
    "CR": (b"event: x\rdata: a\r\r", SseEvent(b"a", b"x", False)),
    "mixed": (b"data: a\r\ndata: b\rdata: c\n\r\n", SseEvent(b"a\nb\nc", None, False)),
    "without its empty line": (b"data: a", SseEvent(b"a", None, False)),
    "the last name counts": (b"event: x\nevent: y\ndata: a\n\n", SseEvent(b"a", b"y", False)),
    "an id": (b"id: 1\ndata: a\n\n", SseEvent(b"a", None, True)),
    "a retry": (b"retry: 1\n\n", SseEvent(None, None, True)),
    "an unknown field": (b"dataset: 1\ndata: a\n\n", SseEvent(b"a", None, True)),
    "a name in other case is another field": (b"Data: a\n\n", SseEvent(None, None, True)),
    "white space before the name makes another field": (b" data: a\n\n", SseEvent(None, None, True)),
    "a comment among fields": (b": c\ndata: a\n\n", SseEvent(b"a", None, False)),
    "only a comment": (b": c\n\n", SseEvent(None, None, False)),
    "only a name": (b"event: x\n\n", SseEvent(None, b"x", False)),
    "nothing": (b"\n", SseEvent(None, None, False)),
}

# A body, and the data of the events that end in it.
BODIES: dict[str, tuple[bytes, list[bytes]]] = {
    "LF": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "LF, CRLF": (b"data: a\n\r\ndata: b\n\r\n", [b"a", b"b"]),
    "CR, LF are one line end": (b"data: a\r\ndata: b\r\r\n", [b"a\nb"]),
    "CRLF, LF": (b"data: a\r\n\ndata: b\r\n\n", [b"a", b"b"]),
    "CRLF, CR": (b"data: a\r\n\rdata: b\r\n\r", [b"a", b"b"]),
    "LF, CR": (b"data: a\n\rdata: b\n\r", [b"a", b"b"]),
    "more empty lines than needed": (b"\n\r\n\rdata: a\n\n\n\r\n\r\rdata: b\n\n\n", [b"a", b"b"]),
    "comments": (b": c\n\n:\r\n\r\ndata: a\n\n", [b"a"]),
    "characters of several bytes": (
        "data: 🙂é\n\ndata: 你\r\rdata: \u2028\u0085\n\n".encode(),
        ["🙂é".encode(), "你".encode(), "\u2028\u0085".encode()],
    ),
    "several lines": (b"data: a\ndata: b\r\ndata: c\r\r\ndata: d\n\n", [b"a\nb\nc", b"d"]),
    "an unfinished event": (b"data: a\n\ndata: b\n", [b"a"]),
    "an unfinished line": (b"data: a\n\ndata: b", [b"a"]),
}


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    """The blocks found (empty ones left out), and what is left."""
    splitter = SseSplitter()
    blocks: list[bytes] = []
    pending = b""
    for piece in pieces:
        ends = splitter.feed(piece)
        begin = splitter.skip
        assert begin == 0 or piece.startswith(b"\n")
        for end in ends:
            blocks.append(pending + piece[begin:end])
            pending = b""
            begin = end
        pending += piece[begin:]
    return [block for block in blocks if block.strip(b"\r\n")], pending


# Writing and reading one event.


@pytest.mark.parametrize("name", ENCODED)
def test_what_is_encoded_is_read_back(name: str) -> None:
    data, event, id, block = ENCODED[name]
    assert encode_event(data, event, id) == block
    assert parse_event(block) == SseEvent(data, event, id is not None)
    assert parse_event(block.replace(b"\n", b"\r\n")) == parse_event(block.replace(b"\n", b"\r")) == parse_event(block)
    assert not is_comment(block)


@pytest.mark.parametrize("name", READ)
def test_an_event_is_read_as_the_standard_says(name: str) -> None:
    block, event = READ[name]
    assert parse_event(block) == event
    assert parse_event(normalise_line_ends(block)) == event


@pytest.mark.parametrize("bad", [b"a\nb", b"a\r", b"\r\nx", b"\0"])
def test_an_id_or_name_that_would_forge_fields_is_refused(bad: bytes) -> None:
    """CVE-2026-44214 and its kind: a line end in an id or event name begins a field of the attacker's."""
    with pytest.raises(ValueError, match="line end"):
        encode_event(b"a", id=bad)
    with pytest.raises(ValueError, match="line end"):
        encode_event(b"a", event=bad)


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_a_line_end_in_data_begins_a_new_data_line(line_end: bytes) -> None:
    assert encode_event(b"a" + line_end + b"id: 1") == b"data: a\ndata: id: 1\n\n"


def test_a_comment_is_one_line_whatever_it_holds() -> None:
    assert encode_comment(b"keep-alive") == b": keep-alive\n\n"
    assert encode_comment(b"a\ndata: b\r\rc") == b": a data: b  c\n\n"
    assert is_comment(encode_comment(b""))


@pytest.mark.parametrize(
    ("block", "answer"),
    [
        (b": a\n\n", True),
        (b":\n:\r\n\r\n", True),
        (b"\n", True),
        (b": a\ndata: b\n\n", False),
        (b"id: 1\n\n", False),
        (b" : a\n\n", False),
    ],
)
def test_a_comment_has_nothing_but_comment_lines(block: bytes, answer: bool) -> None:
    assert is_comment(block) is answer


@pytest.mark.parametrize(
    ("block", "normal"),
    [
        (b"data: a\n\n", b"data: a\n\n"),
        (b"data: a", b"data: a\n\n"),
        (b"data: a\r\n\r\n", b"data: a\n\n"),
        (b"data: a\r\r", b"data: a\n\n"),
        (b"event: x\rdata: a\r\n\r", b"event: x\ndata: a\n\n"),
    ],
)
def test_line_ends_are_made_lf(block: bytes, normal: bytes) -> None:
    assert normalise_line_ends(block) == normal


# Splitting.


@pytest.mark.parametrize("name", BODIES)
def test_events_are_found_however_the_body_is_cut(name: str) -> None:
    body, datas = BODIES[name]
    blocks, left = split([body])
    assert [data for block in blocks if (data := parse_event(block).data) is not None] == datas
    for pieces in ways(body):
        found, rest = split(pieces)
        assert [normalise_line_ends(block) for block in found] == [normalise_line_ends(block) for block in blocks]
        assert rest == left


def test_an_event_that_ends_in_cr_is_not_held_back_for_its_lf() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\r\r") == [9]
    assert not splitter.at_boundary
    assert splitter.feed(b"\ndata: b\n\n") == [10]
    assert splitter.skip == 1
    assert splitter.at_boundary


def test_the_lf_of_a_line_inside_an_event_belongs_to_the_event() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\r") == []
    assert splitter.feed(b"\n") == []
    assert splitter.skip == 0
    assert splitter.feed(b"\n") == [1]


def test_nothing_is_at_a_boundary_inside_an_event() -> None:
    splitter = SseSplitter()
    assert splitter.at_boundary
    for piece, at_boundary in [
        (b"d", False),
        (b"\n", True),
        (b"\n", True),
        (b"", True),
        (b"a\r", False),
        (b"\r", False),
    ]:
        splitter.feed(piece)
        assert splitter.at_boundary is at_boundary, piece


@pytest.mark.parametrize("piece_bytes", [1, 11, 1 << 20])
def test_an_event_costs_the_same_however_many_there_are(piece_bytes: int) -> None:
    def cost(events: int) -> int:
        body = b"data: abc\n\n" * events
        splitter = SseSplitter()
        return count_calls(
            lambda: [splitter.feed(body[at : at + piece_bytes]) for at in range(0, len(body), piece_bytes)]
        )

    few, many = cost(100), cost(400)
    assert many < 4.2 * few


# Properties.

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace"))


@given(texts, st.none() | texts, st.none() | texts)
def test_any_text_is_read_back_with_its_line_ends_made_lf(data: bytes, event: bytes | None, id: bytes | None) -> None:
    if re.search(rb"[\r\n\0]", (event or b"") + (id or b"")):
        return
    block = encode_event(data, event, id)
    expected = re.sub(rb"\r\n|\r", b"\n", data)
    assert parse_event(block) == SseEvent(expected, event, id is not None)
    assert split([block]) == ([block], b"")


@given(
    st.lists(st.tuples(st.sampled_from([b"", b"data: a", b": c", b"x", "é🙂".encode()]), line_ends), max_size=12),
    st.data(),
)
def test_no_cut_changes_the_events(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    body = b"".join(text + end for text, end in lines)
    whole, left = split([body])
    found, rest = split(data.draw(cut_anyhow(body)))
    assert list(map(normalise_line_ends, found)) == list(map(normalise_line_ends, whole))
    assert rest == left
