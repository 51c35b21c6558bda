"""A thousand random faults with two hundred streams running: afterwards nothing is held, and every byte was exact.

Each stream says something of its own, so that a byte of another's would be found out. Engines pause by the gateway's clock.
``LONGWIRE_TEST_SEED=7`` tries another run. A failure names its seed, which draws the same again; sockets keep no exact time.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import pytest
from tests.faults.observing import settle_down
from tests.garbage import let_go
from tests.house import Answer, Client, TestHouse, chat, hashed, open_house, until

from longwire.sim import SimServer
from longwire.sim.answer import expected_text
from longwire.sim.fault import FAULTS
from longwire.words.reasons import CloseReason
from longwire.words.settings import TenantSettings

STREAMS = 200
CLIENTS = 400
"""Some are always between two requests, and some streams run on without their clients."""
FAULTS_WANTED = 1000
STEP_S = 0.1
TURNS = 12
"""Of the loop, for each step of the clock: bytes and time are on their way at once, as they are in life."""
MOST_TOKENS = 60
BEFALL_CHANCE = 0.015
"""In each step, that something happens to an engine as a whole."""
KEYS = ("sk-a", "sk-b")

ADD_TEXT = frozenset({"big_event", "invalid_utf8", "lone_surrogate", "split_surrogates", "torn_code_point"})
"""They say what is no part of the foretold answer; what becomes of it is in phases.py."""
CONDITIONS = frozenset({"first", "every", "flap", "after"})
COUNTED = frozenset(
    name for name in FAULTS if name.endswith(("_after", "_inside", "error_event")) and name != "retry_after"
)
ARGUMENTS = {
    "status": (400, 404, 413, 429, 500, 502, 503, 529),
    "html": (200, 404, 502),
    "slow_first_token": (2000, 30_000),
    "slow_headers": (1000, 30_000),
    "slow_head": (10, 1000),
    "slow_tokens": (1000, 60_000),
    "preempt": (500, 4000),
    "many_per_chunk": (2, 7),
    "split_chunks": (5, 100),
}
REASONS = frozenset(map(str, CloseReason))
NAMES = sorted(set(FAULTS) - ADD_TEXT - CONDITIONS)

SETTINGS: dict[str, Any] = {
    "first_byte_timeout_s": 5,
    "first_token_timeout_s": 8,
    "token_silence_s": 3,
    "total_timeout_s": 90,
    "heartbeat_s": 4,
    "commit_after_ms": 2500,
    "max_event_bytes": 64 * 1024,
    "max_stream_bytes": 1 << 20,
    "arena_bytes": 64 << 20,
    "max_streams": 2048,
    "max_connections": 1024,
    "retry_budget_floor": 100_000,
    "retention_s": 5,
}


def seeds() -> list[int]:
    asked = os.environ.get("LONGWIRE_TEST_SEED")
    return [int(asked)] if asked else [1, 2]


def draw_fault(dice: random.Random, tokens: int) -> str:
    name = dice.choice(NAMES)
    if name in COUNTED:
        return f"{name}={dice.randrange(tokens + 5)}"
    return f"{name}={dice.choice(ARGUMENTS[name])}" if name in ARGUMENTS else name


@dataclass
class Storm:
    """All clients of one run, and what they saw."""

    house: TestHouse
    dice: random.Random
    faults: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    live: list[int] = field(default_factory=list)

    def cast_fault(self, engine: SimServer, tokens: int) -> None:
        pace = (f"slow_tokens={self.dice.randrange(100, 1200)}", f"slow_headers={self.dice.randrange(300, 1500)}")
        engine.fail_next(draw_fault(self.dice, tokens), *pace)
        self.faults += 1

    async def one_request(self, seed: int) -> None:
        """A request, and a client that reads it to its end or leaves somewhere."""
        dice = self.dice
        tokens, stream = dice.randrange(1, MOST_TOKENS), dice.random() < 0.8
        self.cast_fault(self.house.sim, tokens)
        if dice.random() < 0.3:
            self.cast_fault(self.house.twin, tokens)
        headers = {"authorization": f"Bearer {dice.choice(KEYS)}"}
        if dice.random() < 0.3:
            headers["longwire-on-disconnect"] = dice.choice(["cancel", "grace=1", "run"])
        client = await self.house.connect()
        client.post(chat(stream, sim={"tokens": tokens, "seed": seed}), headers)
        if dice.random() < 0.2:
            await self.leave(client, expected_text(seed, tokens))
        else:
            answer = await client.answer()
            (self.check_stream if stream else self.check_whole)(answer, expected_text(seed, tokens))
            client.close()
        self.house.clients.remove(client)

    async def leave(self, client: Client, text: str) -> None:
        """At some time, or after so many events; what was read until then is exact."""
        dice = self.dice
        if dice.random() < 0.5:
            is_time = asyncio.Event()
            self.house.clock.call_later(4 * dice.random(), is_time.set)
            await is_time.wait()
        else:
            answer = await client.head()
            for _ in range(dice.randrange(12)):
                if answer.status != 200 or await client.piece() is None:
                    break
            if answer.header("content-type").startswith("text/event-stream"):
                assert text.startswith(answer.text)
        dice.choice((Client.fin, Client.close, Client.reset))(client)
        client.close()
        self.seen["left"] += 1

    def check_stream(self, answer: Answer, text: str) -> None:
        if answer.status != 200:
            self.check_refusal(answer)
            return
        assert answer.is_whole and answer.is_marked_done, "an end is never silent"
        error = answer.in_band_error
        if error is None:
            assert answer.text == text, "a success is whole"
            self.seen["all"] += 1
        else:
            assert text.startswith(answer.text), "exact up to its truthful end"
            assert error["code"] in REASONS and error["last_seq"] == len(answer.data) - 3
            self.seen[f"in band {error['code']}"] += 1

    def check_whole(self, answer: Answer, text: str) -> None:
        if answer.status != 200:
            self.check_refusal(answer)
        elif answer.is_whole:
            assert answer.json["choices"][0]["message"]["content"] == text, "a success is whole"
            self.seen["all at once"] += 1
        else:
            self.seen["cut"] += 1

    def check_refusal(self, answer: Answer) -> None:
        assert answer.is_whole and answer.body and answer.status >= 400
        self.seen[str(answer.status)] += 1

    # Everybody's misfortune.

    async def befall_all(self) -> None:
        """What happens to an engine as a whole."""
        engine = self.dice.choice((self.house.sim, self.house.twin))
        match self.dice.randrange(3):
            case 0:
                engine.refuse()
                for _ in range(2 * TURNS):
                    await asyncio.sleep(0)
                await engine.start()
            case 1:
                engine.preempt(self.dice.choice((1.0, 4.0)))
            case 2:
                for connection in list(engine.open_connections):
                    connection.abort()
        self.faults += 1

    async def one_client(self, number: int) -> None:
        count = 0
        while self.faults < FAULTS_WANTED or not count:
            count += 1
            await self.one_request(number * 1000 + count)

    @staticmethod
    def check(clients: list[asyncio.Task[None]]) -> None:
        """Raises what one of them has raised."""
        for client in clients:
            if client.done():
                client.result()

    async def run(self) -> None:
        """Until so many faults have been met, and everybody's last request is over."""
        clients = [asyncio.create_task(self.one_client(number)) for number in range(CLIENTS)]
        live = self.house.gateway.gateway.limiter
        try:
            await until(lambda: live.live_streams >= STREAMS or self.check(clients), "so many are under way")
            while not all(client.done() for client in clients):
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                if self.faults < FAULTS_WANTED:
                    self.live.append(live.live_streams)
                self.house.pass_time(STEP_S)
                if self.dice.random() < BEFALL_CHANCE:
                    await self.befall_all()
                for upstream in self.house.gateway.directory.upstreams:
                    upstream.purge_nowait()  # as the prober does
                    upstream.breaker.note_probe(self.house.clock.now(), True)
                self.check(clients)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def held(house: TestHouse) -> dict[str, object]:
    """What has a baseline to return to."""
    return {
        "held": house.held(),
        "tasks": len(asyncio.all_tasks()),
        "client connections": len(house.gateway.listener.connections),
        "engines' connections": (len(house.sim.open_connections), len(house.twin.open_connections)),
    }


