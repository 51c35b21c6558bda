"""Second parts that are no part of any answer: whatever the second engine says, the end tells the truth and is told once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.house import (
    CHUNKED,
    DONE,
    FIN,
    RST,
    Answer,
    Mark,
    Step,
    TestHouse,
    chat,
    delta,
    head_of,
    in_chunks,
    open_house,
    until,
)  # fmt: skip

from longwire.engines.call import Call
from longwire.engines.kinds import KINDS
from longwire.secondpart import READ_BYTES, Scratch, SecondPart
from longwire.sim.answer import expected_text
from longwire.words.reasons import CloseReason as Reason

SEED = 3
SAID = expected_text(SEED, 3)
"""What the first engine has said when it breaks off."""


@asynccontextmanager
async def before_a_script(**settings: Any) -> AsyncIterator[TestHouse]:
    """The stand-in fails in each answer, and the scripted engine is the only other one."""
    async with open_house(has_twin=True, **settings) as house:
        scripted = house.gateway.directory.upstreams[1]
        scripted.models, scripted.weight, scripted.abilities = ("sim",), 0, KINDS["sim"]
        house.gateway.directory.upstreams[2].is_up = False
        yield house


async def ask(house: TestHouse, *steps: Step, **fields: Any) -> Answer:
    house.sim.fail_next("no_hold_back", "reset_after=4")
    house.engine.will_say(*steps)
    return await house.ask(chat(tokens=20, **fields))


def other_choice() -> bytes:
    return b'data: {"choices":[{"index":1,"delta":{"content":"x"},"finish_reason":null}]}\n\n'


ENDS: list[tuple[bytes, tuple[Mark, ...]]] = [
    (in_chunks(delta(finish="stop"), DONE), ()),
    (in_chunks(delta("b"), delta(finish="stop"), DONE), ()),
    (in_chunks(b'data: {"error":{"message":"no"}}\n\n'), ()),
    (in_chunks(DONE), ()),
    (b"garbage\r\n", ()),
    (b"", (RST,)),
]


@pytest.mark.parametrize("end", ENDS)
async def test_an_event_that_can_be_no_part_is_no_success_whatever_comes_with_it(
    end: tuple[bytes, tuple[Mark, ...]],
) -> None:
    """All in one read: the answer's end is there before anybody had a turn to see what was wrong with it."""
    async with before_a_script(max_attempts=2) as house:
        more, marks = end
        answer = await ask(house, CHUNKED + in_chunks(delta("a"), other_choice(), last=False) + more, *marks)
        assert answer.text == SAID + "a"
        assert answer.in_band_error is not None and answer.is_marked_done
        await house.check_ending(answer.stream_id, Reason.UPSTREAM_RESET)


@pytest.mark.parametrize("end", ENDS)
async def test_a_stop_at_the_seam_is_the_end_whatever_comes_with_it(end: tuple[bytes, tuple[Mark, ...]]) -> None:
    async with before_a_script(max_attempts=2) as house:
        more, marks = end
        stop = SAID[-2:] + "QX"
        again = " " + SAID.rpartition(" ")[2]  # the last word is said again where there are stop strings
        said = in_chunks(delta(again), delta("Q"), delta("Xmore"), last=False)
        answer = await ask(house, CHUNKED + said + more, *marks, stop=[stop])
        assert answer.text == SAID and answer.in_band_error is None and answer.is_marked_done
        assert answer.frames[-1]["choices"][0]["finish_reason"] == "stop"
        await house.check_ending(answer.stream_id, Reason.COMPLETED)


async def test_what_came_of_a_part_before_it_went_wrong_is_counted() -> None:
    async with before_a_script(max_attempts=2) as house:
        answer = await ask(house, CHUNKED + in_chunks(delta("a"), delta("b"), delta("c"), other_choice()))
        assert answer.text == SAID + "abc" and answer.in_band_error is not None
        assert house.stream(answer.stream_id).facts.tokens_estimated == 6


@pytest.mark.parametrize("event", [b"data: 1\n\n", delta("xy").replace(b"\n", b"\r\n"), b": ping\r\n\r\n"])
async def test_of_an_engine_s_bytes_no_more_is_kept_than_an_event(event: bytes) -> None:
    """Also where no event goes out of them as it lies there."""
    more = asyncio.Event()
    async with before_a_script(max_event_bytes=4096) as house:
        house.sim.fail_next("reset_after=4")
        count = 256 * 1024 // len(event)
        house.engine.will_say(head_of(), delta("a"), event * count, more, delta("b"), delta(finish="stop"), DONE, FIN)
        client = await house.connect()
        client.post(chat(tokens=20))
        stream = house.stream((await client.head()).stream_id)
        await until(
            lambda: isinstance(stream.producer, Call) and isinstance(stream.producer.sink, SecondPart), "it goes on"
        )
        call = stream.producer
        assert isinstance(call, Call) and isinstance(call.sink, SecondPart)
        scratch = call.sink.chain
        await until(lambda: scratch.end > count * len(event), "all is read")
        assert sum(map(sys.getsizeof, (getattr(scratch, name) for name in Scratch.__slots__))) < READ_BYTES
        more.set()
        answer = await client.rest()
        assert answer.text == SAID + "a" + "xy" * count * (b"xy" in event) + "b" and answer.is_marked_done


async def test_a_second_part_leaves_the_arena_s_last_blocks_for_endings() -> None:
    async with open_house(has_twin=True, arena_bytes=2 << 20) as house:
        house.sim.fail_next("reset_after=4")
        client = await house.connect()
        client.post(chat(tokens=12_000))
        await client.head()
        answer = await client.rest()
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "arena_full"
        assert answer.is_marked_done


async def test_what_has_ended_gives_way_to_a_second_part() -> None:
    async with open_house(has_twin=True, arena_bytes=4 << 20) as house:
        old = await house.ask(chat(tokens=7_000))
        house.sim.fail_next("reset_after=4")
        answer = await house.ask(chat(tokens=14_000))
        assert answer.in_band_error is None and answer.is_marked_done and answer.text == expected_text(SEED, 14_000)
        assert (await house.fetch(f"/v1/streams/{old.stream_id}")).status == 410
