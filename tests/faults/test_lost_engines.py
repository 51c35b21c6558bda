"""Engines that are lost as a whole, and some that come back: not reached, killed, stopped, preempted, flapping.

Those that are killed or stopped are processes. What one answer can have wrong with it is in phases.py.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults.observing import (
    SEED,
    TOKENS,
    begin,
    endings,
    open_broken_house,
    pass_until,
    settle_down,
    told_stream,
    told_whole,
    turn_until,
)
from tests.house import (
    CHAT,
    CHUNKED,
    WHOLE,
    Answer,
    Client,
    ScriptedEngine,
    TestHouse,
    chat,
    in_chunks,
    open_house,
    until,
)

from longwire.engines.breaker import BreakerState
from longwire.engines.pool import Upstream
from longwire.words.settings import EngineSettings

SRC = Path(__file__).parents[2] / "src"


def upstream_of(house: TestHouse) -> Upstream:
    return house.gateway.directory.upstreams[0]


def state_of(house: TestHouse) -> BreakerState:
    return upstream_of(house).breaker.state


# No connection.


async def refuses(house: TestHouse, _: AsyncExitStack) -> None:
    house.sim.refuse()
    await settle_down(house)


async def accepts_no_more(house: TestHouse, stack: AsyncExitStack) -> None:
    """Its queue of connections is full: whoever comes then hears nothing."""
    listening = stack.enter_context(socket.socket())
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    loop = asyncio.get_running_loop()
    for _ in range(2):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        connecting = loop.create_task(loop.sock_connect(waiting, listening.getsockname()))
        stack.callback(connecting.cancel)
        await asyncio.sleep(0)
    upstream_of(house).set_url(f"http://127.0.0.1:{listening.getsockname()[1]}")


async def speaks_no_tls(house: TestHouse, _: AsyncExitStack) -> None:
    upstream_of(house).set_url(house.sim.url.replace("http:", "https:"))


LOST: dict[str, tuple[Callable[[TestHouse, AsyncExitStack], object], int, str, str]] = {
    "refuses": (refuses, 502, "upstream_unreachable", ""),
    "accepts no more": (accepts_no_more, 504, "connect_timeout", "connect"),
    "speaks no TLS": (speaks_no_tls, 502, "upstream_unreachable", ""),
}


@pytest.mark.parametrize("has_twin", [False, True], ids=["alone", "twin"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("how", LOST)
async def test_an_engine_that_cannot_be_reached(how: str, stream: bool, has_twin: bool) -> None:
    lose, status, reason, clock = LOST[how]
    async with AsyncExitStack() as stack, open_broken_house(has_twin=has_twin, connect_timeout_s=0.1) as house:
        await lose(house, stack)  # type: ignore[misc]
        client = await begin(house, stream=stream)
        answer = await client.answer()
        told = told_stream(answer) if stream else told_whole(answer)
        assert (told.status, told.error) == ((200, "") if has_twin else (status, reason))
        metrics = house.metrics()
        assert endings(metrics) == {"completed" if has_twin else reason: 1}
        assert metrics["longwire_failovers_total"] == has_twin and metrics["longwire_continuations_total"] == 0
        assert metrics["longwire_breakers_opened_total"] == 1
        assert metrics['longwire_clock_fired_total{clock="connect"}'] == (clock == "connect")
        assert not house.sim.requests and len(house.twin.requests) == has_twin
        assert not any(upstream_of(house).statistics().values())


@pytest.mark.parametrize("how", ["refuses", "speaks no TLS"])
async def test_who_leaves_while_an_engine_is_not_reached_is_not_worked_for(how: str) -> None:
    async with AsyncExitStack() as stack, open_broken_house(has_twin=True) as house:
        await LOST[how][0](house, stack)  # type: ignore[misc]
        for leave in (Client.fin, Client.reset):
            client = await begin(house, stream=True)
            await until(lambda: house.gateway.listener.connections, "the gateway is at work")
            leave(client)
            await turn_until(house, lambda: not house.gateway.listener.connections)
            await settle_down(house)
            asked = len(house.twin.requests)
            house.pass_time(100)
            await settle_down(house)
            assert len(house.twin.requests) == asked and not house.twin.open_streams
            assert not house.gateway.gateway.limiter.live_streams


async def test_dns_that_dies_takes_nothing_away() -> None:
    """Neither from a stream under way nor from the next one: what was known stays."""
    engine = ScriptedEngine()
    await engine.start()
    url = engine.url.replace("127.0.0.1", "engine.invalid")
    async with open_house(engines=[EngineSettings(name="dns", url=url, models=["script"], resolve_s=5)]) as house:
        (following,) = house.gateway.followings
        directory = house.gateway.directory

        async def answer_with(*addresses: str) -> None:
            async def resolve(_: str, __: int) -> tuple[str, ...]:
                if not addresses:
                    raise socket.gaierror(-3, "Temporary failure in name resolution")
                return addresses

            following._resolve = resolve
            await following.look_up(directory)

        await answer_with("127.0.0.1")
        for upstream in directory.upstreams:
            upstream.is_up = bool(upstream.endpoint.address)
        go_on = asyncio.Event()
        engine.will_say(CHUNKED + in_chunks(*WHOLE[:1], last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        await client.event()
        await answer_with()
        go_on.set()
        assert (await client.rest()).text == "ab"
        engine.will_say(CHUNKED + in_chunks(*WHOLE))
        assert (await house.ask(chat(model="script"))).text == "ab"
        assert [upstream.endpoint.address for upstream in directory.upstreams] == ["127.0.0.1"]
    await engine.close()


# An engine that is a process.


@dataclass
class Child:
    """A stand-in in a process of its own, which a test may kill or stop."""

    process: subprocess.Popen[bytes]
    port: int

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        client.request(method, path, body)
        answer = await client.answer()
        client.close()
        return answer

    async def fail_next(self, *faults: str) -> None:
        assert (await self.call("POST", "/sim/next", {"next": list(faults)})).status == 200

    async def wait_asked(self, count: int) -> None:
        """Until it has seen so many generations' requests."""
        asked = 0
        while asked < count:
            seen = (await self.call("GET", "/sim/requests")).json["data"]
            asked = sum(request["target"] == CHAT for request in seen)


