"""A gateway that stops: who is told what, what still ends well, and that nothing is left when it has stopped."""

from __future__ import annotations

import asyncio

import pytest
from tests.house import CHAT, CHUNKED, EVENTS, HOLD, WHOLE, Client, TestHouse, chat, delta, in_chunks, open_house, until

from longwire import lifecycle

NOBODY = "lw_" + "0" * 34


@pytest.fixture(autouse=True)
def _short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FAREWELL_S", 0.005)


async def begun(house: TestHouse, gate: asyncio.Event | None, **headers: str) -> Client:
    """A reader that has the first event of a stream that goes on when the gate opens, or never."""
    rest = (gate, in_chunks(*WHOLE[1:])) if gate is not None else (HOLD,)
    house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), *rest)
    client = await house.connect()
    client.post(chat(model="script"), headers)
    await client.head()
    await client.event()
    return client


async def test_what_runs_is_finished_and_everybody_else_is_told() -> None:
    async with open_house(drain_s=20) as house:
        go_on = asyncio.Event()
        reader = await begun(house, go_on)
        assert reader.current is not None
        stream_id = reader.current.stream_id
        others = [await house.connect() for _ in range(5)]
        for other in others:
            other.get("/healthz")
            await other.answer()
        closing = asyncio.ensure_future(house.gateway.close())
        await until(lambda: house.gateway.gateway.is_draining, "it drains")

        others[0].get("/readyz")
        ready = await others[0].answer()
        assert ready.status == 503 and ready.json["reason"] == "draining"
        for path in (CHAT, "/v1/completions", "/v1/embeddings"):
            others[0].post(chat(), path=path)
            refused = await others[0].answer()
            assert refused.status == 503 and int(refused.header("retry-after")) >= 1
            assert refused.error["code"] == "overloaded"
        for other, id in ((others[1], stream_id), (others[2], NOBODY)):
            other.get(f"/v1/streams/{id}", EVENTS)
            answer = await other.answer()
            assert answer.status == 200 and answer.body.startswith(b"retry: ") and not answer.head.keep_alive
            assert answer.header("content-type").startswith("text/event-stream")
            assert await other.wait_closed_by_peer() == b""
        others[3].get(f"/v1/streams/{stream_id}", {"accept": "application/json"})
        assert (await others[3].answer()).json["status"] == "live"
        others[3].request("DELETE", f"/v1/streams/{NOBODY}")
        assert (await others[3].answer()).status == 404
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", house.port)

        assert not closing.done()
        go_on.set()
        answer = await reader.rest()
        assert answer.text == "ab" and answer.is_marked_done and answer.in_band_error is None
        await closing
        assert await others[4].wait_closed_by_peer() == b""


async def test_an_idempotent_repeat_finds_what_runs_even_now() -> None:
    async with open_house(drain_s=20) as house:
        go_on = asyncio.Event()
        reader = await begun(house, go_on, **{"idempotency-key": "k"})
        second = await house.connect()
        second.get("/healthz")
        await second.answer()
        closing = asyncio.ensure_future(house.gateway.close())
        await until(lambda: house.gateway.gateway.is_draining, "it drains")
        second.post(chat(model="script"), {"idempotency-key": "k"})
        await second.head()
        go_on.set()
        assert (await second.rest()).data == (await reader.rest()).data
        await closing


async def test_what_does_not_end_in_time_is_told_why() -> None:
    async with open_house(drain_s=0) as house:
        reader = await begun(house, None)
        house.engine.will_say(HOLD)
        silent = await house.connect()
        silent.post(chat(model="script"))
        house.engine.will_say(HOLD)
        whole = await house.connect()
        whole.post(chat(False, model="script"))
        await house.engine.wait_for(lambda: len(house.engine.requests) == 3)
        detached = await begun(house, None, **{"longwire-on-disconnect": "run"})
        detached.close()
        await until(lambda: any(not stream.subscribers for stream in house.streams), "it has left")
        await house.gateway.close()

        answer = await reader.rest()
        error = answer.in_band_error
        assert error is not None and error["code"] == "shutdown" and answer.is_whole and answer.is_marked_done
        assert error["last_seq"] == 0 and error["stream_id"] == answer.stream_id
        for client in (silent, whole):
            refused = await client.answer()
            assert refused.status == 503 and refused.error["code"] == "shutdown"
        assert [line["close_reason"] for line in await house.lines.wait(4)] == ["shutdown"] * 4
        await house.engine.wait_for(lambda: not house.engine.open_connections)


async def test_nothing_is_left_of_it() -> None:
    async with open_house(drain_s=0, arena_bytes=16 << 20) as house:
        before = asyncio.all_tasks()
        inside = house.gateway
        assert (await house.ask(chat(pad="x" * 400_000))).is_marked_done, "the other process has been started"
        reading = inside._executor._process
        assert reading is not None and reading.poll() is None
        await begun(house, None)
        inside._start_task(asyncio.sleep(3600))
        unread = await house.connect()
        unread.send(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n")
        await inside.close()
        await until(lambda: not inside.listener.connections, "every connection is closed")
        await house.engine.wait_for(lambda: not house.engine.open_connections)
        await until(lambda: asyncio.all_tasks() <= before, "every task is over")
        assert reading.poll() is not None
        assert all(not any(upstream.statistics().values()) for upstream in inside.directory.upstreams)


async def test_a_gateway_at_rest_stops_at_once() -> None:
    async with open_house(drain_s=3600) as house:
        await house.ask(chat())
        idle = await house.connect()
        await house.gateway.close()
        assert await idle.wait_closed_by_peer() == b""
