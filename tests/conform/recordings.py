"""Recordings without a run: what a client of a gateway that changes nothing would have got.

What lives here: the making of recordings from a row's own scripts, and from bytes. What must not: what is asked of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from longwire.conform.answers import ConnectionEnd, Piece
from longwire.conform.recording import Asked, Play, Recording, Visit
from longwire.conform.row import Case
from longwire.conform.saying import Ask, Last
from longwire.conform.stage import Part, Stage, Target

TARGET = Target("127.0.0.1", 80)
NONCE = "0123456789ab"


def parts_of(case: Case) -> Sequence[Part]:
    return case.row.scene(Stage(TARGET, case.api, case.streamed))


def plays_of(case: Case, parts: Sequence[Part]) -> dict[str, Play]:
    return {
        request.nonce: request.script(Ask(request.nonce, case.api, case.streamed))
        for part in parts
        for request in part.requests
    }


def unchanged(case: Case) -> Recording:
    """As if the engine's bytes had gone through as they are, and its connections' ends with them."""
    parts = parts_of(case)
    plays = plays_of(case, parts)
    visits = []
    for part in parts:
        steps = [step for request in part.requests for step in plays[request.nonce].steps]
        ends: dict[object, ConnectionEnd] = {Last.FIN: "closed", Last.RESET: "reset"}
        end = next((ends[step] for step in steps if step in ends), "open")
        pieces = tuple(Piece(float(i), step) for i, step in enumerate(steps) if isinstance(step, bytes))
        nonces = tuple(request.nonce for request in part.requests)
        visits.append(Visit(nonces, pieces, end, float(len(steps)), {"came": 0.0}))
    asked = tuple(
        Asked(request.nonce, "POST /", [], request.data[request.head_bytes :], 0.0)
        for part in parts
        for request in part.requests
    )
    return Recording(tuple(visits), asked, plays, case.streamed)


def nothing(case: Case) -> Recording:
    """The gateway takes every connection, says nothing, and asks nobody."""
    parts = parts_of(case)
    visits = tuple(Visit(tuple(request.nonce for request in part.requests), (), "open", 0.0) for part in parts)
    return Recording(visits, (), plays_of(case, parts), case.streamed)


def recorded(
    *pieces: bytes,
    end: ConnectionEnd = "open",
    play: Play = Play(()),
    asked: Sequence[Asked] = (),
    marks: dict[str, float] | None = None,
) -> Recording:
    """One visit of one request, from the bytes that came."""
    visit = Visit((NONCE,), tuple(Piece(float(i), data) for i, data in enumerate(pieces)), end, 99.0, marks or {})
    return Recording((visit,), tuple(asked), {NONCE: play})
