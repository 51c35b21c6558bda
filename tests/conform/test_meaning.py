"""What an answer says, of both APIs, streamed and whole."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from longwire.conform.answers import Answer, AnswerReader, Piece
from longwire.conform.meaning import read_meaning
from longwire.conform.saying import CODED, JSON, Api, Ask, coded, dump, event, head, sized, well

NONCE = "0123456789ab"


def answer_of(*data: bytes) -> Answer:
    return AnswerReader([Piece(0.0, b"".join(data))], "closed", 1.0).answers[0]


def streamed(*events: bytes) -> Answer:
    return answer_of(CODED, *coded(events))


@pytest.mark.parametrize("api", ["chat", "text"])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_whole_answer(api: Api, is_streamed: bool) -> None:
    play = well(Ask(NONCE, api, is_streamed))
    meaning = read_meaning(answer_of(*[step for step in play.steps if isinstance(step, bytes)]))
    assert (meaning.text, meaning.finish, meaning.dones) == (play.text, "stop", int(is_streamed))
    assert not meaning.errors and not meaning.stray
    assert meaning.claims_success()


@pytest.mark.parametrize(
    "data",
    [
        event(dump({"error": {"message": "x"}})),
        event(dump({"error": "x"})),
        event(dump({"object": "error", "message": "x"})),
        event(dump({"choices": [], "error": {"message": "x"}})),
        b"event: error\ndata: x\n\n",
        b'event: error\ndata: {"message": "x"}\n\n',
    ],
)
def test_every_shape_of_an_error(data: bytes) -> None:
    meaning = read_meaning(streamed(data, event(b"[DONE]")))
    assert meaning.errors
    assert not meaning.claims_success()


@pytest.mark.parametrize("value", [{"error": None}, {"error": {}}, {"choices": [{"delta": {"content": "error"}}]}, {}])
def test_what_is_no_error(value: Any) -> None:
    assert not read_meaning(streamed(event(dump(value)))).errors


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 3\n\n", b"data: []\n\n", b"data: ping\n\n"])
def test_what_is_no_object_is_stray(data: bytes) -> None:
    assert len(read_meaning(streamed(data)).stray) == 1


def test_events_behind_the_end_marker_are_counted() -> None:
    assert read_meaning(streamed(event(b"[DONE]"), event(b"{}"), event(b"[DONE]"))).after_done == 2


def test_gzip_is_unpacked_and_rubbish_in_its_place_is_stray() -> None:
    fields = ("Content-Encoding", "gzip")
    assert read_meaning(answer_of(sized(gzip.compress(b'{"choices": [{"text": "a"}]}'), fields))).text == "a"
    assert read_meaning(answer_of(sized(b"rubbish", fields))).stray


@pytest.mark.parametrize("choices", [None, {}, [None], [{"delta": None}], [{"delta": {"content": 3}}], "x"])
def test_odd_choices_harm_nobody(choices: Any) -> None:
    assert read_meaning(answer_of(head(kind=JSON), dump({"choices": choices}))).text == ""
