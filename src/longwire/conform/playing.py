"""One case played: its clients and its scripts brought together, and what came of it.

What lives here: the recording of a scene, and the result of a row. What must not: the order of cases (run.py), words for people
(report.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from .answers import Answer
from .bell import Bell
from .client import Client, Kill, kill_nothing
from .engine import Engine, Rehearsed
from .meaning import read_meaning
from .recording import Recording, Visit
from .row import Case
from .stage import Stage, Target

SCENE_S = 15.0
"""No scene lasts longer, whatever its steps add up to."""
SETTLE_S = 0.02
"""What the engine notes when a client is done already: that it was left, that it has written all."""
REPEATS = 6
REST_S = 1.0
"""A gateway that has seen many failures may refuse without asking the engine. That is its right, and another row's matter: the
case is played again after a rest, so often."""

State = Literal["passed", "failed", "offered", "not offered", "left out"]


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    case: Case
    state: State
    came: str
    wrong: str
    took_s: float
    repeats: int = 0


@dataclass
class Theatre:
    """What all cases share. ``pace_s`` multiplies every bound on waiting; ``kill`` ends a worker."""

    engine: Engine
    target: Target
    pace_s: float = 1.0
    kill: Kill = kill_nothing


async def record(case: Case, theatre: Theatre) -> Recording:
    """Play a case once."""
    parts = case.row.scene(Stage(theatre.target, case.api, case.streamed))
    bell = Bell()
    rehearsed: dict[str, Rehearsed] = {}
    clients: list[Client] = []
    for part in parts:
        client = Client(part, bell, rehearsed, theatre.pace_s)
        client.kill = theatre.kill
        clients.append(client)
        for request in part.requests:
            if request.nonce not in rehearsed:
                rehearsed[request.nonce] = Rehearsed(request.script, bell, client.has, pace_s=theatre.pace_s)
    theatre.engine.rehearsed |= rehearsed
    try:
        async with asyncio.timeout(SCENE_S * theatre.pace_s):
            visits: list[Visit] = await asyncio.gather(*(client.run(theatre.target) for client in clients))
        await asyncio.sleep(SETTLE_S)
    finally:
        for nonce in rehearsed:
            theatre.engine.rehearsed.pop(nonce, None)
    asked = tuple(each for one in rehearsed.values() for each in one.asked)
    plays = {nonce: one.play for nonce, one in rehearsed.items()}
    return Recording(tuple(visits), asked, plays, case.streamed)


async def play(case: Case, theatre: Theatre) -> Result:
    """Play a case, and once more where it was refused for what others have done."""
    began_s = asyncio.get_running_loop().time()
    repeats = 0
    while True:
        try:
            recording = await record(case, theatre)
        except TimeoutError:
            return Result(case, _state(case, "late"), "", f"the scene was not over in {SCENE_S:g} s", SCENE_S, repeats)
        wrong = case.row.check(recording)
        if not wrong or repeats >= REPEATS or not was_shed(recording):
            break
        repeats += 1
        await asyncio.sleep(REST_S * theatre.pace_s)
    if wrong and repeats == REPEATS:
        wrong += f"; refused {repeats + 1} times without asking the engine"
    took_s = asyncio.get_running_loop().time() - began_s
    return Result(case, _state(case, wrong), describe(recording), wrong, took_s, repeats)


def _state(case: Case, wrong: str) -> State:
    if case.row.is_required:
        return "failed" if wrong else "passed"
    return "not offered" if wrong else "offered"


def was_shed(recording: Recording) -> bool:
    """A client's first request was refused, and the engine never asked for it. A later one may have met what the first left."""
    return any(
        visit.answer.status in (429, 502, 503) and not recording.asked_by(visit.nonces[0])
        for visit in recording.visits
        if visit.nonces
    )


def describe(recording: Recording) -> str:
    """What came, for people: of the first client, and how many others there were."""
    visit = recording.visits[0]
    parts = [_describe_answer(answer) for answer in visit.answers] or ["no answer"]
    parts.append(
        {"open": "connection open", "closed": "closed", "reset": "reset", "left": "left by the client"}[visit.end]
    )
    parts += [mark for mark in visit.marks if mark.startswith("failed")]
    if len(recording.visits) > 1:
        parts.append(f"and {len(recording.visits) - 1} more")
    return "; ".join(parts)


def _describe_answer(answer: Answer) -> str:
    meaning = read_meaning(answer)
    kind = answer.get("content-type").partition(";")[0] or "no type"
    said = [f"{answer.status} {kind}", f"{len(answer.body)} bytes"]
    if answer.is_stream:
        said.append(f"{len(answer.events)} events")
    said += [f"finish {meaning.finish}"] if meaning.finish else []
    said += ["[DONE]" if meaning.dones == 1 else f"{meaning.dones} x [DONE]"] if meaning.dones else []
    said += [f"error {str(meaning.errors[0])[:60]}"] if meaning.errors else []
    return ", ".join([*said, answer.end])
