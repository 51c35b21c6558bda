"""The sender before the stand-in, both in this process: what is injected is counted exactly.

Nothing is asserted about how long anything took, but in one direction and by a wide margin.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.house import open_house, until

from longwire.bench.figures import Figures, Measured, figures_of
from longwire.bench.job import Job
from longwire.bench.outcomes import Outcome
from longwire.bench.sender import Sender
from longwire.sim import SimServer
from longwire.words.settings import SimSettings

pytestmark = pytest.mark.e2e

REQUESTS = 30
TOKENS = 8
CALM_NS = 200_000_000
"""A loop that was never later than this has moved no gap of 900 ms below 500, and made none of its own."""


@asynccontextmanager
async def stand_in(**settings: Any) -> AsyncIterator[SimServer]:
    server = SimServer(SimSettings(**{"port": 0, "itl_ms": 1.0, "ttft_ms": 1.0, "tokens": TOKENS, **settings}))
    await server.start()
    yield server
    await server.close()


def job(server: SimServer, **facts: Any) -> Job:
    """Thirty requests within 0.3 s, each checked to the letter."""
    host, port = server.address
    sim = {"tokens": TOKENS, "seed": 0, "stamp": True, **facts.pop("sim", {})}
    rate = REQUESTS / 0.3
    given = {"rate": rate, "end_rate": rate, "duration_s": 0.3, "tokens": TOKENS, "verify": True, "extra": {"sim": sim}}
    return Job(host=host, port=port, **{**given, **facts})


async def sent(order: Job) -> tuple[Sender, Figures]:
    """All of it, and its figures."""
    sender = Sender(order, asyncio.get_running_loop())
    go_ns = time.monotonic_ns()
    await sender.run(go_ns)
    found = Measured(
        sender.records,
        go_ns,
        order.warm_up_s,
        order.duration_s,
        is_open_loop=not order.concurrency,
        skipped=sender.skipped,
        uncut=sender.uncut,
        lags=sender.lags,
    )
    return sender, figures_of(found)


def counted(values: dict[str, float]) -> dict[str, float]:
    """The counts that are not nought, besides those of the load and of gaps, which a machine that stands still makes too."""
    names = ("failures.", "order.", "ir.breaks", "resume.cuts", "resume.resumed", "resume.uncut")
    return {
        path: value for path, value in values.items() if path.startswith(names) and value and path != "failures.share"
    }


@pytest.mark.parametrize("door", ["sse", "chunked"])
async def test_all_is_well(door: str) -> None:
    async with stand_in() as server:
        sender, found = await sent(job(server, door=door))
    assert counted(found.values) == {"order.verified": REQUESTS}
    assert found.values["load.complete"] == found.values["load.sent"] == REQUESTS
    assert [record.number for record in sorted(sender.records, key=lambda each: each.number)] == list(range(REQUESTS))
    assert {len(record.times) for record in sender.records} == {TOKENS}
    assert all(record.sent_ns >= record.scheduled_ns for record in sender.records)
    assert server.connections_accepted <= REQUESTS


async def test_the_stand_in_s_pace_is_recovered() -> None:
    """Nothing can arrive before it was made; how much later depends on the machine. Exactly: test_known_schedule.py."""
    async with stand_in() as server:
        _, found = await sent(job(server, sim={"ttft_ms": 60, "itl_ms": 20}, drain_s=20))
    values = found.values
    assert values["ttft.p50_ms"] >= 59
    assert values["e2e.p50_ms"] >= 60 + (TOKENS - 1) * 20 - 1
    assert values["e2e.p50_ms"] > values["ttft.p50_ms"]
    assert values["ttft_scheduled.p50_ms"] >= values["ttft.p50_ms"]


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("reset_after=3", "reset"),
        ("close_after=3", "cut_short"),
        ("no_done", "cut_short"),
        ("error_event=3", "told"),
        ("garbage_after=3", "malformed"),
        ("status=503", "shed"),
        ("status=500", "status"),
        ("wrong_type", "no_stream"),
        ("half_head", "no_http"),
    ],
)
async def test_every_third_that_fails_is_counted_exactly(fault: str, word: str) -> None:
    async with stand_in(fault=[fault, "every=3"]) as server:
        sender, found = await sent(job(server))
    values = found.values
    assert values[f"failures.{word}"] == REQUESTS / 3
    assert values["failures.share"] == pytest.approx(1 / 3)
    assert values["load.complete"] == REQUESTS * 2 / 3
    breaks = next(outcome.breaks for outcome in Outcome if outcome.word == word)
    assert values["ir.breaks"] == (REQUESTS / 3 if breaks else 0)
    assert set(sender.examples) == {word}


async def test_stalls_are_counted_exactly_and_told_apart_by_cause() -> None:
    """Half of the streams have their three tokens 900 ms apart: two gaps each."""
    async with stand_in(fault=["slow_tokens=900", "every=2"], tokens=3) as server:
        sender, found = await sent(job(server, tokens=3, sim={"tokens": 3}))
    gaps = {path: value for path, value in found.values.items() if path.startswith("ir.gaps") and value}
    assert found.values["ir.breaks"] == 0 and found.values["load.complete"] == REQUESTS
    if max(sender.lags) >= CALM_NS:
        assert gaps["ir.gaps"] > 0, "the machine stood still itself, so there may be others, and other causes"
        return
    assert gaps == {"ir.gaps": REQUESTS, "ir.gaps_engine": REQUESTS}
    assert found.values["ir.share"] == 0.5
    assert found.values["ir.per_1000_tokens"] == 1000 / 3


async def test_endpoints_that_hang_are_given_up() -> None:
    async with stand_in(fault=["stall_after=3", "every=3"]) as server:
        _, found = await sent(job(server, silence_s=0.6))
    assert counted(found.values) == {"failures.silent": 10, "ir.breaks": 10, "order.verified": REQUESTS}
    async with stand_in(fault=["headers_then_stall", "every=3"]) as server:
        _, found = await sent(job(server, timeout_s=0.6))
    assert counted(found.values) == {"failures.late": 10, "order.verified": REQUESTS}


async def test_what_still_runs_after_the_drain_time_is_unfinished() -> None:
    async with stand_in(fault=["stall_after=3", "every=3"]) as server:
        _, found = await sent(job(server, drain_s=1.0))
        await server.wait_open(0)
    assert found.values["load.unfinished"] == 10 and found.values["failures.share"] == 0


async def test_an_endpoint_that_is_not_there_is_refused() -> None:
    async with stand_in() as server:
        server.refuse()
        sender, found = await sent(job(server))
    assert found.values["failures.refused"] == REQUESTS and "refused" in sender.examples


async def test_an_idle_connection_that_was_closed_is_no_failure() -> None:
    async with stand_in(fault=["die_idle"]) as server:
        _, found = await sent(job(server))
    assert counted(found.values) == {"order.verified": REQUESTS}


async def test_what_does_not_fit_is_skipped_and_counted() -> None:
    async with stand_in(fault=["stall_after=3"]) as server:
        _, found = await sent(job(server, max_in_flight=7, drain_s=0))
    assert found.values["load.skipped"] == REQUESTS - 7 and found.values["load.sent"] == 7
    assert any("not sent" in problem for problem in found.problems)


async def test_a_closed_loop_keeps_so_many_going() -> None:
    async with stand_in() as server:
        sender, found = await sent(job(server, concurrency=5, warm_up_s=0.1))
        assert 1 <= server.connections_accepted <= 5
    assert (
        len(sender.records) >= server.connections_accepted
        and found.values["load.complete"] == found.values["load.sent"]
    )
    assert max(Counter(record.number for record in sender.records).values()) == 1


async def test_several_addresses_share_the_connections() -> None:
    async with stand_in(fault=["stall_after=3"]) as server:
        sender = Sender(job(server, sources=3, drain_s=5), asyncio.get_running_loop())
        running = asyncio.create_task(sender.run(time.monotonic_ns()))
        await server.wait_open(REQUESTS)
        peers = Counter(_peer(connection) for connection in server.open_connections)
        sender.stop()
        await running
    assert peers == {f"127.0.0.{last}": REQUESTS // 3 for last in (2, 3, 4)}


def _peer(connection: Any) -> str:
    return str(connection._transport.get_extra_info("peername")[0])


async def test_stop_ends_it_with_what_there_is() -> None:
    async with stand_in(fault=["stall_after=3"]) as server:
        sender = Sender(job(server, duration_s=60, rate=10, end_rate=10), asyncio.get_running_loop())
        running = asyncio.create_task(sender.run(time.monotonic_ns()))
        await server.wait_open(1)
        sender.stop()
        await running
    assert sender.records and {record.outcome for record in sender.records} == {Outcome.UNFINISHED}


# Cuts, before a gateway.


async def test_cut_streams_are_resumed_and_nothing_is_lost() -> None:
    cuts = 12
    async with open_house(sim={"itl_ms": 20, "tokens": 60}) as house:
        order = Job(
            host="127.0.0.1", port=house.port, rate=100, end_rate=100, duration_s=0.1, tokens=60, verify=True,
            extra={"sim": {"tokens": 60, "seed": 0, "stamp": True}}, headers=[("longwire-on-disconnect", "grace=60")],
        )  # fmt: skip
        sender = Sender(order, asyncio.get_running_loop())
        running = asyncio.create_task(sender.run(time.monotonic_ns()))
        await until(lambda: sender.statistics()["tokens"] >= 20, "twenty tokens have come")
        for _ in range(cuts):
            sender.cut_one()
            await asyncio.sleep(0.02)
        await running
    found = figures_of(Measured(sender.records, 0, 0, 1))
    cuts -= sender.uncut  # On a machine that stood still, all may have ended meanwhile.
    assert cuts and counted(found.values) == {"order.verified": 10, "resume.cuts": cuts, "resume.resumed": cuts}
    assert found.values["load.complete"] == 10
    assert {len(record.times) for record in sender.records} == {60}


async def test_a_stream_that_cannot_be_resumed_is_not_cut() -> None:
    async with stand_in() as server:
        _, found = await sent(job(server, resets_per_s=50.0))
    assert found.values["resume.uncut"] == 15 and found.values["resume.cuts"] == 0
    assert found.values["load.complete"] == REQUESTS
