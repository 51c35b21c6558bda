"""Requests that wait for room at an engine: whose turn it is, who is refused and how, and what is left of those who leave."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
import uvloop
from tests.house import (
    CHUNKED,
    DONE,
    RST,
    Client,
    TestHouse,
    chat,
    delta,
    hashed,
    head_of,
    in_chunks,
    open_house,
    until,
)
from tests.test_adopt import STREAMS, Trial, body_of, request_of, text_of, whole_body
from tests.test_adopt import Client as AdoptedClient

from longwire.engines.load_probe import LoadProbe
from longwire.engines.occupancy import Wanted
from longwire.engines.pool import Upstream
from longwire.engines.room import LEAST_CLAMP_TOKENS, PROMPT_WEIGHT_TOKENS
from longwire.engines.saturation import FORGET_S
from longwire.engines.shares import RECENT_S
from longwire.sim.answer import answer_text
from longwire.sim.metrics import BLOCK_TOKENS
from longwire.streams.arena import ArenaFull
from longwire.streams.stream import State, Stream
from longwire.waiting import (
    COMMIT_MARGIN_S,
    LOOK_S,
    MAX_QUEUES,
    MAX_REFUSALS,
    MAX_STARTS,
    REST_SHARE,
    Waiting,
    WaitingRoom,
)
from longwire.words.errors import LongwireError, TooManyWaiting
from longwire.words.reasons import CloseReason
from longwire.words.settings import Settings, TenantSettings

ADA = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
BOB = TenantSettings(name="bob", key_hashes=[hashed("sk-bob")], max_requests_per_min=100, max_tokens_per_min=50_000)
END = in_chunks(delta(finish="stop"), DONE)
TICK_S = 0.01
"""A deadline is found to be over at most a tick of the queue too late."""


def as_(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{tenant}"}


def room_of(house: TestHouse) -> WaitingRoom:
    return house.gateway.gateway.generations.waiting


def upstream_of(house: TestHouse, name: str) -> Upstream:
    return next(each for each in house.gateway.directory.upstreams if each.name == name)


def script(**fields: object) -> dict[str, object]:
    return chat(model="script", **fields)


async def post(house: TestHouse, body: dict[str, object], headers: dict[str, str] | None = None) -> Client:
    client = await house.connect()
    client.post(body, headers)
    return client


class Held:
    """Requests that the scripted engine has begun to answer, and ends when it is told to."""

    def __init__(self, house: TestHouse, count: int) -> None:
        self.house = house
        self.ends = [asyncio.Event() for _ in range(count)]
        for event in self.ends:
            house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), event, END)

    async def post(self, count: int = 1) -> list[Client]:
        """So many that are under way."""
        before = len(self.house.engine.requests)
        clients = [await post(self.house, script()) for _ in range(count)]
        for client in clients:
            await client.head()
        assert len(self.house.engine.requests) == before + count
        return clients

    def end(self, index: int) -> None:
        self.ends[index].set()

    def end_all(self) -> None:
        for event in self.ends:
            event.set()


async def queue_up(house: TestHouse, bodies: Iterable[dict[str, object]], tenant: str = "") -> list[Client]:
    """Ask for each in turn, and see it wait."""
    clients = []
    for body in bodies:
        before = room_of(house).waiting
        clients.append(await post(house, body, as_(tenant) if tenant else None))
        await until(lambda before=before: room_of(house).waiting == before + 1, "it waits")  # type: ignore[misc]
    return clients


def users(house: TestHouse) -> list[str]:
    """Who was sent to the scripted engine, in order."""
    return [str(json.loads(body).get("user", "")) for _, body in house.engine.requests]


# Waiting, and its turn.


@pytest.mark.parametrize("stream", [True, False])
async def test_what_finds_no_room_waits_and_is_answered_when_there_is(stream: bool) -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 1)
        (first,) = await held.post()
        plain = b'{"choices":[{"message":{"content":"b"}}]}'
        one_piece = head_of(b"content-length: %d" % len(plain), kind=b"application/json")
        house.engine.will_say(CHUNKED + in_chunks(delta("b"), last=False) + END if stream else one_piece + plain)
        (second,) = await queue_up(house, [script(stream=stream)])
        waiting = next(each for each in house.streams if each.state is State.OPENING)
        assert waiting.request is not None and waiting.link.fd == -1 and waiting.slot is not None
        upstream = upstream_of(house, "script")
        assert (upstream.in_flight, len(house.engine.requests), upstream.occupancy.held.weight) == (1, 1, 1)
        assert house.metric("longwire_queue_length") == 1 and repr(room_of(house)) == "<WaitingRoom 1 in 1 queues>"
        house.pass_time(2)
        assert room_of(house).waiting == 1
        held.end_all()
        assert (await first.rest()).is_marked_done
        answer = await second.answer()
        assert answer.status == 200 and b'"b"' in answer.body
        assert (len(house.engine.requests), house.engine.connections) == (2, 1), "over the connection that came free"
        assert house.metric("longwire_queued_total") == house.metric("longwire_queue_wait_seconds_count") == 1
        assert house.metric("longwire_queue_wait_seconds_sum") >= 2


async def test_the_request_that_waited_is_the_one_that_was_made() -> None:
    """Byte for byte, and with a second try without what we had added."""
    async with open_house(max_upstream_requests=1) as house:
        bodies = []
        for waits in (False, True):
            held = Held(house, 1)
            clients = await held.post() if waits else []
            refused = b'{"error":{"message":"stream_options is unknown"}}'
            size = b"content-length: %d" % len(refused)
            house.engine.will_say(head_of(size, status=b"400 Bad Request", kind=b"application/json") + refused)
            house.engine.will_say(CHUNKED + in_chunks(delta("b"), last=False) + END)
            if not waits:
                house.engine.scripts.rotate(-1)
            asked = await queue_up(house, [script(user="x")]) if waits else [await post(house, script(user="x"))]
            held.end_all()
            assert (await asked[0].answer()).is_marked_done
            for client in clients:
                await client.rest()
            bodies.append(house.engine.requests[-2:])
            upstream_of(house, "script").refuses_stream_options = False
            if not waits:
                house.engine.scripts.clear()
        (once, again), (once_late, again_late) = bodies
        assert (once[1], again[1]) == (once_late[1], again_late[1]) and b"stream_options" not in again[1]
        ids = {b"x-request-id"}
        assert [f for f in once[0].headers if f[0] not in ids] == [f for f in once_late[0].headers if f[0] not in ids]


async def test_nobody_waits_behind_all_that_another_tenant_has_sent() -> None:
    async with open_house(max_upstream_requests=1, tenants=[ADA, BOB]) as house:
        held = Held(house, 12)
        client = await post(house, script(user="first"), as_("ada"))
        await client.head()
        await queue_up(house, [script(user="ada") for _ in range(9)], "ada")
        await queue_up(house, [script(user="bob") for _ in range(2)], "bob")
        for index in range(12):
            await until(lambda index=index: len(house.engine.requests) == index + 1, "the next was sent")  # type: ignore[misc]
            held.end(index)
        assert "bob" in users(house)[1:3] and users(house)[:6].count("bob") == 2
        assert sorted(users(house)) == ["ada"] * 9 + ["bob"] * 2 + ["first"]


async def test_one_that_floods_leaves_a_little_to_those_who_come_after_it() -> None:
    async with open_house(
        max_upstream_requests=16, queue_deadline_s=600, commit_after_ms=0, tenants=[ADA, BOB]
    ) as house:
        held = Held(house, 19)
        first = await post(house, script(user="bob"), as_("bob"))
        await first.head()
        held.end(0)
        await first.rest()
        for _ in range(14):
            await (await post(house, script(user="ada"), as_("ada"))).head()
        await queue_up(house, [script(user="ada"), script(user="ada")], "ada")
        for _ in range(2):
            await (await post(house, script(user="bob"), as_("bob"))).head()
        assert users(house).count("ada") == 14 and users(house)[-2:] == ["bob", "bob"], "they have not waited"
        await queue_up(house, [script(user="bob")], "bob")
        held.end(1)
        await until(lambda: len(users(house)) == 18, "one place is free")
        assert users(house)[-1] == "bob" and room_of(house).waiting == 2
        for index in (15, 16, 17):
            held.end(index)
        await until(lambda: upstream_of(house, "script").in_flight == 13, "all of the other have ended")
        await until(lambda: room_of(house).waiting == 1, "up to what is kept")
        house.pass_time(RECENT_S + 1)
        await until(lambda: room_of(house).waiting == 0, "nobody else has asked for long")
        held.end_all()


async def test_no_newcomer_overtakes_and_a_long_one_at_the_head_holds_back_short_ones() -> None:
    async with open_house(max_upstream_requests=3) as house:
        held = Held(house, 4)
        await held.post(2)
        long = "x" * 4 * PROMPT_WEIGHT_TOKENS * 2
        await queue_up(house, [script(user="long", pad=long), script(user="short")])
        assert users(house) == ["", ""], "there is room for the short one, and it is not its turn"
        held.end(0)
        await until(lambda: upstream_of(house, "script").in_flight == 1, "the first has ended")
        house.pass_time(LOOK_S)
        assert room_of(house).waiting == 2, "the long one needs more than that"
        held.end(1)
        await until(lambda: len(users(house)) == 3, "it fits beside nothing")
        assert users(house)[2] == "long" and room_of(house).waiting == 1
        held.end(2)
        await until(lambda: len(users(house)) == 4, "and then the short one")
        held.end_all()


async def test_models_at_one_engine_do_not_overtake_each_other_and_take_turns() -> None:
    async with open_house(max_upstream_requests=1) as house:
        upstream = upstream_of(house, "script")
        upstream.models = ("script", "other")
        held = Held(house, 5)
        await held.post()
        await queue_up(house, [script(user="a1"), script(user="a2")])
        await queue_up(house, [chat(model="other", user=user) for user in ("b1", "b2")])
        assert room_of(house).statistics()["queues"] == 2
        for index in range(5):
            await until(lambda index=index: len(users(house)) == index + 1, "the next was sent")  # type: ignore[misc]
            held.end(index)
        assert users(house)[1:] == ["a1", "b1", "a2", "b2"]


async def test_an_upstream_that_comes_back_is_given_what_waits() -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 2)
        await held.post()
        (client,) = await queue_up(house, [script()])
        upstream_of(house, "script").is_up = False
        held.end_all()
        await until(lambda: not upstream_of(house, "script").in_flight, "the first has ended")
        house.pass_time(LOOK_S)
        assert room_of(house).waiting == 1
        upstream_of(house, "script").is_up = True
        house.pass_time(LOOK_S)
        assert (await client.answer()).is_marked_done


async def test_one_that_rests_is_tried_by_one_request_when_it_has_rested() -> None:
    async with open_house(max_upstream_requests=1, breaker_faults=1, breaker_open_s=1) as house:
        upstream = upstream_of(house, "script")
        held = Held(house, 3)
        await held.post()
        await queue_up(house, [script(), script()])
        upstream.breaker.note_fault(house.clock.now(), 1.0, "a fault")
        held.end(0)
        await until(lambda: not upstream.in_flight, "the first has ended")
        house.pass_time(LOOK_S)
        assert room_of(house).waiting == 2
        house.pass_time(1)
        upstream.breaker.note_probe(house.clock.now(), True)
        house.pass_time(LOOK_S)
        assert room_of(house).waiting == 1
        held.end_all()
        await until(lambda: len(users(house)) == 3, "trusted again")


# Several engines.


async def test_where_one_engine_has_no_room_another_is_asked_and_the_next_waits_for_either() -> None:
    async with open_house(has_twin=True, max_upstream_requests=1) as house:
        twin = upstream_of(house, "twin")
        twin.weight, twin._offers, twin.models = 100, {"sim": "own"}, ("own",)
        house.sim.fail_next("stall_after=3")
        house.twin.fail_next("stall_after=3")
        asked = [await post(house, chat()) for _ in range(2)]
        for client in asked:
            await client.head()
        assert (len(house.sim.requests), len(house.twin.requests)) == (1, 1)
        (third,) = await queue_up(house, [chat(user="third")])
        stream = next(each for each in house.streams if each.state is State.OPENING)
        thought_of = stream.facts.engine
        for client in asked:
            assert client.current is not None
            running = house.stream(client.current.stream_id)
            if running.facts.engine != thought_of:
                running.stop(CloseReason.CANCELLED, "")
        answer = await third.answer()
        assert answer.is_marked_done
        other = house.twin if thought_of == "sim" else house.sim
        sent = json.loads(other.requests[-1].body)
        assert (sent["user"], sent["model"]) == ("third", "own" if thought_of == "sim" else "sim")
        assert stream.facts.engine != thought_of and stream.facts.attempts == 1
        assert house.metric("longwire_failovers_total") == 0


async def test_an_engine_without_weight_takes_none_that_another_has_no_room_for() -> None:
    async with open_house(has_twin=True, max_upstream_requests=1) as house:
        house.sim.fail_next("stall_after=3")
        first = await post(house, chat())
        await first.head()
        await queue_up(house, [chat()])
        assert not house.twin.requests


async def test_an_attempt_at_another_engine_waits_for_nobody() -> None:
    async with open_house(has_twin=True, max_upstream_requests=1) as house:
        engine, twin = upstream_of(house, "script"), upstream_of(house, "twin")
        twin.models = ("script",)
        house.twin.fail_next("stall_after=2")
        engine.is_up = False
        beside = await post(house, script())
        await beside.head()
        engine.is_up = True
        breaks = asyncio.Event()
        house.engine.will_say(breaks, RST)
        failing = await post(house, script(user="fails"))
        await until(lambda: users(house) == ["fails"], "it was sent")
        held = Held(house, 1)
        (client,) = await queue_up(house, [script(user="waits")])
        breaks.set()
        assert (await failing.answer()).is_marked_done and len(house.twin.requests) == 2
        await client.head()
        assert users(house) == ["fails", "waits"], "what it has left is there for whoever waited"
        held.end_all()
        assert (await client.rest()).is_marked_done


# Leaving.


async def test_who_leaves_while_it_waits_costs_nothing() -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 2)
        await held.post()
        leaving, staying = await queue_up(house, [script(user="leaves"), script(user="stays")])
        leaving.reset()
        await until(lambda: room_of(house).waiting == 1, "it has left")
        (line,) = await house.lines.wait(1)
        assert (line["close_reason"], line["completion_tokens"]) == ("client_left", 0)
        held.end_all()
        assert (await staying.answer()).is_marked_done and users(house) == ["", "stays"]
        assert house.metric('longwire_queue_refused_total{why="deadline"}') == 0


async def test_who_holds_back_others_and_leaves_lets_them_go() -> None:
    async with open_house(max_upstream_requests=2) as house:
        held = Held(house, 2)
        await held.post()
        long = "x" * 4 * PROMPT_WEIGHT_TOKENS * 2
        leaving, staying = await queue_up(house, [script(pad=long), script(user="stays")])
        leaving.reset()
        await until(lambda: users(house) == ["", "stays"], "there is room for the next")
        held.end_all()
        assert (await staying.answer()).is_marked_done


@pytest.mark.parametrize("policy", ["run", "grace=2"])
async def test_who_wants_to_come_back_keeps_its_place(policy: str) -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 2)
        await held.post()
        client = await post(house, script(), {"longwire-on-disconnect": policy, "idempotency-key": "k"})
        await until(lambda: room_of(house).waiting, "it waits")
        client.reset()
        await until(lambda: any(each.is_unread_since for each in house.streams), "it has left")
        assert room_of(house).waiting == 1
        if policy != "run":
            house.pass_time(8)
            assert room_of(house).waiting == 0
            return
        again = await post(house, script(), {"idempotency-key": "k"})
        await until(lambda: len(house.streams) == 2 and house.streams[1].subscribers, "it found its stream")
        held.end_all()
        assert (await again.answer()).is_marked_done and len(house.engine.requests) == 2


async def test_an_operator_can_stop_what_waits_and_see_it() -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 1)
        await held.post()
        (client,) = await queue_up(house, [script()])
        stream = house.streams[1]
        assert (await house.state(stream.public_id))["status"] == "opening"
        assert (await house.call("DELETE", f"/v1/streams/{stream.public_id}", None)).status == 200
        assert (await client.answer()).status == 409 and room_of(house).waiting == 0


# In vain.


async def test_who_waits_in_vain_is_told_so_in_time_and_when_to_come_back() -> None:
    async with open_house(max_upstream_requests=1, queue_deadline_s=3) as house:
        await Held(house, 1).post()
        (client,) = await queue_up(house, [script()])
        house.pass_time(2.99)
        assert room_of(house).waiting == 1
        house.pass_time(0.01 + TICK_S)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "waited_in_vain") and int(
            answer.header("retry-after")
        ) >= 1
        await house.check_ending(answer.stream_id, CloseReason.QUEUE_DEADLINE, completion_tokens=0)
        assert house.metric('longwire_queue_refused_total{why="deadline"}') == 1
        client.post(script())
        await until(lambda: room_of(house).waiting == 1, "the connection is good for the next")


async def test_those_whose_time_is_over_together_are_told_a_few_at_a_time() -> None:
    async with open_house(max_upstream_requests=1, queue_deadline_s=3) as house:
        await Held(house, 1).post()
        clients = await queue_up(house, [script() for _ in range(MAX_REFUSALS + 5)])
        house.pass_time(3 + TICK_S)
        untold = [stream for stream in house.streams if stream.state is State.OPENING]
        assert len(untold) == 5 and room_of(house).waiting == 5, "other streams' events come before them"
        untold[-1].stop(CloseReason.CANCELLED, "")
        answers = [await client.answer() for client in clients]
        assert [answer.error["code"] for answer in answers].count("too_many_waiting") == MAX_REFUSALS + 4
        assert untold[-1].reason is CloseReason.CANCELLED, "and who has left is not told"


async def test_who_has_only_itself_to_blame_is_told_that() -> None:
    async with open_house(max_upstream_requests=1, tenants=[ADA, BOB]) as house:
        held = Held(house, 1)
        await (await post(house, script(), as_("ada"))).head()
        flood = await queue_up(house, [script() for _ in range(5)], "ada")
        (lone,) = await queue_up(house, [script()], "bob")
        house.pass_time(11)
        answers = [await client.answer() for client in (*flood, lone)]
        assert [answer.status for answer in answers] == [429] * 5 + [503]
        assert {answer.error["code"] for answer in answers[:5]} == {"too_many_waiting"}
        assert len({answer.header("retry-after") for answer in answers}) > 1, "they do not come back as one wave"
        held.end_all()


@pytest.mark.parametrize(
    ("stream", "commit_ms", "waits_s"), [(True, 2000, 2 - COMMIT_MARGIN_S), (True, 200, 0.15), (False, 2000, 10)]
)
async def test_no_stream_that_waits_is_committed(stream: bool, commit_ms: int, waits_s: float) -> None:
    async with open_house(max_upstream_requests=1, commit_after_ms=commit_ms) as house:
        await Held(house, 1).post()
        (client,) = await queue_up(house, [script(stream=stream)])
        house.pass_time(waits_s - TICK_S)
        assert room_of(house).waiting == 1 and house.streams[1].state is State.OPENING
        house.pass_time(2 * TICK_S)
        assert (await client.answer()).status == 503


async def test_nobody_waits_longer_than_its_own_total() -> None:
    async with open_house(max_upstream_requests=1, total_timeout_s=4) as house:
        await Held(house, 1).post()
        (client,) = await queue_up(house, [script()])
        house.pass_time(4)
        assert (await client.answer()).error["code"] in ("waited_in_vain", "too_many_waiting")


@pytest.mark.parametrize(
    ("bounds", "status", "code", "why"),
    [
        ({"max_queued": 1}, 503, "overloaded", "full"),
        ({"max_queued_per_tenant": 1}, 429, "too_many_waiting", "tenant"),
        ({"max_queued": 0}, 503, "overloaded", "full"),
    ],
)
async def test_what_may_not_wait_is_refused_at_once_and_counts_nothing(
    bounds: dict[str, Any], status: int, code: str, why: str
) -> None:
    async with open_house(max_upstream_requests=1, tenants=[BOB], **bounds) as house:
        held = Held(house, 1)
        await (await post(house, script(), as_("bob"))).head()
        if bounds.get("max_queued") != 0:
            await queue_up(house, [script()], "bob")
        bob = house.gateway.tenants.by_name("bob")
        assert bob is not None
        before = house.gateway.limiter.use(bob)
        answer = await house.ask(script(), as_("bob"))
        assert (answer.status, answer.error["code"]) == (status, code) and int(answer.header("retry-after")) >= 1
        after = house.gateway.limiter.use(bob)
        assert (after.live_streams, after.held_tokens) == (before.live_streams, before.held_tokens)
        assert after.tokens_per_min == pytest.approx(before.tokens_per_min, abs=1)
        assert house.metric(f'longwire_queue_refused_total{{why="{why}"}}') == 1
        held.end_all()


async def test_no_memory_for_a_request_that_waits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def store_request(*_: object) -> None:
        raise ArenaFull

    async with open_house(max_upstream_requests=1) as house:
        await Held(house, 1).post()
        monkeypatch.setattr(Stream, "store_request", store_request)
        answer = await house.ask(script())
        assert (answer.status, answer.error["code"]) == (503, "overloaded") and room_of(house).waiting == 0


async def test_a_fault_in_one_s_turn_is_the_end_of_that_one_alone() -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 2)
        await held.post()
        broken, next_one = await queue_up(house, [script(), script(user="next")])

        def fail(_: Upstream) -> None:
            raise RuntimeError("a fault of ours")

        waiting = house.streams[1].producer
        assert isinstance(waiting, Waiting)
        waiting.begin = fail
        held.end_all()
        assert (await broken.answer()).status == 500
        assert (await next_one.answer()).is_marked_done and users(house) == ["", "next"]


async def test_names_of_models_make_no_more_than_so_many_queues() -> None:
    async with open_house(max_upstream_requests=1, arena_bytes=32 << 20) as house:
        upstream = upstream_of(house, "script")
        upstream.models = ()
        count = MAX_QUEUES + 10
        held = Held(house, count + 1)
        await held.post()
        clients = [await post(house, chat(model=f"m{index}", user=str(index))) for index in range(count)]
        await until(lambda: room_of(house).waiting == count, "all wait")
        assert room_of(house).statistics()["queues"] == MAX_QUEUES + 1
        held.end_all()
        for client in clients:
            assert (await client.answer()).is_marked_done
        assert sorted(map(int, filter(None, users(house)))) == list(range(count))


async def test_many_are_sent_over_several_turns() -> None:
    count = MAX_STARTS + 20
    async with open_house(max_upstream_requests=1, arena_bytes=32 << 20) as house:
        held = Held(house, count + 1)
        await held.post()
        clients = await queue_up(house, [script() for _ in range(count)])
        room_of(house)._directory._bounding = room_of(house)._directory._bounding._replace(max_requests=1000)
        room_of(house).pump()
        assert room_of(house).waiting == count - MAX_STARTS
        await until(lambda: not room_of(house).waiting, "the rest")
        held.end_all()
        for client in clients:
            assert (await client.answer()).is_marked_done


async def test_reckoning_takes_a_share_of_the_loop_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_house(max_upstream_requests=1) as house:
        held = Held(house, 2)
        await held.post()
        (client,) = await queue_up(house, [script()])
        room = room_of(house)
        has_room = room._directory.has_room

        def slow(upstream: Upstream, wanted: Wanted) -> bool:
            house.clock.lose(0.01)
            return has_room(upstream, wanted)

        monkeypatch.setattr(room._directory, "has_room", slow)
        room.pump()
        began = house.clock.now()
        held.end(0)
        await until(lambda: not upstream_of(house, "script").in_flight, "the first has ended")
        for _ in range(10):
            await asyncio.sleep(0)
        assert (room.waiting, house.clock.now()) == (1, began), "it is not looked again at once"
        house.pass_time(REST_SHARE * 0.01)
        assert room.waiting == 0
        held.end_all()
        assert (await client.answer()).is_marked_done


# What an engine's load teaches.


def page(running: int, waiting: int, used: float, blocks: int = 1000) -> bytes:
    """An engine's metrics, as vLLM has them."""
    lines = [
        f'vllm:num_requests_running{{model_name="m"}} {running}',
        f'vllm:num_requests_waiting{{model_name="m"}} {waiting}',
        f'vllm:kv_cache_usage_perc{{model_name="m"}} {used}',
        f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",num_gpu_blocks="{blocks}"}} 1',
        'vllm:num_preemptions_total{model_name="m"} 0',
    ]
    return "\n".join(lines).encode() + b"\n"


