"""Rows of the optional groups: what a gateway may offer. They never fail; they are offered or not.

What lives here: secrets, resuming, several readers, survival. In-band errors are in rows_endings.py beside what they go with.
What must not: anything that only one gateway could offer, but for the forms of a URL, which are tried as they are known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .answers import Answer
from .checks import answer_intact, intact, intact_first, secret_is_kept
from .recording import Play, Recording
from .row import CHAT_BOTH, CHAT_STREAM, Row
from .saying import CODED, DONE, Ask, Pause, coded, deltas, finish, role, said, well, words
from .stage import Answers, Do, Follow, Has, Part, Reached, Scene, Sleep, Stage

KEY = "client-key-4711"
NO_LOCATION = "no Location that names a stream"
IDS = re.compile(rb"^id: ?(.+)$", re.MULTILINE)
BEHIND = 2
"""The third event's place."""
COOKIE = "session=client-cookie-4711"


def in_two_halves(ask: Ask) -> Play:
    """Events, a pause in which others can come, and more events."""
    texts = words(ask, 8)
    events = coded([*role(ask), *deltas(ask, texts)], last=False)
    return said(texts, CODED, *events[:4], Pause(1.5), *events[4:], *coded([finish(ask), DONE]))


def with_secret(name: str, value: str) -> Scene:
    """A request with a secret in a field; the run's own where it has one, as a gateway that asks for keys must be given."""

    def scene(stage: Stage) -> Sequence[Part]:
        given = [each for field, each in stage.target.fields if field.lower() == name.lower()]
        secret = given[0] if given else value
        request = stage.request(lambda ask: well(ask)._replace(secret=secret), fields=() if given else ((name, value),))
        return (Part((request,), (request.data, Answers())),)

    return scene


def _get(stage: Stage, answers: Sequence[Answer], last_id: str = "") -> bytes | None:
    """A request for the stream that the first answer's Location names; None where it names none."""
    place = answers[0].get("location") if answers else ""
    path = place[place.index("/", 8) :] if place.startswith("http") and "/" in place[8:] else place
    if not path.startswith("/"):
        return None
    more = [("Accept", "text/event-stream"), *([("Last-Event-ID", last_id)] if last_id else [])]
    return stage.head("GET", path.removeprefix(stage.target.prefix), [*stage.target.fields, *more])


def _get_rest(stage: Stage, answers: Sequence[Answer]) -> bytes | None:
    """A request for what lies behind the third event that a replay gave an id."""
    ids = IDS.findall(bytes(answers[1].body)) if len(answers) > 1 else []
    return _get(stage, answers, ids[BEHIND].decode("latin-1")) if len(ids) > BEHIND else None


def replayed(stage: Stage) -> Sequence[Part]:
    """The stream is read, and then asked for again by the URL that its Location names."""
    request = stage.request(well)
    again = Follow(lambda answers: _get(stage, answers))
    return (Part((request,), (request.data, Answers(), again, Answers(2))),)


def resumed(stage: Stage) -> Sequence[Part]:
    """The same, and then once more with the id of the third event."""
    request = stage.request(well)
    again, rest = Follow(lambda answers: _get(stage, answers)), Follow(lambda answers: _get_rest(stage, answers))
    return (Part((request,), (request.data, Answers(), again, Answers(2), rest, Answers(3))),)


def second_is_whole(recording: Recording) -> str:
    """The second answer is the first one again."""
    answers = recording.visits[0].answers
    if len(answers) < 2:
        return NO_LOCATION if not recording.answer.get("location") else "no second answer"
    return answer_intact(answers[1], recording.play)


def third_is_the_rest(recording: Recording) -> str:
    """The third answer is what lay behind the third event."""
    answers = recording.visits[0].answers
    if len(answers) < 3:
        return NO_LOCATION if not recording.answer.get("location") else "a replay gives events no ids"
    got = [event.data for event in answers[2].events]
    whole = [event.data for event in answers[1].events]
    return "" if got == whole[BEHIND + 1 :] else f"status {answers[2].status}, {len(got)} events of {len(whole)}"


def two_readers(stage: Stage) -> Sequence[Part]:
    """A second connection reads while the stream lives; the first one stays."""
    request = stage.request(in_two_halves)
    known: list[Answer] = []

    def tell(answers: Sequence[Answer]) -> bytes:
        known.extend(answers)
        return b""

    first = (request.data, Has(f"{request.nonce}.1"), Follow(tell), Answers())
    second = (Reached(request.nonce), Sleep(0.5), Follow(lambda _: _get(stage, known)), Answers())
    return (Part((request,), first), Part((request,), second))


def both_whole(recording: Recording) -> str:
    """Both readers have the whole stream."""
    if len(recording.visits) < 2 or not recording.visits[1].answers:
        return NO_LOCATION if not recording.answer.get("location") else "no second answer"
    return intact(recording)


def killed(stage: Stage) -> Sequence[Part]:
    """In the middle of a stream the process that talks to the engine is killed with SIGKILL."""
    request = stage.request(in_two_halves)
    return (Part((request,), (request.data, Has(f"{request.nonce}.1"), Sleep(0.2), Do.KILL, Answers())),)


def survived(recording: Recording) -> str:
    """The stream is whole, over the same connection."""
    marks = recording.visits[0].marks
    if "killed" not in marks:
        return next((mark for mark in marks if mark.startswith("there is")), "nothing was killed")
    return intact_first(recording)


ROWS: tuple[Row, ...] = (
    Row("authorization-is-kept-back", "secrets", CHAT_BOTH,
        with_secret("Authorization", f"Bearer {KEY}"), secret_is_kept("authorization", "x-api-key", "api-key"),
        "a client's Authorization", "it does not reach the engine",
        "A key for the gateway is none for the engine, and stands in its log. Hosted gateways pass keys on by design."),
    Row("cookies-are-kept-back", "secrets", CHAT_BOTH, with_secret("Cookie", COOKIE), secret_is_kept("cookie"),
        "a client's Cookie", "it does not reach the engine",
        "A browser's session is of no use to an engine, and of much to others."),
    Row("replay-by-location", "resume", CHAT_STREAM, replayed, second_is_whole,
        "a stream, and a GET of the URL in its Location", "the whole stream once more",
        "A client that lost its connection can have what it missed without a second generation."),
    Row("resume-by-event-id", "resume", CHAT_STREAM, resumed, third_is_the_rest,
        "the same, with the id that a replay gives the third event in Last-Event-ID", "what lies behind the third event",
        "The same without reading again what was there."),
    Row("two-readers", "readers", CHAT_STREAM, two_readers, both_whole,
        "a second connection that reads the stream while it lives", "the whole stream for both",
        "A second window, a phone, a supervisor."),
    Row("worker-killed", "survival", CHAT_STREAM, killed, survived,
        "SIGKILL for the process that talks to the engine, in the middle of a stream",
        "the whole stream over the same connection",
        "Out of memory, a crash in native code, a deploy: no client should notice.",
        is_alone=True),
)  # fmt: skip
