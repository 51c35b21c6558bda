"""One run from its start to its end: the engine, the gateway under test, the rows, and what runs beside them.

What lives here: bringing the parts together, and taking them apart on every path. What must not: rows, words for people.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ..words.addresses import split_address, unknown_host
from .checks import intact
from .engine import Engine
from .playing import Result, Theatre, record
from .recording import Play, Recording
from .row import Case, Row
from .run import Tell, run, wait_ready
from .saying import CODED, DONE, Ask, Pause, Script, coded, deltas, finish, role, said, words
from .stage import Answers, Part, Stage, Target
from .subject import Subject, command_line, free_port

LOG_CHARS = 600
"""So much of what a gateway has said is shown where it did not start."""
BESIDE_PAUSE_S = 0.5
BESIDE_ROUNDS = 10
BESIDE_PACE = 20.0
"""Streams beside last as long as the rows do, and a client waits for them so much longer."""


class NotReady(Exception):
    """Nothing could be tried."""


@dataclass(frozen=True)
class Plan:
    """What is to be tried, and how. Either ``start`` or ``url``."""

    start: str
    url: str
    upstream_port: int
    model: str
    fields: tuple[tuple[str, str], ...]
    ready_s: float
    pace_s: float
    beside: int
    log: Path | None

    @property
    def subject(self) -> str:
        return self.start or self.url


async def hold(plan: Plan, rows: Sequence[Row], tell: Tell) -> tuple[list[Result], float]:
    """Try the gateway with these rows. Returns what came of them, and how long it took."""
    target = _target(plan)
    if plan.url:
        await _look_up(target)
    engine = Engine()
    await engine.start(plan.upstream_port)
    try:
        with _log(plan) as log:
            return await _hold(plan, target, engine, rows, tell, log)
    finally:
        await engine.stop()


def _log(plan: Plan) -> IO[bytes]:
    return tempfile.TemporaryFile() if plan.log is None else plan.log.open("w+b")


async def _hold(
    plan: Plan, target: Target, engine: Engine, rows: Sequence[Row], tell: Tell, log: IO[bytes]
) -> tuple[list[Result], float]:
    subject: Subject | None = None
    theatre = Theatre(engine, target, plan.pace_s)
    try:
        if plan.start:
            subject = Subject(command_line(plan.start, target.port, f"http://127.0.0.1:{engine.port}"), log)
            theatre.kill = subject.kill_worker
        if why := await wait_ready(theatre, plan.ready_s, lambda: subject is None or subject.is_running()):
            raise NotReady(why + _last_words(log))
        began_s = time.monotonic()
        async with _beside(plan.beside, theatre) as beside:
            results = await run(rows, theatre, tell)
        for result in beside:
            tell(result)
        return [*results, *beside], time.monotonic() - began_s
    finally:
        if subject is not None:
            subject.stop()


def _target(plan: Plan) -> Target:
    if not plan.url:
        return Target("127.0.0.1", free_port(), "", plan.model, plan.fields)
    try:
        parts = split_address(plan.url)
    except ValueError as error:
        raise NotReady(
            f"{plan.url!r} is no URL that can be connected to ({error}): it looks like http://127.0.0.1:4000."
        ) from None
    if parts.scheme != "http" or not parts.hostname:
        raise NotReady(f"{plan.url!r} is no http:// URL: it looks like http://127.0.0.1:4000; end TLS before it.")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, parts.port or 80, path, plan.model, plan.fields)


async def _look_up(target: Target) -> None:
    """A host that nobody knows will not be there in a minute either: it is not waited for."""
    try:
        await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NotReady(unknown_host(target.host, error.strerror or "no address")) from None


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    said = log.read().decode(errors="replace").strip()
    return f"; it said: {said[-LOG_CHARS:]}" if said else ""


# What runs beside.


def steadily(count: int) -> Script:
    """An event now and then, ``count`` times."""

    def script(ask: Ask) -> Play:
        texts = words(ask, count)
        events = [
            step
            for each in coded([*role(ask), *deltas(ask, texts)], last=False)
            for step in (each, Pause(BESIDE_PAUSE_S))
        ]
        return said(texts, CODED, *events, *coded([finish(ask), DONE]))

    return script


def _streams(count: int) -> Row:
    def scene(stage: Stage) -> Sequence[Part]:
        requests = [stage.request(steadily(BESIDE_ROUNDS)) for _ in range(count)]
        return [Part((request,), (request.data, Answers())) for request in requests]

    return Row(
        "beside", "concurrency", (("chat", True),), scene, intact,
        f"{count} streams beside all other rows, again and again", "each whole",
        "What goes wrong elsewhere must not be felt here.",
    )  # fmt: skip


@asynccontextmanager
async def _beside(count: int, theatre: Theatre) -> AsyncIterator[list[Result]]:
    """Keeps ``count`` streams running for as long as the body takes; its list has their one result behind it."""
    results: list[Result] = []
    if not count:
        yield results
        return
    case = Case(_streams(count), "chat", True)
    patient = replace(theatre, pace_s=theatre.pace_s * BESIDE_PACE)
    is_over = asyncio.Event()
    task = asyncio.create_task(_again(case, patient, is_over))
    try:
        await asyncio.sleep(BESIDE_PAUSE_S)
        yield results
    finally:
        is_over.set()
        recordings = await task
    wrong = next((wrong for each in recordings if (wrong := case.row.check(each))), "")
    came = f"{len(recordings)} times {count} streams"
    results.append(Result(case, "failed" if wrong else "passed", came, wrong, 0.0))


async def _again(case: Case, theatre: Theatre, is_over: asyncio.Event) -> list[Recording]:
    recordings = [await record(case, theatre)]
    while not is_over.is_set():
        recordings.append(await record(case, theatre))
    return recordings