def probe_of(house: TestHouse) -> LoadProbe:
    upstream = upstream_of(house, "script")
    upstream.kind = "vllm"
    probe = LoadProbe(upstream, house.gateway.settings)
    probe._kind = "vllm"
    return probe


async def test_a_saturated_engine_is_given_less_until_it_has_recovered() -> None:
    async with open_house(queue_deadline_s=600, commit_after_ms=0) as house:
        held = Held(house, 14)
        probe, upstream = probe_of(house), upstream_of(house, "script")
        await held.post(10)
        for _ in range(4):
            house.pass_time(1)
            assert probe.take(page(5, 5, 0.97))
        limit = upstream.occupancy.saturation.limit
        assert limit is not None and 2 <= limit <= 8 and upstream.occupancy.saturation.is_hot
        assert house.metric('longwire_engine_limit{engine="script"}') == limit
        await queue_up(house, [script(user="late") for _ in range(2)])
        for index in range(6):
            held.end(index)
        await until(lambda: upstream.in_flight <= 6, "some have ended")
        for _ in range(40):
            house.pass_time(1)
            probe.take(page(upstream.in_flight, 0, 0.5))
            await asyncio.sleep(0)
        await until(lambda: users(house).count("late") == 2, "there is room again")
        for _ in range(int(FORGET_S) + 20):
            house.pass_time(1)
            probe.take(page(0, 0, 0.1))
            held.end_all()
            await asyncio.sleep(0)
        assert upstream.occupancy.saturation.limit is None


