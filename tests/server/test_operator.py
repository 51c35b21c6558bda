"""The operator's connection: what it may do, and that nothing but a message in the inbox makes one."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from tests.house import CHAT, EVENTS, Client, chat, hashed, until
from tests.server.shards import Shards, open_shards, slots_of

from longwire.words.reasons import CloseReason
from longwire.words.settings import TenantSettings

TENANTS = [TenantSettings(name=name, key_hashes=[hashed(f"sk-{name}")]) for name in ("ada", "bob")]


async def operator(gateway: Shards, slot: int) -> Client:
    """As the admin process makes one."""
    ours, theirs = socket.socketpair()
    gateway.inboxes[slot][1].send({"kind": "operator"}, [theirs.fileno()])
    theirs.close()
    client = Client(*await asyncio.open_unix_connection(sock=ours, limit=1 << 22))
    gateway.clients.append(client)
    return client


async def ask(gateway: Shards, name: str, **fields: Any) -> Client:
    client = await gateway.connect(0)
    client.post(chat(**fields), {"authorization": f"Bearer sk-{name}", "longwire-on-disconnect": "run"})
    await client.head()
    return client


async def test_it_sees_and_follows_and_cancels_everybody_s_streams() -> None:
    async with open_shards(tenants=TENANTS, sim={"tokens": 30, "itl_ms": 1}) as gateway:
        clients = [await ask(gateway, name) for name in ("ada", "bob")]
        ids = [client.current.stream_id for client in clients if client.current]
        assert slots_of(ids) == [0, 0]
        admin = await operator(gateway, 0)
        admin.get("/v1/streams")
        assert [each["tenant"] for each in (await admin.answer()).json["data"]] == ["ada", "bob"]
        admin.request("DELETE", f"/v1/streams/{ids[1]}")
        assert (await admin.answer()).json["close_reason"] == "cancelled"
        admin.get(f"/v1/streams/{ids[0]}", EVENTS)
        tail = await admin.answer()
        assert tail.is_marked_done and b"id: 1-0\n" in tail.body
        assert (await clients[0].rest()).text == tail.text
        admin.get(f"/v1/streams/{ids[0]}", {"accept": "application/json", "last-event-id": "1-3"})
        assert (await admin.answer()).json["status"] == "ended"
        assert gateway[0].instruments.resumes_total == 0
        admin.get("/v1/streams/lw_" + "00" * 17)
        assert (await admin.answer()).status == 404


async def test_it_does_nothing_else_in_anybody_s_name() -> None:
    async with open_shards(tenants=TENANTS) as gateway:
        admin = await operator(gateway, 1)
        for method, path, status in [
            ("GET", "/v1/models", 404),
            ("GET", "/healthz", 404),
            ("OPTIONS", "/v1/streams", 404),
            ("POST", "/v1/streams", 405),
            ("GET", "/nothing", 404),
        ]:
            admin.request(method, path)
            assert (await admin.answer()).status == status, path
        admin.post(chat(), path=CHAT)
        assert (await admin.answer()).status == 404
        assert not gateway.sim.requests


async def test_it_counts_for_no_limit_and_has_no_row() -> None:
    async with open_shards(tenants=TENANTS, max_connections=1) as gateway:
        admins = [await operator(gateway, 0) for _ in range(3)]
        for admin in admins:
            admin.get("/v1/streams")
            assert (await admin.answer()).status == 200
        assert gateway[0].listener.statistics() == {"connections": 0, "operator": 3}
        assert gateway[0].memory.connections.rows_used == 0
        client = await ask(gateway, "ada")
        assert (await client.rest()).status == 200
        for admin in admins:
            admin.close()
        await until(lambda: not gateway[0].listener.operators, "they have left")


async def test_a_silent_stream_s_tail_is_not_cut() -> None:
    async with open_shards(
        tenants=TENANTS,
        sim={"tokens": 3, "ttft_ms": 0},
        keep_alive_s=1,
        head_timeout_s=1,
        token_silence_s=0,
    ) as gateway:
        client = await ask(gateway, "ada", fault="stall_after=2")
        assert client.current is not None
        admin = await operator(gateway, 0)
        admin.get(f"/v1/streams/{client.current.stream_id}", EVENTS)
        await admin.head()
        gateway.clock.advance(3600)
        await asyncio.sleep(0)
        stream = gateway[0].registry.find(client.current.stream_id, None)
        assert len(stream.subscribers) == 2
        stream.stop(CloseReason.CANCELLED, "")
        assert (await admin.rest()).is_whole


@pytest.mark.parametrize(
    "fields", [{}, {"kind": "operator"}, {"x-operator": "1"}, {"authorization": "Bearer operator"}]
)
async def test_no_client_becomes_one(fields: dict[str, str]) -> None:
    async with open_shards(tenants=TENANTS) as gateway:
        client = await ask(gateway, "ada")
        stream_id = (await client.rest()).stream_id
        stranger = await gateway.connect(1)
        for method, path in [
            ("GET", f"/v1/streams/{stream_id}"),
            ("DELETE", f"/v1/streams/{stream_id}"),
            ("GET", "/v1/streams"),
        ]:
            stranger.request(method, path, None, fields)
            assert (await stranger.answer()).status == 401
        stranger.get(f"/v1/streams/{stream_id}", {"authorization": "Bearer sk-bob"})
        assert (await stranger.answer()).status == 404


async def test_one_that_sends_far_ahead_is_cut() -> None:
    async with open_shards(tenants=TENANTS, sim={"tokens": 3}) as gateway:
        client = await ask(gateway, "ada", fault="stall_after=2")
        assert client.current is not None
        admin = await operator(gateway, 0)
        admin.get(f"/v1/streams/{client.current.stream_id}", EVENTS)
        await admin.head()
        admin.send(b"GET /v1/streams HTTP/1.1\r\nhost: a\r\n\r\n" * 1000)
        await admin.wait_closed_by_peer()
        await until(lambda: not gateway[0].listener.operators, "it is gone")
