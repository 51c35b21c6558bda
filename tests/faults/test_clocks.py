"""Clocks and engines that fall silent: what each clock finds, what becomes of the stream then, and what is no fault at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.house import CHUNKED, HOLD, Client, TestHouse, chat, delta, in_chunks, open_house, until

from longwire.engines.breaker import BreakerState
from longwire.sim.answer import expected_text
from longwire.words.reasons import CloseReason as Reason

TOKENS = 9
CLOCKS: dict[str, Any] = {
    "first_byte_timeout_s": 10,
    "first_token_timeout_s": 20,
    "token_silence_s": 8,
    "heartbeat_s": 3600,
}


async def let_pass(house: TestHouse, seconds: float, step_s: float = 0.5) -> None:
    """Time goes by in small steps, as it does: a jump is none of an engine's."""
    for _ in range(int(seconds / step_s)):
        house.pass_time(step_s)
        await asyncio.sleep(0)


async def begin(house: TestHouse, body: object, headers: dict[str, str] | None = None, events: int = 0) -> Client:
    """A request whose engine has said so many events."""
    client = await house.connect()
    client.post(body, headers)
    await until(lambda: house.streams and house.streams[0].log.event_count >= events, "it has begun")
    await until(lambda: house.sim.requests or house.engine.requests, "the engine is asked")
    for _ in range(20):
        await asyncio.sleep(0)
    return client


STALLS = [
    ("hang", 0, 11, Reason.UPSTREAM_TIMEOUT, "first_byte"),
    ("headers_then_stall", 0, 22, Reason.FIRST_TOKEN_TIMEOUT, "first_token"),
    ("stall_after=1", 0, 22, Reason.FIRST_TOKEN_TIMEOUT, "first_token"),
    ("stall_after=2", 2, 27, Reason.TOKEN_SILENCE, "silence"),
    ("stall_after=6", 6, 27, Reason.TOKEN_SILENCE, "silence"),
    ("stall_inside=5", 5, 27, Reason.TOKEN_SILENCE, "silence"),
]
"""Fault, events before it, seconds until it must have been found, reason and clock."""


@pytest.mark.parametrize(("fault", "events", "limit_s", "reason", "clock"), STALLS)
async def test_a_silent_engine_is_found_and_the_client_is_told(
    fault: str, events: int, limit_s: float, reason: Reason, clock: str
) -> None:
    async with open_house(**CLOCKS) as house:
        client = await begin(house, chat(fault=fault, tokens=TOKENS), events=events)
        await let_pass(house, limit_s)
        answer = await client.answer()
        if events:
            assert answer.in_band_error is not None and answer.in_band_error["code"] == str(reason)
            assert answer.is_marked_done and len(answer.data) == events + 2
        else:
            assert (answer.status, answer.error["code"]) == (504, str(reason))
        await house.check_ending(answer.stream_id, reason)
        await house.sim.wait_cancelled(1)
        assert house.metric(f'longwire_clock_fired_total{{clock="{clock}"}}') == 1
        assert house.metric("longwire_silence_warnings_total") == (2 if clock == "silence" else 0)


@pytest.mark.parametrize(("fault", "events", "limit_s", "reason", "clock"), STALLS)
async def test_where_another_engine_stands_by_nobody_notices(
    fault: str, events: int, limit_s: float, reason: Reason, clock: str
) -> None:
    async with open_house(has_twin=True, **CLOCKS) as house:
        house.sim.fail_next(fault)
        client = await begin(house, chat(tokens=TOKENS), events=events)
        await let_pass(house, limit_s)
        answer = await client.answer()
        assert answer.status == 200 and answer.in_band_error is None and answer.is_marked_done
        assert answer.text == expected_text(3, TOKENS)
        await house.sim.wait_cancelled(1)
        assert (await house.state(answer.stream_id))["epoch"] == (2 if events else 1)


@pytest.mark.parametrize("fault", ["stall_last", "stay_open"])
async def test_an_engine_that_is_through_and_stays_has_ended(fault: str) -> None:
    async with open_house(**CLOCKS) as house:
        client = await begin(house, chat(fault=fault, tokens=TOKENS), events=TOKENS)
        await let_pass(house, 27)
        answer = await client.answer()
        assert answer.is_marked_done and answer.text == expected_text(3, TOKENS)
        await house.check_ending(answer.stream_id, Reason.COMPLETED)
        await let_pass(house, 20)


async def test_a_busy_engine_is_warned_about_and_not_given_up() -> None:
    """Its own count of what it generates moves: it serves others, and to move load would make that worse."""
    async with open_house(has_twin=True, **CLOCKS) as house:
        house.sim.fail_next("stall_after=4")
        client = await begin(house, chat(tokens=TOKENS), events=4)
        upstream = house.gateway.directory.upstreams[0]
        for _ in range(60):
            upstream.moved_at = house.clock.now()
            await let_pass(house, 1)
        assert house.streams[0].reason is None and not house.twin.requests
        assert house.metric("longwire_silence_warnings_total") == 2 and house.metric("longwire_busy_silences_total") > 2
        await let_pass(house, 30)  # now it is flat
        assert (await client.answer()).text == expected_text(3, TOKENS)