async def test_what_prompts_and_answers_may_need_is_reserved_in_the_cache() -> None:
    async with open_house() as house:
        held = Held(house, 3)
        probe = probe_of(house)
        assert probe.take(page(0, 0, 0.0, blocks=110))  # 1672 of 1760 tokens
        first, second = [await post(house, script(max_tokens=700)) for _ in range(2)]
        await first.head()
        await second.head()
        (third,) = await queue_up(house, [script(max_tokens=700)])
        held.end(0)
        await until(lambda: len(house.engine.requests) == 3, "its reserve is free")
        held.end_all()
        for client in (first, second, third):
            assert (await (client.rest() if client.current else client.answer())).is_marked_done


async def test_a_request_that_is_larger_than_the_cache_is_for_the_engine_to_refuse() -> None:
    async with open_house() as house:
        held = Held(house, 1)
        assert probe_of(house).take(page(0, 0, 0.0, blocks=10))
        client = await post(house, script(max_tokens=100_000))
        await client.head()
        held.end_all()
        assert (await client.rest()).is_marked_done


@pytest.mark.parametrize("settings", [{"shed": False}, {"kv_reserve_percent": 0.0}])
async def test_where_the_operator_does_not_want_it_nothing_is_reserved(settings: dict[str, Any]) -> None:
    async with open_house(**settings) as house:
        held = Held(house, 3)
        assert probe_of(house).take(page(0, 0, 0.0, blocks=10))
        clients = await held.post(3)
        held.end_all()
        for client in clients:
            await client.rest()


