"""Bodies that are read in another process: nobody waits for them, nothing is changed in them, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from tests.house import CHAT, CHUNKED, WHOLE, Client, chat, delta, encode_request, in_chunks, open_house, until

from longwire.dialects.base import LARGE_BODY_BYTES

MIB = 1 << 20


class Gate(Executor):
    """The other process, reading when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, read: Any, /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: read(*args, **named)))
        return future

    def open(self) -> None:
        for future, read in self.waiting:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(read())
                except Exception as exc:  # noqa: BLE001 - an executor hands on whatever there was
                    future.set_exception(exc)
        self.waiting.clear()


async def test_twenty_mebibytes_come_to_the_engine_as_they_were_meant() -> None:
    async with open_house(arena_bytes=96 * MIB) as house:
        image = "data:image/png;base64," + "A/+9" * (5 * MIB)
        part = {"type": "image_url", "image_url": {"url": image}}
        body = chat(messages=[{"role": "user", "content": [part, {"type": "text", "text": "\u00e9\u2028\U0001f600"}]}])
        answer = await house.ask(json.dumps(body).encode())
        assert answer.is_marked_done
        sent = json.loads(house.sim.requests[-1].body)
        assert sent.pop("stream_options") == {"include_usage": True}
        assert sent == body


async def test_while_it_is_read_other_streams_go_on() -> None:
    async with open_house(arena_bytes=32 * MIB) as house:
        house.gateway.listener.handlers._executor = gate = Gate()
        order: list[str] = []
        steps = [asyncio.Event() for _ in range(5)]
        script: list[bytes | asyncio.Event] = [CHUNKED + in_chunks(delta("0"), last=False)]
        for number, step in enumerate(steps, 1):
            script += [step, in_chunks(delta(str(number)), last=False)]
        house.engine.will_say(*script, in_chunks(*WHOLE[2:]))
        reader = await house.connect()
        reader.post(chat(model="script"))
        await reader.head()
        await reader.event()
        large = await house.connect()
        large.post(chat(pad="x" * 4 * MIB))
        await until(lambda: gate.waiting, "the body has been handed over")
        for step in steps:
            step.set()
            order.append(json.loads(await reader.event())["choices"][0]["delta"]["content"])
        assert large.current is None and not house.sim.requests
        order.append("read")
        gate.open()
        assert (await large.answer()).is_marked_done
        order.append("answered")
        assert (await reader.rest()).text == "012345"
        assert order == ["1", "2", "3", "4", "5", "read", "answered"]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("body", [b'{"model":"sim","pad":"%b"', b'{"model":"sim","model":"sim","pad":"%b"}', b'["%b"]'])
async def test_bad_json_is_a_400_however_large(path: str, body: bytes) -> None:
    async with open_house(arena_bytes=16 * MIB) as house:
        client = await house.connect()
        client.post(body % (b"x" * LARGE_BODY_BYTES), path=path)
        answer = await client.answer()
        assert answer.status == 400 and answer.error["code"] == "bad_json"
        client.post(chat())
        assert (await client.answer()).is_marked_done, "the body was read to its end, so the connection goes on"


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.fin])
async def test_a_client_that_leaves_while_it_is_read_leaves_nothing(leave: Any) -> None:
    async with open_house(arena_bytes=16 * MIB) as house:
        house.gateway.listener.handlers._executor = gate = Gate()
        client = await house.connect()
        client.post(chat(pad="x" * MIB))
        await until(lambda: gate.waiting, "the body has been handed over")
        leave(client)
        connections = house.gateway.listener.connections
        await until(lambda: all(c._task is None for c in connections), "the gateway has seen it")
        gate.open()
        house.pass_time(5)
        await until(lambda: not connections, "and let go")
        assert not house.streams and not house.sim.requests


async def test_what_is_sent_ahead_while_it_is_read_waits_its_turn() -> None:
    async with open_house(arena_bytes=16 * MIB) as house:
        house.gateway.listener.handlers._executor = gate = Gate()
        client = await house.connect()
        client.send(encode_request("POST", CHAT, chat(pad="x" * MIB)) + encode_request("GET", "/healthz"))
        await until(lambda: gate.waiting, "the body has been handed over")
        gate.open()
        assert (await client.answer()).is_marked_done
        assert (await client.answer()).json == {"status": "ok"}


async def test_a_gateway_without_room_for_it_says_so_and_lives_on() -> None:
    async with open_house(arena_bytes=2 * MIB) as house:
        client = await house.connect()
        client.post(chat(pad="x" * 3 * MIB))
        answer = await client.answer()
        assert answer.status == 503 and answer.error["code"] == "overloaded"
        # Its connection lingers, so that it can read the answer. What it had sent is held no longer for that.
        assert house.gateway.listener.connections and not house.gateway.arena.statistics()["input"]
        assert (await house.ask(chat())).is_marked_done


# Beyond the limit.


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_length_beyond_the_limit_is_refused_before_a_byte_of_it(path: str) -> None:
    async with open_house(max_body_bytes=MIB) as house:
        client = await house.connect()
        fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {MIB + 1}\r\n"
        client.send(f"POST {path} HTTP/1.1\r\n{fields}expect: 100-continue\r\n\r\n".encode())
        answer = await client.answer()
        assert answer.status == 413 and answer.error["code"] == "body_too_large" and not answer.head.keep_alive


async def test_chunks_beyond_the_limit_are_refused_as_soon_as_they_are() -> None:
    async with open_house(max_body_bytes=MIB) as house:
        client = await house.connect()
        fields = "host: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(f"POST {CHAT} HTTP/1.1\r\n{fields}".encode())
        half = b"%x\r\n%b\r\n" % (MIB // 2, b"x" * (MIB // 2))
        client.send(half + half + b"1\r\n")
        answer = await client.answer()
        assert answer.status == 413 and not answer.head.keep_alive
        second = await house.connect()
        second.send(f"POST {CHAT} HTTP/1.1\r\n{fields}{MIB + 1:x}\r\n".encode())
        assert (await second.answer()).status == 413, "by the size that is announced"


async def test_a_body_of_just_the_limit_is_read() -> None:
    async with open_house(max_body_bytes=2048) as house:
        body = json.dumps(chat(pad="")).encode()
        assert (await house.ask(json.dumps(chat(pad="x" * (2048 - len(body)))).encode())).is_marked_done
        assert (await house.ask(json.dumps(chat(pad="x" * (2049 - len(body)))).encode())).status == 413
