"""Reading what was said: never much at once, however many answers have broken together."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.house import delta

from longwire import secondpart
from longwire.engines.said import CannotContinue
from longwire.secondpart import BYTES_AT_ONCE, EVENTS_AT_ONCE, read_said
from longwire.streams.log import Log
from longwire.streams.terms import MAX_REREAD_BYTES


class Told:
    """A log of so many events, which notes in which turn of the loop each was read."""

    turn = 0

    def __init__(self, count: int, block: bytes = delta("a")) -> None:
        self.deliverable = count
        self.read: list[int] = []
        self._block = block

    def block(self, position: int) -> bytes:
        assert position == len(self.read)
        self.read.append(Told.turn)
        return self._block


async def read_all(logs: list[Told]) -> int:
    """The most bytes that were read in one turn of the loop."""
    turns = asyncio.Lock()
    tasks = [asyncio.create_task(read_said(cast(Log, log), turns)) for log in logs]
    while not all(task.done() for task in tasks):
        Told.turn += 1
        await asyncio.sleep(0)
    for task in tasks:
        task.result()
    read = sorted(turn for log in logs for turn in log.read)
    return max(read.count(turn) for turn in set(read))


async def test_when_thousands_break_together_no_turn_reads_more_than_one_of_them() -> None:
    logs = [Told(200) for _ in range(50)]
    assert await read_all(logs) <= EVENTS_AT_ONCE
    assert all(len(log.read) == 200 for log in logs)


async def test_a_short_answer_does_not_wait_for_all_of_a_long_one() -> None:
    long, short = Told(20 * EVENTS_AT_ONCE), Told(10)
    await read_all([long, short])
    assert short.read[-1] < long.read[2 * EVENTS_AT_ONCE]


async def test_of_large_events_fewer_are_read_at_once() -> None:
    block = delta("a" * 10_000)
    assert await read_all([Told(50, block)]) <= BYTES_AT_ONCE // len(block) + 1


@pytest.mark.parametrize("log", [Told(1, delta("a" * MAX_REREAD_BYTES)), Told(30, delta("a" * 50_000))])
async def test_what_is_too_large_is_not_gone_on_with(log: Told) -> None:
    assert secondpart.MAX_SAID_CHARS <= MAX_REREAD_BYTES
    with pytest.raises(CannotContinue, match="too"):
        await read_all([log])
