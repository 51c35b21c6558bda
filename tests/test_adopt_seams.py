"""Processes that die before, in and after a failover: whoever takes over decides as the dead would have done."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
import uvloop
from tests.test_adopt import STREAMS, Client, Rooms, Trial, body_of, serve, text_of, whole_body

from longwire import generation
from longwire.engines.call import Call
from longwire.generation import Generation
from longwire.sim import SimServer
from longwire.sim.answer import answer_text
from longwire.streams.memory import Memory
from longwire.streams.stream import State
from longwire.words.reasons import CloseReason
from longwire.words.settings import EngineSettings, Settings, SimSettings


class TwinTrial(Trial):
    """Two stand-ins that say the same; the first, which is asked first, fails in each answer."""

    def __init__(self, fault: str, *, twins_model: str = "sim", **settings: Any) -> None:
        super().__init__(**settings)
        self._fault = fault
        self._twins_model = twins_model

    async def __aenter__(self) -> TwinTrial:
        self.sim, self.twin = SimServer(SimSettings(port=0, fault=[self._fault])), SimServer(SimSettings(port=0))
        engines = []
        for name, sim, weight in (("sim", self.sim, 100), ("twin", self.twin, 0)):
            host, port = await sim.start()
            alias = [f"sim={self._twins_model}"] if sim is self.twin else []
            engines.append(
                EngineSettings(name=name, url=f"http://{host}:{port}", kind="sim", weight=weight, aliases=alias)
            )
        settings = Settings(engines=engines, heartbeat_s=0.05, breaker_faults=1000, **self._settings)
        self.rooms = Rooms(Memory.make(64 << 20, 64, 64), settings)
        self.port = await serve(self.rooms)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        await self.twin.close()


def request_of(seed: int, tokens: int) -> bytes:
    sim = f'{{"tokens":{tokens},"itl_ms":1,"ttft_ms":1,"seed":{seed}}}'
    body = f'{{"model":"sim","stream":true,"sim":{sim},"messages":[{{"role":"user","content":"{seed}"}}]}}'.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Longwire-On-Disconnect: run\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def round_trip(seed: int, kills: int, fault: str) -> None:
    rng = random.Random(seed)
    async with TwinTrial(fault) as trial:
        clients = [Client(i, trial.port, slow=i % 3 == 0) for i in range(STREAMS)]
        tasks = [asyncio.create_task(each.run(request_of(i, 60 + 10 * i))) for i, each in enumerate(clients)]
        await trial.sim.wait_requests(STREAMS)
        for _ in range(kills):
            chosen = rng.choice(clients)
            chosen.progress.clear()
            if not all(task.done() for task in tasks):
                waits = [asyncio.create_task(chosen.progress.wait()), *(task for task in tasks if not task.done())]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            await trial.kill()
        responses = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        streams = list(trial.rooms.registry.list(None))
        assert sorted(map(body_of, responses)) == sorted(map(whole_body, streams))
        for index, response in enumerate(responses):
            assert b'"error"' not in response, (index, response[-420:])
            assert text_of(body_of(response)) == answer_text(index, 60 + 10 * index)
        assert all(stream.state is State.ENDED and stream.reason == "completed" for stream in streams)
        for stream in streams:
            assert not stream.log.seams or sorted(set(stream.log.seams)) == stream.log.seams


class Halting:
    """Stops the process, as far as this test goes, when its answer has come to a certain event."""

    def __init__(self, trial: TwinTrial, mark: bytes) -> None:
        self.trial, self.mark = trial, mark

    async def read(self, request: bytes) -> bytes:
        """The response, with a kill behind the first piece that has the mark in it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.trial.port)
        writer.write(request)
        received, is_killed = b"", False
        while not received.endswith(b"0\r\n\r\n"):
            piece = await asyncio.wait_for(reader.read(65536), 10)
            assert piece, received[-300:]
            received += piece
            if self.mark in received and not is_killed:
                is_killed = True
                await self.trial.kill()
        assert is_killed
        writer.close()
        return received


