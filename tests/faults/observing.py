"""A request through a gateway before engines that break, by nobody's clock but the test's: what is seen of it on every side.

What lives here: turning the loop until nothing moves, letting time pass only then, and what client, engine and metrics say.
What must not: what ought to be seen (phases.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.house import Answer, Client, TestHouse, chat, open_house

from longwire.engines.connections import MAX_DRAIN_PURGES
from longwire.observe.declarations import CLOCKS
from longwire.sim import SimServer
from longwire.sim.answer import expected_text
from longwire.words.reasons import CloseReason

SEED = 3
TOKENS = 60
"""Events of a stream: the role, so many tokens, the finish, the usage that the gateway asks for, the end marker."""
TIMES: dict[str, Any] = {
    "first_byte_timeout_s": 10,
    "first_token_timeout_s": 20,
    "token_silence_s": 8,
    "total_timeout_s": 120,
    "heartbeat_s": 3600,
    "breaker_open_s": 1,
}
QUIET_TURNS = 12
"""Turns of the loop in which nothing moves anywhere, before time may pass: a connection takes some four to be made."""
STEP_S = 1.0
LONGEST_S = 200.0


@asynccontextmanager
async def open_broken_house(**more: Any) -> AsyncIterator[TestHouse]:
    """One fault is enough to open a breaker, so that the breaker tells whom the gateway blames."""
    settings = {"breaker_faults": 1, "max_event_bytes": 11 << 20, "arena_bytes": 48 << 20, **TIMES, **more}
    async with open_house(is_sim_on_clock=True, sim={"tokens": TOKENS, "seed": SEED}, **settings) as house:
        yield house


# Letting things happen.


def _account(engine: SimServer) -> tuple[int, ...]:
    return (
        engine.connections_accepted,
        len(engine.open_connections),
        engine.open_streams,
        engine.answered,
        engine.cancelled,
        len(engine.requests),
    )


def _moved(house: TestHouse) -> object:
    """Whatever changes when anything happens."""
    answers = [client.current for client in house.clients]
    return (
        _account(house.sim),
        _account(house.twin),
        house.engine.connections,
        house.engine.open_connections,
        [(stream.state, stream.log.upstream.end, len(stream.log.entries)) for stream in house.streams],
        [(len(answer.pieces), answer.is_whole) if answer else None for answer in answers],
        [len(client.reader._buffer) for client in house.clients],  # type: ignore[attr-defined]  # a large piece on its way
        len(house.gateway.listener.connections),
        [tuple(upstream.statistics().values()) for upstream in house.gateway.directory.upstreams],
    )


async def turn_until(house: TestHouse, is_so: Callable[[], bool]) -> bool:
    """Turn the loop until it is so, or nothing moves any more; which of the two."""
    before, quiet = _moved(house), 0
    while not is_so() and quiet < QUIET_TURNS:
        await asyncio.sleep(0)
        now = _moved(house)
        quiet = 0 if now != before else quiet + 1
        before = now
    return is_so()


async def pass_until(house: TestHouse, is_so: Callable[[], bool], limit_s: float = LONGEST_S) -> float:
    """Let time pass until it is so, and only while nothing moves by itself; the seconds that it took."""
    began = house.clock.now()
    while not await turn_until(house, is_so):
        assert house.clock.now() - began < limit_s, f"not after {limit_s:g} s: {house.streams}"
        house.pass_time(STEP_S)
    return house.clock.now() - began


async def settle_down(house: TestHouse) -> None:
    """Nothing moves any more."""
    await turn_until(house, lambda: False)


# What the client reads.


def frames_of(answer: Answer) -> list[dict[str, Any]]:
    """Each event's JSON, bytes that are no UTF-8 kept apart from all text."""
    found = [json.loads(data.decode("utf-8", "surrogateescape")) for data in answer.data if data != b"[DONE]"]
    assert all(isinstance(frame, dict) for frame in found)
    return found