async def test_how_long_answers_are_is_learned_from_whole_ones() -> None:
    async with open_house(has_twin=True) as house:
        await house.ask(chat(tokens=5, max_tokens=10))
        await house.ask(chat(False, tokens=5))
        answers = upstream_of(house, "sim").occupancy.answers
        assert (answers.shares.seen, answers.shares.mean) == (1, 0.5)
        assert (answers.lengths.seen, answers.lengths.mean) == (1, 5.0)
        house.sim.fail_next("reset_after=3")
        upstream_of(house, "twin").is_up = False
        await house.ask(chat(tokens=5, max_tokens=10))
        assert upstream_of(house, "sim").occupancy.answers.shares.seen == 1, "a part tells nothing"


@pytest.mark.parametrize("told", ["-1", "true", "1e9", '"many"', "9" * 400, "{}"])
async def test_lengths_that_are_none_teach_nothing(told: str) -> None:
    async with open_house() as house:
        usage = b'{"choices":[{"message":{}}],"usage":{"prompt_tokens":%b,"completion_tokens":%b}}'
        body = usage % (told.encode(), told.encode())
        house.engine.will_say(head_of(b"content-length: %d" % len(body), kind=b"application/json") + body)
        assert (await house.ask(script(stream=False))).status == 200
        answers = upstream_of(house, "script").occupancy.answers
        assert answers.lengths.seen == 0


