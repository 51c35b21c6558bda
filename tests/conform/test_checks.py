"""Each check on recordings: what is right passes, and each single thing that is wrong is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.conform.recordings import NONCE, recorded

from longwire.conform import checks
from longwire.conform.answers import ConnectionEnd
from longwire.conform.recording import Asked, Play, Recording
from longwire.conform.saying import (
    CODED,
    DONE,
    JSON,
    Ask,
    coded,
    deltas,
    dump,
    event,
    finish,
    head,
    role,
    sized,
    stream,
    words,
)

ASK = Ask(NONCE, "chat", True)
TEXTS = words(ASK, 3)
TEXT = "".join(TEXTS)
GOOD = stream(ASK, TEXTS)
PLAY = Play((), TEXT)
BROKE = Play((), TEXT, checks.NOTHING)
BEGIN = [*role(ASK), *deltas(ASK, TEXTS)]
ERROR = event(dump({"error": {"message": "it fell over"}}))


def answered(*events: bytes, play: Play = PLAY, last: bool = True, end: ConnectionEnd = "open") -> Recording:
    return recorded(CODED, *coded(events, last=last), play=play, end=end)


def test_a_right_answer_is_intact() -> None:
    assert checks.intact(answered(*GOOD)) == ""


WRONG: dict[str, Sequence[bytes]] = {
    "an event is missing": [*GOOD[:2], *GOOD[3:]],
    "an event comes twice": [*GOOD[:2], *GOOD[1:]],
    "events in another order": [GOOD[0], GOOD[2], GOOD[1], *GOOD[3:]],
    "the last event comes twice": [*GOOD, GOOD[-1]],
    "no end marker": GOOD[:-1],
    "no finish": [*GOOD[:-2], GOOD[-1]],
    "an event behind the end marker": [*GOOD, GOOD[1]],
    "an error besides": [*GOOD[:-1], ERROR, GOOD[-1]],
    "something that is no JSON": [*GOOD[:-1], b"data: ping\n\n", GOOD[-1]],
    "another one's event": [*GOOD[:2], *deltas(ASK, ["ba9876543210.0 "]), *GOOD[2:]],
    "a replaced code point": [*GOOD[:2], *deltas(ASK, ["\ufffd"]), *GOOD[2:]],
    "another finish": [*BEGIN, finish(ASK, "length"), DONE],
}


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_thing_is_found(name: str) -> None:
    assert checks.intact(answered(*WRONG[name]))


@pytest.mark.parametrize(
    "recording",
    [
        answered(*GOOD, last=False),
        answered(*GOOD, last=False, end="closed"),
        recorded(head(status="500 No", kind=JSON, length=0), play=PLAY),
        recorded(play=PLAY),
        recorded(sized(b"{}") + sized(b"{}"), play=PLAY),
    ],
)
def test_an_answer_that_is_not_one_whole_one_is_not_intact(recording: Recording) -> None:
    assert checks.intact(recording)


def test_a_stream_for_who_asked_for_none_is_not_right() -> None:
    assert checks.intact(replace(answered(*GOOD), streamed=True)) == ""
    assert checks.intact(replace(answered(*GOOD), streamed=False))


def test_answers_in_order_and_none_besides() -> None:
    assert checks.in_order(answered(*GOOD)) == ""
    assert checks.in_order(recorded(CODED, *coded(GOOD), CODED, *coded(GOOD), play=PLAY))
    assert checks.in_order(recorded(play=PLAY))
    assert checks.in_order(answered(*BEGIN))


HONEST: dict[str, Recording] = {
    "cut": answered(*BEGIN, play=BROKE, last=False, end="closed"),
    "reset": answered(*BEGIN, play=BROKE, last=False, end="reset"),
    "an error in band": answered(*BEGIN, ERROR, DONE, play=BROKE),
    "a status": recorded(sized(dump({"error": "x"}), status="502 Bad Gateway"), play=BROKE),
    "as clean as the engine's": answered(*BEGIN, play=BROKE),
    "the engine's own end marker": answered(*BEGIN, DONE, play=Play((), TEXT, checks.SENT_DONE)),
    "less of it, and cut": answered(*BEGIN[:2], play=BROKE, last=False, end="closed"),
}
DISHONEST: dict[str, Recording] = {
    "a finish": answered(*BEGIN, finish(ASK), play=BROKE),
    "an end marker": answered(*BEGIN, DONE, play=BROKE),
    "both": answered(*BEGIN, finish(ASK), DONE, play=BROKE),
    "a finish before the engine's end marker": answered(
        *BEGIN, finish(ASK), DONE, play=Play((), TEXT, checks.SENT_DONE)
    ),
    "no end": answered(*BEGIN, play=BROKE, last=False),
    "nothing": recorded(play=BROKE),
    "words that nobody said": answered(*BEGIN, *deltas(ASK, ["more"]), play=BROKE, last=False, end="closed"),
    "half a body as a whole one": recorded(sized(b'{"choices": ['), play=BROKE),
    "the client's fault": recorded(sized(b"{}", status="400 Bad Request"), play=BROKE),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_end(name: str) -> None:
    assert checks.honest(HONEST[name]) == ""


@pytest.mark.parametrize("name", DISHONEST)
def test_a_made_up_end(name: str) -> None:
    assert checks.honest(DISHONEST[name])


def test_an_error_arrives_with_its_words_or_does_not() -> None:
    check = checks.error_arrives("it fell over")
    assert check(answered(*BEGIN, ERROR, DONE)) == ""
    assert check(recorded(sized(dump({"error": "it fell over"}), status="502 Bad"))) == ""
    assert check(answered(*GOOD))
    assert check(recorded(sized(dump({"error": "failed"}), status="502 Bad")))
    assert check(answered(*BEGIN, ERROR, last=False))


def test_what_is_told_in_words() -> None:
    assert checks.told(answered(*BEGIN, ERROR)) == ""
    assert checks.told(answered(*BEGIN, last=False, end="closed"))
    assert checks.told(answered(*BEGIN))


def test_a_page_is_no_stream() -> None:
    page = b"<html></html>"
    assert checks.no_success(recorded(sized(page, kind="text/html"))) == ""
    assert checks.no_success(recorded(sized(page, status="502 Bad", kind="text/html"))) == ""
    assert checks.no_success(answered(*GOOD))
    assert checks.no_success(recorded())


def seen(left_s: float | None, missed: Sequence[int] = (), fields: Sequence[tuple[str, str]] = ()) -> Asked:
    return Asked(NONCE, "POST /", list(fields), b"", 0.0, list(missed), left_s)


@pytest.mark.parametrize(("left_s", "is_right"), [(1.5, True), (3.0, True), (3.5, False), (None, False)])
def test_the_engine_is_left_in_time(left_s: float | None, is_right: bool) -> None:
    recording = recorded(end="left", marks={"leave": 1.0}, asked=[seen(left_s)])
    assert (checks.freed(2.0)(recording) == "") is is_right


def test_a_client_that_never_left_and_an_engine_that_was_never_asked_prove_nothing() -> None:
    assert checks.freed(2.0)(recorded(asked=[seen(1.0)]))
    assert checks.freed(2.0)(recorded(marks={"leave": 1.0}))


def test_a_missed_event_is_told() -> None:
    assert checks.in_time(recorded(asked=[seen(None)])) == ""
    assert checks.in_time(recorded(asked=[seen(None, [3])]))


def test_how_often_the_engine_was_asked() -> None:
    assert checks.asked_once(recorded(asked=[seen(None)])) == ""
    assert checks.asked_once(recorded())
    assert checks.asked_once(recorded(asked=[seen(None)] * 2))
    assert checks.never_asked(recorded()) == ""
    assert checks.never_asked(recorded(asked=[seen(None)]))


def test_what_the_engine_must_not_see() -> None:
    check, play = checks.secret_is_kept("authorization", "x-api-key"), Play((), secret="Bearer mine")
    assert check(recorded(play=play, asked=[seen(None, fields=[("authorization", "Bearer other")])])) == ""
    assert check(recorded(play=play, asked=[seen(None, fields=[("authorization", "Bearer mine")])]))
    assert check(recorded(play=play, asked=[seen(None, fields=[("x-api-key", "Bearer mine")])]))
    assert check(recorded(play=play))


@pytest.mark.parametrize(
    ("recording", "is_refused"),
    [
        (recorded(sized(b"{}", status="400 Bad Request")), True),
        (recorded(sized(b"{}", status="400 Bad Request")[:-1], end="reset"), True),
        (recorded(sized(b"{}", status="400 Bad Request")[:-1]), False),
        (recorded(end="closed"), True),
        (recorded(end="reset"), True),
        (recorded(), False),
        (recorded(sized(b"{}")), False),
        (recorded(sized(b"{}", status="500 Oh")), False),
    ],
)
def test_what_a_refusal_is(recording: Recording, is_refused: bool) -> None:
    assert (checks.refused(recording) == "") is is_refused


def test_fields_and_statuses() -> None:
    recording = recorded(sized(b"{}", ("Retry-After", "7"), status="429 Slow"))
    assert checks.both(checks.status(429), checks.field_is("retry-after", "7"))(recording) == ""
    assert checks.status(200)(recording)
    assert checks.server_error(recording)
    assert checks.client_error(recording) == ""
    assert checks.field_is("retry-after", "8")(recording)
    assert checks.field_has("retry-after", "6", "7")(recording) == ""
    assert checks.field_has("cache-control", "no-store")(recording)
    assert checks.field_is_absent("retry-after")(recording)
    assert checks.field_is_absent("x-hop")(recording) == ""
    assert checks.body_has("x")(recording)
