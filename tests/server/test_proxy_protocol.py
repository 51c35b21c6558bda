"""PROXY headers and X-Forwarded-For over real sockets: who is believed, and what happens to everybody else."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.house import (
    CHAT,
    CHUNKED,
    WHOLE,
    TestHouse,
    chat,
    delta,
    encode_request,
    hashed,
    in_chunks,
    open_house,
    until,
)

from longwire.server.record import Phase
from longwire.words.settings import TenantSettings

V2 = b"\r\n\r\n\x00\r\nQUIT\n"
CLIENT_V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"
CLIENT_V2 = V2 + b"\x21\x11" + struct.pack(">H", 12) + bytes([192, 0, 2, 7, 198, 51, 100, 1, 0xDC, 0x04, 0x01, 0xBB])
LOCAL_V2 = V2 + b"\x20\x00\x00\x00"
ASK = encode_request("POST", CHAT, chat())
TENANT = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])


@asynccontextmanager
async def behind_a_balancer(*, trusted: str = "127.0.0.1", **settings: Any) -> AsyncIterator[TestHouse]:
    async with open_house(proxy_protocol=True, trusted_proxies=[trusted], **settings) as house:
        yield house


@pytest.fixture
def strangers(caplog: pytest.LogCaptureFixture) -> Any:
    """The addresses of those who were refused, as they were logged."""
    return lambda: [r.fields["client"] for r in caplog.records if r.message == "unauthenticated"]


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (CLIENT_V1, "192.0.2.7"),
        (CLIENT_V2, "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (LOCAL_V2, "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("cut", ["whole", "byte by byte", "behind the header"])
async def test_a_balancer_s_header_names_the_client(header: bytes, client: str, cut: str, strangers: Any) -> None:
    async with behind_a_balancer(tenants=[TENANT]) as house:
        connection = await house.connect()
        data = header + ASK
        pieces = {
            "whole": [data],
            "byte by byte": [bytes([byte]) for byte in data],
            "behind the header": [header, ASK],
        }[cut]
        for piece in pieces:
            connection.send(piece)
            await asyncio.sleep(0)
        assert (await connection.answer()).status == 401
        assert strangers() == [client]
        connection.post(chat(), {"authorization": "Bearer sk-ada"})
        # The body of the refused one was not wanted: that connection is closed, as without a balancer.
        assert await connection.wait_closed_by_peer() == b""


async def test_requests_go_on_behind_the_header_and_no_second_one_is_read() -> None:
    async with behind_a_balancer() as house:
        client = await house.connect()
        client.send(CLIENT_V1 + ASK + ASK)
        assert (await client.answer()).is_marked_done
        assert (await client.answer()).is_marked_done
        client.send(CLIENT_V1 + ASK)
        refused = await client.answer()
        assert refused.status == 400 and not refused.head.keep_alive


async def test_what_came_with_the_header_is_kept_like_any_input() -> None:
    """It lies in the arena from its first byte, and what is sent ahead during an answer is joined to it."""
    async with behind_a_balancer() as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await house.connect()
        ahead = encode_request("GET", "/healthz")
        client.send(CLIENT_V2 + encode_request("POST", CHAT, chat(model="script")) + ahead + ahead[:9])
        await client.head()
        assert await client.piece() == delta("a")
        (connection,) = house.gateway.listener.connections
        assert connection.input_chain is not None
        assert connection.input_chain.end == connection.read_bytes - len(CLIENT_V2)
        client.send(ahead[9:])
        go_on.set()
        assert (await client.rest()).is_marked_done
        assert (await client.answer()).json == {"status": "ok"}
        assert (await client.answer()).json == {"status": "ok"}


@pytest.mark.parametrize(
    "bad",
    [
        b"GET /healthz HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
        b"PROXY TCP4 192.0.2.777 198.51.100.1 1 2\r\n",
        b"PROXY " + b"x" * 120,
        V2 + b"\x31\x11\x00\x0c" + bytes(12),
        V2 + b"\x21\x11\x00\x04" + bytes(4),
        V2 + b"\x21\x11\xff\xff",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_a_malformed_header_is_answered_and_closed(bad: bytes) -> None:
    async with behind_a_balancer() as house:
        client = await house.connect()
        client.send(bad + ASK)
        answer = await client.answer()
        assert answer.status == 400 and answer.error["code"] == "bad_http" and "PROXY" in answer.error["message"]
        assert not answer.head.keep_alive
        client.fin()
        assert await client.wait_closed_by_peer() == b""
        assert not house.sim.requests


@pytest.mark.parametrize("header", [CLIENT_V1, CLIENT_V2])
async def test_from_anyone_else_it_is_no_header_but_bad_http(header: bytes) -> None:
    async with behind_a_balancer(trusted="10.0.0.0/8") as house:
        client = await house.connect()
        client.send(header + ASK)
        answer = await client.answer()
        assert answer.status == 400 and not answer.head.keep_alive
        assert not house.sim.requests
        assert (await house.ask(chat())).is_marked_done, "and none is asked of them"


async def test_where_it_is_not_configured_nobody_may_send_one() -> None:
    async with open_house(trusted_proxies=["127.0.0.1"]) as house:
        client = await house.connect()
        client.send(CLIENT_V1 + ASK)
        assert (await client.answer()).status == 400


@pytest.mark.parametrize("start", [b"", CLIENT_V1[:10], CLIENT_V2[:14], CLIENT_V1])
async def test_a_header_that_does_not_come_is_not_waited_for(start: bytes) -> None:
    async with behind_a_balancer(head_timeout_s=10) as house:
        client = await house.connect()
        client.send(start)
        await client_is_there(house, len(start))
        house.pass_time(5)
        assert house.gateway.listener.connections
        house.pass_time(20)
        assert await client.wait_closed_by_peer() == b"", "who says nothing is told nothing"


async def client_is_there(house: TestHouse, read_bytes: int) -> None:
    def has_read() -> bool:
        return any(c.read_bytes == read_bytes and c.phase == Phase.IDLE for c in house.gateway.listener.connections)

    await until(has_read, "the gateway has read what was sent")


# X-Forwarded-For.


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ([], "192.0.2.9", "127.0.0.1"),
        (["10.0.0.0/8"], "192.0.2.9", "127.0.0.1"),
        (["127.0.0.0/8"], "192.0.2.9", "192.0.2.9"),
        (["127.0.0.0/8"], "203.0.113.1, 192.0.2.9", "192.0.2.9"),
        (["127.0.0.0/8", "192.0.2.0/24"], "203.0.113.1, 192.0.2.9", "203.0.113.1"),
        (["127.0.0.0/8"], "203.0.113.1, nobody", "127.0.0.1"),
        (["127.0.0.0/8"], "", "127.0.0.1"),
    ],
)
async def test_a_forwarded_address_is_believed_of_trusted_proxies_only(
    trusted: list[str], forwarded: str, client: str, strangers: Any
) -> None:
    async with open_house(tenants=[TENANT], trusted_proxies=trusted) as house:
        assert (await house.fetch("/v1/models", {"x-forwarded-for": forwarded})).status == 401
        assert strangers() == [client]


async def test_both_together_the_header_s_client_is_the_last_hop(strangers: Any) -> None:
    async with behind_a_balancer(tenants=[TENANT]) as house:
        ask = encode_request("GET", "/v1/models", None, {"x-forwarded-for": "203.0.113.1"})
        client = await house.connect()
        client.send(CLIENT_V1 + ask + ask)
        assert [(await client.answer()).status for _ in range(2)] == [401, 401]
        assert strangers() == ["192.0.2.7", "192.0.2.7"], "it is no proxy of ours, so what it says of others is nothing"