@pytest.mark.parametrize("tells_usage", [True, False])
async def test_only_what_has_no_bound_is_clamped_and_told_so(tells_usage: bool) -> None:
    async with open_house(clamp_answers=True, commit_after_ms=0) as house:
        probe, upstream = probe_of(house), upstream_of(house, "script")
        held = Held(house, 6)
        for _ in range(2):
            await held.post()
        for _ in range(4):
            house.pass_time(1)
            probe.take(page(1, 8, 0.97))
        assert upstream.occupancy.saturation.is_hot
        held.end(0)
        held.end(1)
        await until(lambda: not upstream.in_flight, "there is room")
        options = {"stream_options": {"include_usage": True}} if tells_usage else {}
        for fields, told in (({}, "1024"), ({"max_tokens": 9000}, None)):
            client = await post(house, script(**fields, **options))
            answer = await client.head()
            assert answer.head.get(b"longwire-max-tokens") == (told.encode() if told else None)
            sent = json.loads(house.engine.requests[-1][1])
            assert sent["max_tokens"] == int(told or 9000) >= LEAST_CLAMP_TOKENS
            held.end_all()
            await client.rest()
            await until(lambda: not upstream.in_flight, "it is over")
        assert house.metric("longwire_answers_clamped_total") == 1


# What clients are told of their limits.


