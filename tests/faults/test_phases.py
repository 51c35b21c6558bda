"""Each fault in each phase, streaming and not, alone and with a second engine standing by: what each side sees (phases.py).

Nothing sleeps: engines pause by the same clock as the gateway, and it moves only while nothing else does.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.faults.observing import (
    STEP_S,
    begin,
    clocks_fired,
    endings,
    engine_saw,
    look_again,
    open_broken_house,
    pass_until,
    settle_down,
    told_stream,
    told_whole,
)
from tests.faults.phases import BEFORE, BEHIND_FIRST, NOT_IN_THE_TABLE, TABLE, Row
from tests.house import Answer, TestHouse

from longwire.engines.breaker import BreakerState
from longwire.sim.fault import FAULTS


def told(answer: Answer, row: Row) -> str:
    """What the client got, in the table's words."""
    if row.is_stream:
        got = told_stream(answer, BEFORE.get(row.name, ""), BEHIND_FIRST.get(row.name, ""))
    else:
        got = told_whole(answer)
    if got.status != 200:
        return str(got.status)
    return "all" if got.is_whole else f"{got.tokens} tokens"


async def connection_afterwards(house: TestHouse) -> str:
    """Whether the next request finds the engine's connection open; it is answered in any case."""
    upstream = house.gateway.directory.upstreams[0]
    is_kept = bool(upstream.statistics()["idle"])
    rest_s = upstream.breaker.rest_left_s(house.clock.now())
    house.pass_time(rest_s)
    upstream.breaker.note_probe(house.clock.now(), True)  # it has rested, and answers again: it is given a trial
    before, retries = house.sim.connections_accepted, house.gateway.instruments.retries_total
    client = await begin(house, stream=True)
    answer = asyncio.create_task(client.answer())
    await pass_until(house, answer.done)
    assert told_stream(answer.result()).is_whole, "an engine that is well again is used again"
    assert upstream.breaker.state is BreakerState.CLOSED
    accepted, retried = house.sim.connections_accepted - before, house.gateway.instruments.retries_total - retries
    assert retried == (is_kept and accepted)
    return "kept" if not accepted else "stale" if is_kept else "closed"


async def observe(row: Row, *, has_twin: bool) -> list[Any]:
    """The row's cells as they were seen, and how often another engine was asked: for all of it, for the rest of it."""
    async with open_broken_house(has_twin=has_twin) as house:
        house.sim.fail_next(*row.faults)
        client = await begin(house, stream=row.is_stream)
        reading = asyncio.create_task(client.answer())
        seconds = await pass_until(house, reading.done)
        answer = reading.result()
        await settle_down(house)
        await look_again(house)
        upstream = house.gateway.directory.upstreams[0]
        state = await house.state(answer.stream_id)
        metrics = house.metrics()
        assert endings(metrics) == {state["close_reason"]: 1}
        counts = int(metrics["longwire_failovers_total"]), int(metrics["longwire_continuations_total"])
        assert engine_saw(house.twin) == ("1 answered" if sum(counts) else "not asked")
        assert not any(upstream.in_flight for upstream in house.gateway.directory.upstreams)
        is_blamed = upstream.breaker.state is BreakerState.OPEN
        assert metrics["longwire_breakers_opened_total"] == is_blamed
        assert metrics['longwire_engine_breaker{engine="sim"}'] == (
            BreakerState.OPEN if is_blamed else BreakerState.CLOSED
        )
        cells = [state["close_reason"], told(answer, row), engine_saw(house.sim)]
        connection = await connection_afterwards(house)
        return [*cells, connection, "yes" if is_blamed else "no", clocks_fired(metrics) or "-", f"{seconds:g}", counts]


def check(row: Row, seen: list[Any], expected: tuple[str, str, tuple[int, int]]) -> None:
    """Compare line by line, so that a failure shows the row as it would have to be."""
    reason, client, others = expected
    is_in_time = float(row.seconds) <= float(seen[6]) <= float(row.seconds) + STEP_S
    seconds = seen[6] if is_in_time else row.seconds
    assert seen == [reason, client, row.engine, row.connection, row.blamed, row.clock, seconds, others]


@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_an_engine_that_stands_alone(row: Row) -> None:
    check(row, await observe(row, has_twin=False), (row.reason, row.client, (0, 0)))


@pytest.mark.parametrize("row", TABLE, ids=str)
async def test_an_engine_with_another_standing_by(row: Row) -> None:
    """It is seen and blamed as if it stood alone; only the client fares better."""
    others = {"same": (0, 0), "failover": (1, 0), "goes on": (0, 1)}[row.twin]
    reason, client = (row.reason, row.client) if row.twin == "same" else ("completed", "all")
    check(row, await observe(row, has_twin=True), (reason, client, others))


def test_every_fault_of_the_stand_in_is_in_the_table_or_has_a_reason_not_to_be() -> None:
    covered = {row.name for row in TABLE}
    assert covered | set(NOT_IN_THE_TABLE) == set(FAULTS)
    assert not covered & set(NOT_IN_THE_TABLE), "a reason that holds no more"


def test_no_row_stands_there_twice() -> None:
    assert len({str(row) for row in TABLE}) == len(TABLE)


STRIKE_SOMEWHERE = sorted(
    name for name in FAULTS if name.endswith(("_after", "_inside", "error_event")) and name != "retry_after"
)


@pytest.mark.parametrize("name", STRIKE_SOMEWHERE)
def test_a_fault_that_strikes_at_some_event_does_so_in_every_phase(name: str) -> None:
    """Before the first token, behind it, in mid-answer, before the finish and behind it."""
    phases = {int(row.fault.partition("=")[2]) for row in TABLE if row.name == name and row.is_stream}
    assert phases >= {0, 1, 2, 50, 61, 62, 63}