@asynccontextmanager
async def open_child(**flags: str) -> AsyncIterator[Child]:
    told = {"port": "0", "tokens": str(TOKENS), "seed": str(SEED), "itl-ms": "0", "ttft-ms": "0", **flags}
    command = [sys.executable, "-P", "-m", "longwire.sim", *(part for key in told for part in (f"--{key}", told[key]))]
    process = await asyncio.to_thread(
        subprocess.Popen, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={"PYTHONPATH": str(SRC)}
    )
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        yield Child(process, int(line.partition(b"/v1")[0].rpartition(b":")[2]))
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        if process.stdout is not None:
            process.stdout.close()


DEATHS = [
    # fault that keeps it at its phase, streamed, entries by then, how the client ends alone, with another
    ("hang", True, 0, "502", "failover"),
    ("headers_then_stall", True, 0, "502", "failover"),
    ("stall_after=2", True, 2, "1 tokens", "goes on"),
    ("stall_after=50", True, 50, "49 tokens", "goes on"),
    ("stall_inside=50", True, 50, "49 tokens", "goes on"),
    ("stall_after=61", True, 61, "60 tokens", "goes on"),
    ("stall_last", True, 62, "all", "same"),
    ("hang", False, 0, "502", "failover"),
    ("headers_then_stall", False, 0, "502", "failover"),
]


@pytest.mark.parametrize("has_twin", [False, True], ids=["alone", "twin"])
async def test_an_engine_that_is_killed_in_every_phase_at_once(has_twin: bool) -> None:
    """SIGKILL with nine requests under way, each somewhere else."""
    settings = {"max_attempts": 2, "breaker_faults": 100, "retry_budget_floor": 100}
    async with open_child() as child, open_broken_house(has_twin=has_twin, **settings) as house:
        upstream_of(house).set_url(f"http://127.0.0.1:{child.port}")
        await child.fail_next(*(fault for fault, *_ in DEATHS))
        readings = []
        for number, (_, stream, entries, *_) in enumerate(DEATHS):
            client = await begin(house, stream=stream)
            await child.wait_asked(number + 1)
            stream_under_way = house.streams[-1]
            await until(lambda s=stream_under_way, n=entries: s.log.event_count >= n, "it has come so far")  # type: ignore[misc]
            readings.append(asyncio.create_task(client.answer()))
        assert upstream_of(house).in_flight == len(DEATHS)
        child.process.send_signal(signal.SIGKILL)
        for reading, (fault, stream, _, alone, mended) in zip(readings, DEATHS, strict=True):
            answer = await reading
            told = told_stream(answer) if stream else told_whole(answer)
            got = (
                "all"
                if told.status == 200 and told.is_whole
                else f"{told.tokens} tokens"
                if told.tokens
                else f"{told.status}"
            )
            assert got == ("all" if has_twin and mended != "same" else alone), (fault, stream)
        metrics = house.metrics()
        counts = [sum(row[4] == what for row in DEATHS) if has_twin else 0 for what in ("failover", "goes on")]
        assert [metrics["longwire_failovers_total"], metrics["longwire_continuations_total"]] == counts
        ended = {"completed": len(DEATHS)} if has_twin else {"completed": 1, "upstream_reset": len(DEATHS) - 1}
        assert endings(metrics) == ended
        assert not upstream_of(house).in_flight


async def test_an_engine_that_is_stopped_for_a_while_and_goes_on() -> None:
    """SIGSTOP. Shorter than its clocks allow: it is warned about, and its answer is whole."""
    async with open_child(**{"itl-ms": "3"}) as child, open_broken_house(has_twin=True) as house:
        upstream_of(house).set_url(f"http://127.0.0.1:{child.port}")
        client = await begin(house, stream=True)
        await until(lambda: house.streams and house.streams[0].log.event_count >= 5, "it has begun")
        child.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(14):
                house.pass_time(1)
                await settle_down(house)
        finally:
            child.process.send_signal(signal.SIGCONT)
        assert told_stream(await client.answer()).is_whole
        assert house.metric("longwire_silence_warnings_total") == 1 and not house.twin.requests
        assert upstream_of(house).breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("has_twin", [False, True], ids=["alone", "twin"])
