"""The whole run: which cases, in which order, and how many at once.

What lives here: the order. What must not: how one case is played (playing.py), how a gateway is started (subject.py).

Cases run side by side where they do not disturb each other. Those in which the engine fails come behind those in which it is
well, because a gateway may take a failing engine out of use for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .playing import Result, Theatre, describe, play, record
from .recording import Recording
from .row import Case, Group, Row, cases
from .saying import Api, well
from .stage import plain

AT_ONCE = 12
"""So many cases side by side: more would measure this machine and not the gateway."""
FAILING: frozenset[Group] = frozenset({"endings", "errors", "in-band"})
CROWDED: frozenset[Group] = frozenset({"concurrency"})

Tell = Callable[[Result], None]


def phases(chosen: Sequence[Case]) -> list[list[Case]]:
    """Well, crowded, failing, alone."""
    ordered: list[list[Case]] = [[], [], []]
    alone: list[list[Case]] = []
    for case in chosen:
        if case.row.is_alone:
            alone.append([case])
        else:
            group = case.row.group
            ordered[1 if group in CROWDED else 2 if group in FAILING else 0].append(case)
    return [phase for phase in [*ordered, *alone] if phase]


async def run(rows: Sequence[Row], theatre: Theatre, tell: Tell = lambda _: None) -> list[Result]:
    """Play all rows in all forms whose API is offered."""
    offered = {api: await is_offered(api, theatre) for api in ("chat", "text")}
    results: list[Result] = []
    for phase in phases([case for case in cases(rows) if offered[case.api]]):
        places = asyncio.Semaphore(AT_ONCE if phase[0].row.group not in CROWDED else 2)
        results += await asyncio.gather(*(_play_in(places, case, theatre, tell) for case in phase))
    results += [
        Result(case, "left out", "", "this API is not offered", 0.0) for case in cases(rows) if not offered[case.api]
    ]
    place = {case.name: i for i, case in enumerate(cases(rows))}
    return sorted(results, key=lambda result: place[result.case.name])


async def _play_in(places: asyncio.Semaphore, case: Case, theatre: Theatre, tell: Tell) -> Result:
    async with places:
        result = await play(case, theatre)
    tell(result)
    return result


# Whether there is anything to try.


def _probe(api: Api) -> Case:
    row = Row("probe", "requests", ((api, False),), plain(well), lambda _: "", "", "", "")
    return Case(row, api, False)


async def is_offered(api: Api, theatre: Theatre) -> bool:
    """Whether a plain request of this API gets to the engine."""
    recording = await record(_probe(api), theatre)
    return bool(recording.asked) or recording.answer.status == 200


async def wait_ready(theatre: Theatre, limit_s: float, is_running: Callable[[], bool]) -> str:
    """Until an answer comes through the gateway; why none does, else."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    said = "nothing was tried"
    while loop.time() < deadline_s:
        if not is_running():
            return "the gateway has ended"
        recording: Recording = await record(_probe("chat"), theatre)
        if recording.answer.status == 200 and recording.asked:
            return ""
        said = _why_not(recording)
        await asyncio.sleep(0.2)
    target = theatre.target
    return (
        f"no answer came through http://{target.host}:{target.port}{target.prefix} in {limit_s:g} s (the last try: {said}); "
        f"check that the gateway listens there, has the model {target.model!r} and takes "
        f"http://127.0.0.1:{theatre.engine.port} for its engine, or give it longer with --ready-s"
    )


def _why_not(recording: Recording) -> str:
    """What came of one try, for people: of a connection that was never made only why not."""
    if recording.answer.status:
        return describe(recording)
    failed = [mark.removeprefix("failed: ") for mark in recording.visits[0].marks if mark.startswith("failed: ")]
    return failed[0] if failed else "nothing was answered"