async def test_an_engine_that_nobody_else_uses_is_not_busy_with_its_own_last_token() -> None:
    async with open_house(has_twin=True, load_stale_s=3600, **CLOCKS) as house:
        house.sim.fail_next("stall_after=4")
        client = await begin(house, chat(tokens=TOKENS), events=4)
        await let_pass(house, 1)
        house.gateway.directory.upstreams[0].moved_at = house.clock.now()  # the next look at its load finds that token
        await let_pass(house, 30)
        assert (await client.answer()).text == expected_text(3, TOKENS)
        assert house.metric("longwire_busy_silences_total") == 0


async def test_one_token_in_ten_seconds_lives_as_long_as_its_total_allows() -> None:
    async with open_house(total_timeout_s=600, **CLOCKS) as house:
        gates = [asyncio.Event() for _ in range(100)]
        steps: list[Any] = [CHUNKED + in_chunks(delta("a"), last=False)]
        for gate in gates:
            steps += [gate, in_chunks(delta("b"), last=False)]
        house.engine.will_say(*steps, HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await until(lambda: house.streams and house.streams[0].log.event_count, "it has begun")
        for number, gate in enumerate(gates[:59]):
            gate.set()
            await until(lambda n=number: house.streams[0].log.event_count == n + 2, "a token")  # type: ignore[misc]
            await let_pass(house, 10, 1.0)
        assert house.streams[0].reason is None
        await let_pass(house, 20, 1.0)
        answer = await client.answer()
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "total_timeout"
        assert len(answer.data) == 60 + 2


async def test_fewest_tokens_per_second() -> None:
    async with open_house(**CLOCKS | {"token_silence_s": 0, "min_tokens_per_s": 1, "rate_window_s": 10}) as house:
        client = await begin(house, chat(fault="stall_after=4", tokens=TOKENS), events=4)
        await let_pass(house, 15)
        answer = await client.answer()
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "too_slow"


async def test_a_request_has_its_own_times_within_bounds_and_its_impatience_is_no_fault() -> None:
    async with open_house(breaker_faults=1, **CLOCKS) as house:
        wishes = {"longwire-timeouts": "silence=1, first-token=2"}
        client = await begin(house, chat(fault="stall_after=4", tokens=TOKENS), wishes, events=4)
        await let_pass(house, 4)
        answer = await client.answer()
        assert answer.in_band_error is not None and answer.in_band_error["code"] == "token_silence"
        assert house.gateway.directory.upstreams[0].breaker.state is BreakerState.CLOSED
        client = await begin(house, chat(fault="stall_after=4", tokens=TOKENS), events=4)
        await let_pass(house, 27)
        await client.answer()
        assert house.gateway.directory.upstreams[0].breaker.state is BreakerState.OPEN


@pytest.mark.parametrize(("wish", "waits_s", "is_whole"), [("silence=1", 4, False), ("silence=8", 27, True)])
async def test_what_only_its_client_does_not_wait_for_is_gone_on_with_as_its_budget_allows(
    wish: str, waits_s: float, is_whole: bool
) -> None:
    async with open_house(has_twin=True, retry_budget_floor=0, retry_budget_percent=0, **CLOCKS) as house:
        house.sim.fail_next("stall_after=4")
        client = await begin(house, chat(tokens=TOKENS), {"longwire-timeouts": wish}, events=4)
        await let_pass(house, waits_s)
        answer = await client.answer()
        assert (answer.in_band_error is None) is is_whole and len(house.twin.requests) == is_whole
        assert house.metric("longwire_retries_refused_total") == (not is_whole)


@pytest.mark.parametrize("jump_s", [30, 3600])
async def test_a_process_that_was_stopped_blames_no_engine(jump_s: float) -> None:
    """SIGSTOP, or a machine that sleeps: the clock has moved on, and nobody was there to read."""
    async with open_house(**CLOCKS) as house:
        client = await begin(house, chat(fault="stall_after=4", tokens=TOKENS), events=4)
        await let_pass(house, 2)
        house.clock.lose(jump_s)
        await let_pass(house, 5)
        assert house.streams[0].reason is None and house.metric("longwire_silence_warnings_total") <= 1
        client.reset()
        await house.sim.wait_cancelled(1)


async def test_answers_in_one_piece_have_a_first_byte_and_a_total_alone() -> None:
    async with open_house(total_timeout_s=100, **CLOCKS | {"first_byte_timeout_s": 0}) as house:
        client = await house.connect()
        client.post(chat(False, fault="hang"))
        await house.sim.wait_requests(1)
        await let_pass(house, 90, 1.0)
        assert house.streams[0].reason is None
        await let_pass(house, 15, 1.0)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (504, "total_timeout")


async def test_the_wall_clock_may_jump_an_hour_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(**CLOCKS) as house:
        client = await begin(house, chat(fault="stall_after=4", tokens=TOKENS), events=4)
        for jump_s in (3600.0, -7200.0):
            wall = house.clock.wall()
            monkeypatch.setattr(house.clock, "wall", lambda at=wall + jump_s: at)
            await let_pass(house, 5)
            assert house.streams[0].reason is None
        client.reset()
        await house.sim.wait_cancelled(1)
