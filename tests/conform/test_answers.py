"""What came is read the same however it was cut, and what is wrong with it is said and not refused."""

from __future__ import annotations

import pytest

from longwire.conform.answers import AnswerReader, Piece
from longwire.conform.saying import CODED, Ask, coded, head, sized, stream

ASK = Ask("0123456789ab", "chat", True)
EVENTS = stream(ASK, ["a", "漢🙂"])
BODY = b"".join(EVENTS)
STREAM = CODED + b"".join(coded(EVENTS))

WHOLE: dict[str, bytes] = {
    "chunked": STREAM,
    "by length": head(length=len(BODY)) + BODY,
    "an interim answer first": b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + STREAM,
    "two answers": sized(b"{}") + STREAM,
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n" + STREAM,
}


@pytest.mark.parametrize("name", WHOLE)
def test_any_two_pieces_are_read_as_one(name: str) -> None:
    data = WHOLE[name]
    for cut in range(len(data) + 1):
        reader = AnswerReader([Piece(0.0, data[:cut]), Piece(1.0, data[cut:])])
        assert [answer.end for answer in reader.answers] == ["whole"] * len(reader.answers)
        assert reader.answers[-1].body == BODY
        assert [event.data for event in reader.answers[-1].events] == [each[6:-2] for each in EVENTS]


def test_an_interim_answer_is_noted_with_the_final_one() -> None:
    reader = AnswerReader([Piece(0.0, WHOLE["an interim answer first"])])
    assert [(answer.interim, answer.status) for answer in reader.answers] == [([103], 200)]


def test_events_have_the_time_of_the_read_that_ended_them() -> None:
    pieces = [Piece(float(i), data) for i, data in enumerate([CODED, *coded(EVENTS)])]
    assert [event.at_s for event in AnswerReader(pieces).answers[0].events] == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("data", "connection", "end"),
    [
        (STREAM[:-5], "open", "open"),
        (STREAM[:-5], "closed", "cut"),
        (STREAM[:-5], "reset", "cut"),
        (head() + BODY, "open", "open"),
        (head() + BODY, "closed", "whole"),
        (head() + BODY, "reset", "cut"),
        (head(length=len(BODY) + 1) + BODY, "closed", "cut"),
    ],
)
def test_the_end_of_a_connection_says_whether_a_body_is_whole(data: bytes, connection: str, end: str) -> None:
    reader = AnswerReader([Piece(0.0, data)], connection, 1.0)  # type: ignore[arg-type]
    assert reader.answers[0].end == end


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n",
        CODED + b"zz\r\n",
        b"HTTP/1.1 200 O",
    ],
)
def test_what_is_wrong_is_said(data: bytes) -> None:
    assert AnswerReader([Piece(0.0, data)], "closed", 1.0).answers[0].faults


def test_an_event_without_its_empty_line_counts_at_the_end_only() -> None:
    pieces = [Piece(0.0, head() + b"data: 1\n\ndata: 2")]
    assert [event.data for event in AnswerReader(pieces).answers[0].events] == [b"1"]
    ended = AnswerReader(pieces, "closed", 1.0).answers[0].events
    assert [(event.data, event.is_ended) for event in ended] == [(b"1", True), (b"2", False)]