async def test_an_engine_that_is_stopped_for_long_and_comes_back(has_twin: bool) -> None:
    """What was under way is over by silence, and what came later by the first byte: its kernel still accepts connections."""
    async with open_child() as child, open_broken_house(has_twin=has_twin, breaker_faults=2) as house:
        upstream_of(house).set_url(f"http://127.0.0.1:{child.port}")
        await child.fail_next("stall_after=11")
        client = await begin(house, stream=True)
        await until(lambda: house.streams and house.streams[0].log.event_count == 11, "it has come so far")
        child.process.send_signal(signal.SIGSTOP)
        try:
            later = await begin(house, stream=True)
            readings = [asyncio.create_task(each.answer()) for each in (client, later)]
            await pass_until(house, lambda: all(reading.done() for reading in readings), 30)
            first, second = (told_stream(reading.result()) for reading in readings)
        finally:
            child.process.send_signal(signal.SIGCONT)
        if has_twin:
            assert first.is_whole and second.is_whole
        else:
            assert (first.error, first.tokens) == ("token_silence", 10)
            assert (second.status, second.error) == (504, "upstream_timeout")
        breaker = upstream_of(house).breaker
        assert state_of(house) is BreakerState.OPEN and not upstream_of(house).in_flight
        house.pass_time(breaker.rest_left_s(house.clock.now()))
        breaker.note_probe(house.clock.now(), True)
        asked = len(house.twin.requests)
        assert told_stream(await (await begin(house, stream=True)).answer()).is_whole
        assert state_of(house) is BreakerState.CLOSED and len(house.twin.requests) == asked


# Faults of many requests.


async def test_an_engine_that_fails_and_comes_back_is_trusted_after_one_trial() -> None:
    async with open_broken_house(has_twin=True, breaker_faults=2) as house:
        house.sim.fail_next("first=2", "status=503")
        house.sim.fail_next("first=2", "status=503")
        breaker = upstream_of(house).breaker
        for _ in range(4):
            assert told_stream(await house.ask(chat())).is_whole
        assert (len(house.sim.requests), len(house.twin.requests)) == (2, 4), "it rests"
        assert state_of(house) is BreakerState.OPEN
        house.pass_time(breaker.rest_left_s(house.clock.now()))
        breaker.note_probe(house.clock.now(), True)
        answers = await asyncio.gather(*(house.ask(chat()) for _ in range(3)))
        assert all(told_stream(answer).is_whole for answer in answers)
        assert state_of(house) is BreakerState.CLOSED and len(house.sim.requests) >= 3


@pytest.mark.parametrize("has_twin", [False, True], ids=["alone", "twin"])
async def test_an_engine_that_flaps(has_twin: bool) -> None:
    """Half of its answers break. Whoever has another engine never notices, and what it does well counts for it."""
    async with open_broken_house(has_twin=has_twin, breaker_faults=4, retry_budget_floor=100) as house:
        seen = []
        for _ in range(12):
            house.sim.fail_next("flap=2", "reset_after=20")
            told = told_stream(await house.ask(chat()))
            seen.append(told.is_whole)
            assert told.is_whole or told.error == "upstream_reset"
        assert seen == [has_twin or number // 2 % 2 == 1 for number in range(12)]
        assert house.metric("longwire_continuations_total") == (6 if has_twin else 0)
        assert upstream_of(house).breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize(("pause_s", "has_twin"), [(7, False), (15, True), (60, False), (60, True)])
async def test_an_engine_that_preempts_everyone(pause_s: float, has_twin: bool) -> None:
    async with open_broken_house(has_twin=has_twin, breaker_faults=100, retry_budget_floor=100) as house:
        clients = []
        for _ in range(10):
            house.sim.fail_next("slow_tokens=1000")
            clients.append(await begin(house, stream=True))
        readings = [asyncio.create_task(client.answer()) for client in clients]
        await pass_until(house, lambda: all(stream.log.event_count >= 5 for stream in house.streams))
        said = [stream.log.event_count - 1 for stream in house.streams]
        house.sim.preempt(pause_s)
        await pass_until(house, lambda: all(reading.done() for reading in readings))
        told = [told_stream(reading.result()) for reading in readings]
        if pause_s < 24 or has_twin:
            assert all(each.is_whole for each in told)
        else:
            assert {each.error for each in told} == {"token_silence"} and [each.tokens for each in told] == said
        given_up = 10 if pause_s > 24 else 0
        assert house.metric('longwire_clock_fired_total{clock="silence"}') == given_up
        assert house.metric("longwire_continuations_total") == (given_up if has_twin else 0)
        assert house.sim.cancelled == given_up