def text_of(frames: list[dict[str, Any]]) -> str:
    deltas = [frame["choices"][0]["delta"] for frame in frames if frame.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def tokens_in(text: str, before: str = "", behind_first: str = "") -> int:
    """How many tokens of the foretold answer a text is, exactly; ``before`` them and ``behind_first`` a fault's own."""
    assert text.startswith(before), text[:80]
    text = text.removeprefix(before)
    first = expected_text(SEED, 1)
    if behind_first and text != first:
        assert text.startswith(first + behind_first), text[:80]
        text = first + text[len(first + behind_first) :]
    for tokens in range(TOKENS + 1):
        if text == expected_text(SEED, tokens):
            return tokens
    raise AssertionError(f"no beginning of the answer: {text[-80:]!r}")


@dataclass(frozen=True)
class Told:
    """What one client got: the status, the code of the error, how many tokens, and whether it could see the end."""

    status: int
    error: str
    tokens: int
    is_whole: bool


def told_stream(answer: Answer, before: str = "", behind_first: str = "") -> Told:
    """Checks a streamed answer's form while reading it."""
    if answer.status != 200:
        return _told_refusal(answer)
    assert answer.is_whole and answer.is_marked_done, "an end is never silent"
    frames = frames_of(answer)
    errors = [frame["error"] for frame in frames if frame.get("error")]
    assert len(errors) <= 1, "one ending, one error"
    tokens = tokens_in(text_of(frames), before, behind_first)
    finishes = [choice["finish_reason"] for frame in frames for choice in frame.get("choices", ())]
    assert sum(finish is not None for finish in finishes) <= 1
    if errors:
        assert errors[0]["last_seq"] == len(answer.data) - 3, "it says how far it got"
        return Told(200, errors[0]["code"], tokens, False)
    assert finishes[-1] is not None and tokens == TOKENS, "success is never made up"
    return Told(200, "", tokens, True)


def told_whole(answer: Answer) -> Told:
    """The same of an answer in one piece."""
    if answer.status != 200:
        return _told_refusal(answer)
    if not answer.is_whole:
        return Told(200, "cut", 0, False)
    tokens = tokens_in(answer.json["choices"][0]["message"]["content"])
    assert tokens == TOKENS, "success is never made up"
    return Told(200, "", tokens, True)


def _told_refusal(answer: Answer) -> Told:
    assert answer.is_whole and answer.header("content-length")
    if not answer.header("content-type").startswith("application/json"):
        return Told(answer.status, "(its own)", 0, True)
    return Told(answer.status, str(answer.error["code"]), 0, True)


# What engine and metrics say.


def engine_saw(engine: SimServer) -> str:
    """Requests, and what became of those that were work: ``1 answered``, ``2 asked, 1 answered``, ``1 refused``."""
    asked, answered, cancelled = len(engine.requests), engine.answered, engine.cancelled
    if engine.open_streams:
        return f"{engine.open_streams} still open"
    words = [f"{count} {what}" for count, what in ((answered, "answered"), (cancelled, "cancelled")) if count]
    if asked > answered + cancelled:
        words.append(f"{asked - answered - cancelled} refused")
    return ", ".join(words) or "not asked"


def clocks_fired(metrics: dict[str, float]) -> str:
    """The clocks that have run out, by name; one that did so twice stands there twice."""
    counts = {clock: metrics[f'longwire_clock_fired_total{{clock="{clock}"}}'] for clock in CLOCKS}
    return " ".join(clock for clock, count in counts.items() for _ in range(int(count)))


def endings(metrics: dict[str, float]) -> dict[str, int]:
    """Streams that ended, by reason, as the metric has it."""
    counts = {
        str(reason): metrics.get(f'longwire_streams_ended_total{{close_reason="{reason}"}}', 0)
        for reason in CloseReason
    }
    return {reason: int(count) for reason, count in counts.items() if count}


async def begin(house: TestHouse, *, stream: bool, headers: dict[str, str] | None = None) -> Client:
    """A request of its own connection, written."""
    client = await house.connect()
    client.post(chat(stream), headers)
    return client


async def look_again(house: TestHouse) -> None:
    """As the prober does: connections whose answers never quite end are closed after a while."""
    for _ in range(MAX_DRAIN_PURGES + 1):
        for upstream in house.gateway.directory.upstreams:
            upstream.purge_nowait()
    await settle_down(house)
