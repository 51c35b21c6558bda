"""The client leaves, by FIN and by RST, at every phase of every fault: the engine is left at once, and nothing is tried again.

A second engine stands by all the time: it is there to be asked, and must not be. What the faults do to those who stay is in
phases.py; the same rows are gone through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
from tests.faults.observing import (
    begin,
    endings,
    look_again,
    open_broken_house,
    pass_until,
    settle_down,
    turn_until,
)
from tests.faults.phases import TABLE, Row
from tests.house import Client, TestHouse

from longwire.streams.stream import State

WAYS: tuple[Callable[[Client], None], ...] = (Client.fin, Client.reset)
LONG_S = 130.0
"""Longer than every clock: whatever was still to be done would have been."""
PACE = "slow_tokens=1000"


@dataclass(frozen=True)
class Moment:
    """When a client leaves. ``slowly`` makes the engine so slow that there is such a moment before the fault strikes."""

    name: str
    slowly: tuple[str, ...]
    has_come: Callable[[TestHouse, Client], bool]
    is_within: bool = True
    """The answer is still under way."""


def _is_asked(house: TestHouse, _: Client) -> bool:
    return bool(house.sim.requests)


def _has_bytes(house: TestHouse, _: Client) -> bool:
    """Of the engine's: the gateway holds them back, for there is no token among them."""
    return any(stream.facts.first_byte_at is not None for stream in house.streams if stream.state is not State.ENDED)


def _has_read(_: TestHouse, client: Client) -> bool:
    return client.current is not None and (len(client.current.pieces) >= 2 or client.current.status != 200)


BEFORE_THE_HEAD = Moment("before the head", ("slow_headers=3000",), _is_asked)
AFTER_THE_HEAD = Moment("after the head", ("slow_first_token=3000",), _has_bytes)
IN_MID_ANSWER = Moment("in mid-answer", (PACE,), _has_read)
AT_THE_END = Moment("at the end", (), lambda _, client: client.current is not None and client.current.is_whole, False)

NO_HEAD_ALONE = frozenset({"content_length", "wrong_length", "short_length"})
"""A body's length is known only with its last token, and the head comes then."""
FAILS_WITHOUT_TOKENS = frozenset({"endless_event"})
"""It comes after the head and before any token, and no other engine is asked."""
MOMENTS = {True: (BEFORE_THE_HEAD, AFTER_THE_HEAD, IN_MID_ANSWER, AT_THE_END), False: (BEFORE_THE_HEAD, AT_THE_END)}


def there_is(moment: Moment, row: Row) -> bool:
    """Whether an answer to this fault, with the other engine's help, has such a moment."""
    if moment is AFTER_THE_HEAD and row.name in NO_HEAD_ALONE | FAILS_WITHOUT_TOKENS:
        return row.name in FAILS_WITHOUT_TOKENS
    return moment is BEFORE_THE_HEAD or row.client == "all" or "tokens" in row.client or row.twin != "same"


async def leave(house: TestHouse, row: Row, moment: Moment, way: Callable[[Client], None]) -> None:
    """One request, left at the moment; then nothing may be under way, and time must bring nothing about."""
    client = await begin(house, stream=row.is_stream)
    reading = asyncio.create_task(client.answer())
    await pass_until(house, lambda: moment.has_come(house, client) or reading.done())
    await settle_down(house)
    is_under_way = not reading.done()
    assert is_under_way == (moment.is_within and there_is(moment, row))
    asked, cancelled = _asked(house), _cancelled(house) + house.sim.open_streams + house.twin.open_streams
    ended = endings(house.metrics())
    way(client)
    await turn_until(house, lambda: not house.gateway.listener.connections)
    assert not house.gateway.listener.connections, "the leaving is seen, though no time has passed"
    await settle_down(house)
    await look_again(house)
    assert not house.sim.open_streams and not house.twin.open_streams, "the engine is left at once"
    house.pass_time(LONG_S)
    await settle_down(house)
    assert _asked(house) == asked, "nothing is tried again"
    assert _cancelled(house) == cancelled
    if is_under_way:
        assert endings(house.metrics()) == ended | {"client_left": ended.get("client_left", 0) + 1}
    check_nothing_is_held(house)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    house.clients.remove(client)
    client.writer.transport.abort()


def _asked(house: TestHouse) -> tuple[int, int]:
    return len(house.sim.requests), len(house.twin.requests)


def _cancelled(house: TestHouse) -> int:
    return house.sim.cancelled + house.twin.cancelled


def check_nothing_is_held(house: TestHouse) -> None:
    """Slots, tasks, watched generations and engines are free."""
    inside = house.gateway
    assert inside.gateway.limiter.live_streams == 0 and not inside.gateway.generations.calls.tasks
    assert inside.gateway.generations.calls.watchman.statistics()["watched"] == 0
    assert not any(upstream.in_flight or upstream.statistics()["busy"] for upstream in inside.directory.upstreams)


@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_who_leaves_is_not_worked_for(row: Row) -> None:
    if row.name == "big_event":
        row = row._replace(fault="big_event=1000000")  # how large it is has been seen; here it would only take time
    async with open_broken_house(has_twin=True, breaker_faults=1000, retention_s=0) as house:
        for moment, way in product(MOMENTS[row.is_stream], WAYS):
            for engine, faults in ((house.sim, (row.fault, *moment.slowly)), (house.twin, moment.slowly)):
                engine.forget_next()
                engine.requests.clear()
                engine.fail_next(*faults)
                engine.fail_next(*faults)  # for the same request once more, without what the engine did not know
            await leave(house, row, moment, way)


@pytest.mark.parametrize("way", WAYS, ids=["fin", "rst"])
@pytest.mark.parametrize(
    "fault", ["reset_after=0", "close_after=0", "reset_after=10", "close_after=10", "error_event=10"]
)
async def test_who_leaves_while_another_engine_is_being_asked_is_not_worked_for(
    fault: str, way: Callable[[Client], None]
) -> None:
    """Turns after the engine broke off: before that is seen, while the answer is read again, while connecting, later."""
    async with open_broken_house(has_twin=True, breaker_faults=1000, retry_budget_floor=1000) as house:
        asked_for_nothing = 0
        for turns in range(16):
            house.sim.fail_next(fault, PACE, "slow_headers=1000")
            house.twin.forget_next()
            house.twin.fail_next(PACE)
            asked = len(house.twin.requests)
            client = await begin(house, stream=True)
            engine_is_through = house.sim.answered + 1
            await pass_until(house, lambda: house.sim.open_streams == 1)
            while house.sim.answered < engine_is_through:
                await settle_down(house)
                house.pass_time(1)
            for _ in range(turns):
                await asyncio.sleep(0)
            way(client)
            await turn_until(house, lambda: not house.gateway.listener.connections)
            await settle_down(house)
            assert not house.twin.open_streams and house.gateway.gateway.limiter.live_streams == 0
            more = len(house.twin.requests) - asked
            asked_for_nothing += more
            house.pass_time(LONG_S)
            await settle_down(house)
            assert len(house.twin.requests) - asked == more <= 1, "nothing is tried again"
            check_nothing_is_held(house)
            client.writer.transport.abort()
        assert 0 < asked_for_nothing < 16, "some have left before, and some after"
        assert endings(house.metrics()) == {"client_left": 16}