async def test_clients_see_what_is_left_of_their_limits() -> None:
    async with open_house(tenants=[ADA, BOB]) as house:
        first = await house.ask(chat(max_tokens=100), as_("bob"))
        assert first.header("x-ratelimit-limit-requests") == "100"
        assert first.header("x-ratelimit-remaining-requests") == "99"
        assert int(first.header("x-ratelimit-remaining-tokens")) < 50_000
        refused = await house.ask(chat(max_tokens=60_000), as_("bob"))
        assert refused.status == 400 and refused.header("x-ratelimit-limit-tokens") == "50000"
        assert (await house.ask(chat(), as_("ada"))).head.get(b"x-ratelimit-limit-requests") is None


async def test_an_engine_s_own_limits_are_not_taken_for_ours() -> None:
    async with open_house(tenants=[BOB, ADA]) as house:
        head = head_of(b"content-length: 2", b"x-ratelimit-limit-requests: 7", kind=b"application/json")
        for tenant, told in (("bob", [b"100"]), ("ada", [b"7"])):
            house.engine.will_say(head + b"{}")
            answer = await house.ask(script(stream=False), as_(tenant))
            assert [value for name, value in answer.head.headers if name == b"x-ratelimit-limit-requests"] == told


# The queue by itself.


async def test_what_may_not_wait_leaves_the_room_as_it_was() -> None:
    async with open_house(max_upstream_requests=1, max_queued_per_tenant=0) as house:
        await Held(house, 1).post()
        room = room_of(house)
        with pytest.raises(TooManyWaiting):
            room.check("anonymous")
        with pytest.raises(LongwireError):
            room.push(house.streams[0], lambda _: None)
        assert room.statistics() == {"waiting": 0, "queues": 0, "tenants": 0}