async def lose_the_end(mark: bytes, fault: str) -> None:
    async with TwinTrial("reset_after=25") as trial:
        trial.twin.fail_next(fault)
        response = await Halting(trial, mark).read(request_of(1, 60))
        body = body_of(response)
        assert b'"error"' not in body and text_of(body) == answer_text(1, 60)
        assert (body.count(b'"finish_reason":"stop"'), body.count(b"[DONE]")) == (1, 1)
        (stream,) = trial.rooms.registry.list(None)
        assert stream.reason == "completed" and body == whole_body(stream)
        assert len(trial.twin.requests) == 1, "nothing is left to be asked for"


def test_an_answer_that_was_finished_when_its_process_died_is_whole() -> None:
    uvloop.run(lose_the_end(b'"finish_reason":"stop"', "stall_last"))


def test_an_answer_that_had_said_all_when_its_process_died_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end marker's place in the log and the stream's end."""
    completed = Generation.completed

    def die_first(self: Generation, call: Call, reason: CloseReason, message: str) -> None:
        if reason.is_success:
            self.stream.publish(-1)
        else:
            completed(self, call, reason, message)

    monkeypatch.setattr(Generation, "completed", die_first)
    uvloop.run(lose_the_end(b"[DONE]", "none"))


async def lose_the_last_attempt() -> None:
    async with TwinTrial("reset_after=25", max_attempts=2) as trial:
        body = body_of(await Halting(trial, answer_text(1, 40)[-7:].encode()).read(request_of(1, 400)))
        assert b'"error"' not in body and text_of(body) == answer_text(1, 400)
        assert (len(trial.sim.requests), len(trial.twin.requests)) == (1, 2), (
            "the one that has failed is not asked again"
        )


def test_a_second_part_that_was_lost_by_us_takes_no_attempt() -> None:
    uvloop.run(lose_the_last_attempt())


async def die_before_it_is_sent(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TwinTrial("reset", twins_model=model) as trial:
        has_failed = asyncio.Event()
        monkeypatch.setattr(generation, "reach", lambda name: has_failed.set() if name == "failed_over" else None)
        client = Client(1, trial.port, slow=False)
        task = asyncio.create_task(client.run(request_of(1, 30)))
        await has_failed.wait()
        assert not trial.twin.requests, "it is still connecting"
        await trial.kill()
        assert text_of(body_of(await asyncio.wait_for(task, 10))) == answer_text(1, 30)
        (seen,) = trial.twin.requests
        assert json.loads(seen.body)["model"] == model


@pytest.mark.parametrize("model", ["s", "a model whose name is longer than that of the first engine's"])
def test_the_request_for_another_engine_is_whole_when_its_process_dies(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvloop.run(die_before_it_is_sent(model, monkeypatch))


@pytest.mark.parametrize(
    "fault", ["reset_after=25", "close_inside=40", "no_finish", "reset", "error_event=10", "crlf,close_after=9"]
)
@pytest.mark.parametrize("seed", range(3))
def test_failovers_survive_their_process_byte_for_byte(seed: int, fault: str) -> None:
    uvloop.run(round_trip(seed, 6, fault))


async def finish_and_die() -> None:
    """Of the second part all is there but the end marker when its process dies."""
    async with TwinTrial("reset_after=5") as trial:
        trial.twin.fail_next("stall_last")
        client = Client(0, trial.port, slow=False)
        task = asyncio.create_task(client.run(request_of(1, 20)))
        while not any(b'"finish_reason":"stop"' in stream.log.body() for stream in trial.rooms.registry.list(None)):
            client.progress.clear()
            await client.progress.wait()
        await trial.kill()
        response = await asyncio.wait_for(task, 10)
        (stream,) = trial.rooms.registry.list(None)
        assert text_of(body_of(response)) == answer_text(1, 20)
        assert stream.reason == "completed" and b'"error"' not in response
        assert body_of(response).count(b"data: [DONE]\n\n") == 1


def test_an_answer_that_lacks_only_its_end_marker_is_whole() -> None:
    uvloop.run(finish_and_die())