def descriptors() -> Counter[str]:
    """All of this process, by what they stand for: ``socket``, ``/memfd``, ``pipe``, ``anon_inode``, files."""
    let_go()
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # a link whose target is no path
        with suppress(FileNotFoundError):  # the listing's own
            found[os.readlink(f"/proc/self/fd/{name}").partition(":")[0]] += 1  # noqa: PTH115
    return found


@pytest.mark.parametrize("seed", seeds())
async def test_a_thousand_faults_leave_nothing_behind(seed: int) -> None:
    tenants = [TenantSettings(name=key[-1], key_hashes=[hashed(key)], max_streams=2 * CLIENTS) for key in KEYS]
    async with open_house(has_twin=True, is_sim_on_clock=True, tenants=tenants, **SETTINGS) as house:
        before, known = held(house), descriptors()
        storm = Storm(house, random.Random(seed))
        await storm.run()
        await settle_down(house)
        for _ in range(100):  # what was to run on does so, ended streams are forgotten, idle connections closed
            house.pass_time(1)
            for upstream in house.gateway.directory.upstreams:
                upstream.purge_nowait()
        await settle_down(house)
        assert held(house) == before
        assert descriptors() == known
        counters = house.gateway.instruments
        assert counters.streams_started_total == sum(counters.streams_ended.values()) == len(house.lines.lines)
        assert storm.faults >= FAULTS_WANTED and mean(storm.live) >= STREAMS, storm.live
        assert storm.seen["all"] and storm.seen["left"], storm.seen
        assert counters.failovers_total + counters.continuations_total and counters.breakers_opened_total