# Processes that die meanwhile.


class Crowded(Trial):
    """An engine that is given two requests at once."""

    def __init__(self) -> None:
        super().__init__(max_upstream_requests=2, queue_deadline_s=60)


async def round_trip(seed: int, kills: int) -> None:
    rng = random.Random(seed)
    async with Crowded() as trial:
        clients = [AdoptedClient(i, trial.port, slow=i % 3 == 0) for i in range(STREAMS)]
        tasks = [asyncio.create_task(each.run(request_of(i, 100 + 10 * i))) for i, each in enumerate(clients)]
        await until(lambda: trial.rooms.generations.waiting.waiting, "somebody waits")
        for _ in range(kills):
            for _ in range(rng.randrange(1, 40)):
                await asyncio.sleep(0.0005)
            await trial.kill()
            held = trial.rooms.directory.upstreams[0].occupancy.statistics()
            assert held["weight"] <= 2, "no more than fit are sent by whoever takes over"
        responses = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        streams: list[Stream] = list(trial.rooms.registry.list(None))
        assert sorted(map(body_of, responses)) == sorted(map(whole_body, streams))
        for index, response in enumerate(responses):
            assert text_of(body_of(response)) == answer_text(index, 100 + 10 * index)
        assert all(stream.reason == "completed" for stream in streams) and len(trial.sim.requests) == STREAMS
        assert trial.rooms.generations.waiting.waiting == 0


@pytest.mark.parametrize("seed", range(6))
def test_those_who_wait_survive_their_process(seed: int) -> None:
    uvloop.run(round_trip(seed, 5))


async def adopt_full() -> None:
    """More wait than the heir may let wait: they were let in, so they are sent."""
    async with Crowded() as trial, asyncio.timeout(20):
        clients = [AdoptedClient(i, trial.port, slow=False) for i in range(STREAMS)]
        tasks = [asyncio.create_task(each.run(request_of(i, 500))) for i, each in enumerate(clients)]
        await until(lambda: trial.rooms.generations.waiting.waiting == STREAMS - 2, "four of six wait")
        fewer: Settings = trial.rooms.settings
        trial.rooms.settings = type(fewer)(**{**_fields(fewer), "max_queued": 1})
        await trial.kill()
        assert trial.rooms.generations.waiting.waiting == 1
        for response in await asyncio.gather(*tasks):
            assert b'"error"' not in response


def _fields(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def test_where_too_many_wait_those_who_were_let_in_are_sent() -> None:
    uvloop.run(adopt_full())
