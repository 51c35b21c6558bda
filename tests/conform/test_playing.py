"""One case at a time against a relay that is right: engine, clients and results, over real sockets and in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.conform.relay import Relay, Talk
from tests.conform.relays import BuffersAll

from longwire.conform.engine import Engine
from longwire.conform.playing import Theatre, play, record, was_shed
from longwire.conform.recording import Play
from longwire.conform.row import Case
from longwire.conform.rows import choose
from longwire.conform.run import is_offered, phases, run, wait_ready
from longwire.conform.saying import Last, refusal
from longwire.conform.stage import Do, Freed, Part, Reached, Stage, Target, plain

QUICK = ["crlf", "reset-between-events", "status-429", "pipelined", "leaves-in-silence", "chunked-body", "http-1.0"]


@asynccontextmanager
async def theatre(kind: type[Relay] = Relay) -> AsyncIterator[Theatre]:
    engine = Engine()
    await engine.start()
    relay = kind(engine.port)
    try:
        yield Theatre(engine, Target("127.0.0.1", await relay.start()))
    finally:
        await relay.stop()
        await engine.stop()


def case_of(name: str, streamed: bool = True) -> Case:
    return Case(choose(name)[0], "chat", streamed)


@pytest.mark.parametrize("name", QUICK)
async def test_a_case_passes_a_relay_that_is_right(name: str) -> None:
    async with theatre() as all_:
        result = await play(case_of(name), all_)
        assert (result.state, result.wrong) == ("passed", "")
        assert "200" in result.came or name == "status-429" or name.startswith("leaves")


async def test_a_case_that_fails_says_what_came() -> None:
    async with theatre(BuffersAll) as all_:
        result = await play(case_of("no-buffering"), replace(all_, pace_s=0.05))
        assert result.state == "failed"
        assert result.wrong == "event 0 was not there before the next was made"
        assert result.came.startswith("200 text/event-stream")


async def test_an_optional_case_is_never_failed() -> None:
    async with theatre() as all_:
        assert (await play(case_of("replay-by-location"), all_)).state == "not offered"
        assert (await play(case_of("authorization-is-kept-back"), all_)).state == "offered"


async def test_the_engine_notes_when_it_is_left() -> None:
    def scene(stage: Stage) -> Sequence[Part]:
        request = stage.request(lambda _: Play((Last.HOLD,)))
        steps = (request.data, Reached(request.nonce), Do.RESET, Freed(request.nonce))
        return (Part((request,), steps),)

    async with theatre() as all_:
        recording = await record(Case(replace(choose("crlf")[0], scene=scene), "chat", True), all_)
        assert recording.visits[0].end == "left"
        left_s = recording.asked[0].left_s
        assert left_s is not None and left_s >= recording.visits[0].marks["reset"]


async def test_only_the_process_that_has_this_request_is_killed() -> None:
    asked: list[tuple[str, int]] = []

    def kill(peers: Iterable[tuple[str, int]]) -> str:
        asked.extend(peers)
        return "there is nothing"

    async with theatre() as all_:
        await play(case_of("crlf"), all_)
        result = await play(case_of("worker-killed"), replace(all_, kill=kill))
        assert (result.state, result.wrong) == ("not offered", "there is nothing")
        assert len(asked) == 1


async def test_nothing_of_a_scene_is_left_with_the_engine() -> None:
    async with theatre() as all_:
        await play(case_of("crlf"), all_)
        assert all_.engine.rehearsed == {}


async def test_requests_without_a_mark_are_answered_well() -> None:
    """As gateways send them, to see whether an engine is there."""
    async with theatre() as all_:
        reader, writer = await asyncio.open_connection("127.0.0.1", all_.engine.port)
        for path in (b"/v1/models", b"/health", b"/nothing"):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 404" if path == b"/nothing" else b"HTTP/1.1 200")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        writer.close()


async def test_a_gateway_that_does_not_answer_is_no_failure_of_a_row() -> None:
    engine = Engine()
    await engine.start()
    nobody = Theatre(engine, Target("127.0.0.1", 9), pace_s=0.1)
    said = await wait_ready(nobody, 0.3, lambda: True)
    assert await wait_ready(nobody, 5.0, lambda: False) == "the gateway has ended"
    assert not await is_offered("chat", nobody)
    results = await run(choose("crlf"), nobody)
    assert {result.state for result in results} == {"left out"}
    await engine.stop()
    assert said.count("no answer") == 1 and "connection open" not in said
    assert "through http://127.0.0.1:9 in 0.3 s" in said and "onnect" in said and "longer with --ready-s" in said
    assert f"http://127.0.0.1:{engine.port} for its engine" in said


class Shedding(Relay):
    """Answers one request with 503 without asking the engine, as a breaker does."""

    is_open = True

    async def talk(self, talk: Talk) -> None:
        if not self.is_open:
            await super().talk(talk)
            return
        self.is_open = False
        await talk.next_request()
        await talk.whole(503, b"{}", close=True)


async def test_what_was_shed_is_played_again() -> None:
    async with theatre(Shedding) as all_:
        result = await play(case_of("crlf"), replace(all_, pace_s=0.05))
        assert (result.state, result.repeats) == ("passed", 1)


async def test_an_engine_s_own_503_is_not_shed() -> None:
    async with theatre() as all_:
        row = replace(choose("crlf")[0], scene=plain(refusal("503 Service Unavailable", "no")))
        assert not was_shed(await record(Case(row, "chat", True), all_))


def test_failing_rows_come_behind_those_that_are_well_and_the_killing_one_last() -> None:
    chosen = [case_of(name) for name in ("worker-killed", "status-500", "streams-beside-each-other", "crlf")]
    assert [[case.row.name for case in phase] for phase in phases(chosen)] == [
        ["crlf"],
        ["streams-beside-each-other"],
        ["status-500"],
        ["worker-killed"],
    ]
