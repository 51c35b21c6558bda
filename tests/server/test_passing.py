"""Connections that go to the shard of another slot at a request's boundary: nothing is lost, doubled or sent to and fro."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from pathlib import Path

import pytest
from tests.garbage import let_go
from tests.house import CHAT, EVENTS, Client, chat, encode_request, hashed, until
from tests.server.shards import Shards, open_shards, slots_of

from longwire.adopt import claim_rows
from longwire.keeper.channel import Channel
from longwire.server import passing
from longwire.server.accepting import PAUSE_S
from longwire.server.connection import ClientConnection
from longwire.server.listener import DEAF_S
from longwire.server.parcel import MAX_INLINE_BYTES
from longwire.server.passed import PassedConnection
from longwire.server.record import Phase
from longwire.sim.answer import answer_text
from longwire.streams.counters import bytes_read, bytes_written, take_reading
from longwire.streams.tables import unpack_connection
from longwire.words.settings import TenantSettings

ASK = encode_request("POST", CHAT, chat())


async def make_stream(gateway: Shards, slot: int, **fields: object) -> tuple[str, str]:
    """A whole stream on a slot's shard: its id, and its text."""
    client = await gateway.connect(slot)
    client.post(chat(**fields))
    answer = await client.answer()
    assert slots_of([answer.stream_id]) == [slot]
    client.close()
    return answer.stream_id, answer.text


def connections_of(gateway: Shards) -> list[int]:
    return [len(shard.listener.connections) for shard in gateway.shards]


async def read(client: Client, stream_id: str, after: str = "") -> bytes:
    client.get(f"/v1/streams/{stream_id}" + (f"?after={after}" if after else ""), EVENTS)
    answer = await client.answer()
    assert answer.status == 200 and answer.is_whole and answer.stream_id == stream_id
    return answer.body


async def test_a_stream_is_read_over_a_connection_that_another_shard_accepted() -> None:
    async with open_shards() as gateway:
        stream_id, text = await make_stream(gateway, 0)
        at_owner, elsewhere = await gateway.connect(0), await gateway.connect(1)
        direct = await read(at_owner, stream_id)
        assert await read(elsewhere, stream_id) == direct
        assert await read(elsewhere, stream_id, "1-2") == await read(at_owner, stream_id, "1-2")
        await until(lambda: connections_of(gateway) == [2, 0], "the connection is the owner's")
        assert gateway[1].neighbours.statistics()["passed"] == 1
        elsewhere.get(f"/v1/streams/{stream_id}")
        assert (await elsewhere.answer()).json["id"] == stream_id
        elsewhere.request("DELETE", f"/v1/streams/{stream_id}")
        assert (await elsewhere.answer()).status == 200
        elsewhere.post(chat())
        assert (await elsewhere.answer()).text == text, "any other request goes on where the connection is"


async def test_a_live_stream_is_followed_from_the_other_shard() -> None:
    async with open_shards(sim={"tokens": 40, "itl_ms": 1}) as gateway:
        first, other = await gateway.connect(0), await gateway.connect(1)
        first.post(chat())
        stream_id = (await first.head()).stream_id
        body = await read(other, stream_id)
        await first.rest()
        assert body == await read(await gateway.connect(0), stream_id)


async def test_what_is_pipelined_goes_along_in_order() -> None:
    async with open_shards() as gateway:
        one, _ = await make_stream(gateway, 0)
        two, _ = await make_stream(gateway, 1)
        client = await gateway.connect(0)
        wanted = [two, one, one, two, two, one]
        client.send(b"".join(encode_request("GET", f"/v1/streams/{each}", headers=EVENTS) for each in wanted))
        assert [(await client.answer()).stream_id for _ in wanted] == wanted
        passed = [shard.neighbours.statistics()["passed"] for shard in gateway.shards]
        assert passed == [2, 2], "at each change of owner, and at no other time"


@pytest.mark.parametrize("cut", [1, 40, len(ASK) - 30, len(ASK) - 1])
@pytest.mark.parametrize("size", [10, 3 * MAX_INLINE_BYTES, 200_000])
async def test_a_request_is_passed_on_before_its_body_is_there(cut: int, size: int) -> None:
    tenant = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
    async with open_shards(tenants=[tenant]) as gateway:
        gateway.homes["ada"] = 1
        client = await gateway.connect(0)
        body = json.dumps(chat(user="x" * size)).encode()
        request = encode_request("POST", CHAT, body, {"authorization": "Bearer sk-ada"})
        client.send(request[:cut])
        await asyncio.sleep(0)
        client.send(request[cut : cut + 100])
        await asyncio.sleep(0)
        client.send(request[cut + 100 :] + request)
        for _ in range(2):
            answer = await client.answer()
            assert answer.status == 200 and answer.is_marked_done and slots_of([answer.stream_id]) == [1]


async def test_the_receiving_shard_says_that_the_body_is_wanted() -> None:
    tenant = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
    async with open_shards(tenants=[tenant]) as gateway:
        gateway.homes["ada"] = 1
        client = await gateway.connect(0)
        body = json.dumps(chat()).encode()
        fields = {"authorization": "Bearer sk-ada", "expect": "100-continue"}
        request = encode_request("POST", CHAT, body, fields)
        client.send(request[: -len(body)])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert connections_of(gateway) == [0, 1]
        client.send(body)
        assert (await client.answer()).is_marked_done


async def test_two_tenants_with_different_homes_share_a_connection() -> None:
    tenants = [TenantSettings(name=name, key_hashes=[hashed(f"sk-{name}")]) for name in ("ada", "bob", "eve")]
    async with open_shards(3, tenants=tenants) as gateway:
        gateway.homes |= {"ada": 1, "bob": 2}
        client = await gateway.connect(0)
        served = []
        for name in ["eve", "ada", "bob", "ada", "ada", "bob", "eve"]:
            client.post(chat(), {"authorization": f"Bearer sk-{name}"})
            served += slots_of([(await client.answer()).stream_id])
        assert served == [0, 1, 2, 1, 1, 2, 2], "who has no home stays where the connection is"
        refused = await gateway.connect(0)
        refused.post(chat(), {"authorization": "Bearer sk-nobody"})
        assert (await refused.answer()).status == 401
        assert not any(gateway.live_streams(slot, name) for slot in range(3) for name in ("ada", "bob", "eve"))


async def test_one_key_starts_one_stream_wherever_it_comes() -> None:
    async with open_shards(3) as gateway:
        for number in range(6):
            clients = [await gateway.connect(slot) for slot in range(3)]
            for client in clients:
                client.post(chat(), {"idempotency-key": f"key-{number}"})
            answers = [await client.answer() for client in clients]
            assert len({answer.stream_id for answer in answers}) == 1
            assert len({answer.body for answer in answers}) == 1
        assert len(gateway.sim.requests) == 6
        kept = {shard.memory.place.slot for shard in gateway.shards if list(shard.registry.list(None))}
        assert len(kept) > 1, "keys are spread"


async def test_shards_that_disagree_do_not_send_a_request_in_circles() -> None:
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        gateway[0].handlers.owner_of = lambda pending: 1  # type: ignore[method-assign]
        client = await gateway.connect(1)
        assert await read(client, stream_id)
        assert [shard.neighbours.statistics()["passed"] for shard in gateway.shards] == [0, 1]


async def test_a_stream_of_no_slot_is_unknown_here() -> None:
    async with open_shards() as gateway:
        client = await gateway.connect(0)
        for name in ("lw_" + "00" * 16 + "02", "lw_" + "00" * 16 + "ff", "lw_00"):
            client.get(f"/v1/streams/{name}")
            assert (await client.answer()).status == 404
        assert gateway[0].neighbours.statistics()["passed"] == 0


async def test_the_last_response_goes_out_before_the_connection_does() -> None:
    """The end of a response that this process still holds would be lost with the transport."""
    async with open_shards(sim={"tokens": 4000}, send_buffer=4096, write_high_water_bytes=1 << 24) as gateway:
        mine, text = await make_stream(gateway, 1)
        other, _ = await make_stream(gateway, 0, tokens=3)
        client = await gateway.connect(1, limit=4096, receive_buffer=4096)
        requests = [encode_request("GET", f"/v1/streams/{each}", headers=EVENTS) for each in (mine, other)]
        client.send(b"".join(requests))
        await until(lambda: connections_of(gateway) == [0, 1], "it waits for the client to read")
        assert (await client.answer()).text == text
        assert (await client.answer()).stream_id == other
        await until(lambda: connections_of(gateway) == [1, 0], "it went there then")


# Room.


def fill(inbox: Channel) -> int:
    """Send until nothing fits any more: messages that mean nothing."""
    for count in range(10_000):
        try:
            inbox.send({"kind": "nothing", "filling": "x" * 8000})
        except BlockingIOError:
            return count
    raise AssertionError("it is never full")


async def test_a_full_inbox_is_waited_for() -> None:
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        gateway[0].neighbours.stop()
        assert fill(gateway.inboxes[0][1])
        clients = [await gateway.connect(1) for _ in range(5)]
        for client in clients:
            client.get(f"/v1/streams/{stream_id}", EVENTS)
        await until(lambda: gateway[1].neighbours.statistics()["waiting"] == 5, "all wait")
        rows = [gateway[1].memory.connections.read(row) for row in range(64)]
        assert [unpack_connection(row).phase for row in rows if row] == [Phase.PASSING] * 5
        clients[4].close()
        await clients[4].writer.wait_closed()
        gateway.clock.advance(2 * DEAF_S)
        await until(lambda: gateway[1].neighbours.statistics()["waiting"] == 4, "one has left")
        gateway[0].neighbours.start()
        assert {(await client.answer()).stream_id for client in clients[:4]} == {stream_id}


@pytest.mark.parametrize("is_event_read", [True, False])
async def test_who_waits_too_long_is_told_so(is_event_read: bool) -> None:
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        gateway[0].neighbours.stop()
        fill(gateway.inboxes[0][1])
        client = await gateway.connect(1)
        client.get(f"/v1/streams/{stream_id}", EVENTS if is_event_read else None)
        await until(lambda: gateway[1].neighbours.statistics()["waiting"], "it waits")
        gateway.clock.advance(passing.PASSING_S + 2)
        answer = await client.answer()
        if is_event_read:
            assert answer.status == 200 and answer.body.startswith(b"retry: ")
        else:
            assert answer.status == 503 and answer.header("retry-after") == "1"
        assert await client.wait_closed_by_peer() == b""
        gateway[0].neighbours.start()


async def test_more_than_may_wait_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "MAX_WAITING", 1)
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        gateway[0].neighbours.stop()
        fill(gateway.inboxes[0][1])
        waits, refused = await gateway.connect(1), await gateway.connect(1)
        waits.get(f"/v1/streams/{stream_id}")
        await until(lambda: gateway[1].neighbours.statistics()["waiting"], "one waits")
        refused.get(f"/v1/streams/{stream_id}")
        assert (await refused.answer()).status == 503
        gateway[0].neighbours.start()
        assert (await waits.answer()).status == 200


# What must not be believed.


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("what", ["empty", "kind", "fields", "length", "unsealed", "no socket", "listener", "file"])
async def test_a_malformed_message_is_dropped_with_its_descriptors(what: str) -> None:
    async with open_shards() as gateway:
        inbox = gateway.inboxes[0][1]
        one, other = socket.socketpair()
        tcp = socket.create_server(("127.0.0.1", 0))
        whole = {"kind": "connection", "for": 0, "serial": 1, "peer": "::1", "read_base": 0, "written": 0, "bytes": 3}
        memfd = os.memfd_create("unsealed")
        os.write(memfd, b"GET")
        let_go()
        descriptors = count_descriptors()
        with one, tcp:
            match what:
                case "empty":
                    inbox.send({}, [one.fileno()])
                case "kind":
                    inbox.send({"kind": ["connection"]}, [one.fileno()])
                case "fields":
                    inbox.send({**whole, "data": "GET", "serial": -1}, [tcp.fileno()])
                case "length":
                    inbox.send({**whole, "data": "GETT"}, [tcp.fileno()])
                case "unsealed":
                    inbox.send(whole, [tcp.fileno(), memfd])
                case "no socket":
                    inbox.send({**whole, "data": "GET"})
                case "listener":
                    inbox.send({"kind": "operator"}, [tcp.fileno()])
                case "file":
                    inbox.send({"kind": "operator"}, [memfd])
            stream_id, _ = await make_stream(gateway, 0)
            assert await read(await gateway.connect(1), stream_id), "what comes behind it is taken"
            gateway.clients.pop().close()
            await until(lambda: not gateway[0].listener.connections, "all have left")
            for upstream in gateway[0].directory.upstreams:
                upstream.close()
            await until(lambda: count_descriptors() <= descriptors, "its descriptors are closed")
        other.close()
        os.close(memfd)


@pytest.mark.parametrize("turns", range(12))
async def test_a_client_that_leaves_while_it_is_passed_is_seen_off(turns: int) -> None:
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        client = await gateway.connect(1)
        client.get(f"/v1/streams/{stream_id}", {"accept": EVENTS})
        for _ in range(turns):
            await asyncio.sleep(0)
        client.writer.write_eof()
        gateway.clients[0].close()
        await until(lambda: not any(shard.listener.connections for shard in gateway.shards), "all have left")


async def test_a_connection_that_finds_no_descriptor_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        inbox = gateway[0].neighbours._inbox
        peek, failures = inbox.peek, [OSError(errno.EMFILE, "too many") for _ in range(2)]

        def full() -> object:
            if failures:
                raise failures.pop()
            return peek()

        monkeypatch.setattr(type(inbox), "peek", lambda self: full() if self is inbox else None)
        client = await gateway.connect(1)
        asked = asyncio.create_task(read(client, stream_id))
        for left in (1, 0):
            await until(lambda left=left: len(failures) == left, "it was tried")
            gateway[0].clock.advance(PAUSE_S)
        assert await asked


# Being killed.


def row_of(gateway: Shards, slot: int) -> tuple[PassedConnection, object]:
    (connection,) = gateway[slot].listener.connections
    assert isinstance(connection, PassedConnection)
    rows = [gateway[slot].memory.connections.read(row) for row in range(64)]
    (row,) = [unpack_connection(row) for row in rows if row]
    return connection, row


async def test_the_row_of_a_passed_connection_agrees_with_the_kernel_and_can_be_adopted() -> None:
    tenant = TenantSettings(name="ada", key_hashes=[hashed("sk-ada")])
    async with open_shards(tenants=[tenant], sim={"tokens": 60, "itl_ms": 1}) as gateway:
        client = await gateway.connect(0)
        fields = {"authorization": "Bearer sk-ada", "longwire-on-disconnect": "run"}
        client.post(chat(tokens=9), fields)
        assert (await client.answer()).text == answer_text(3, 9)
        gateway.homes["ada"] = 1
        request = encode_request("POST", CHAT, chat(), fields)
        client.send(request[:-20])
        await until(lambda: connections_of(gateway) == [0, 1], "it is passed")
        connection, row = row_of(gateway, 1)
        await until(lambda: connection.phase == Phase.BODY, "its head is read")
        reading = take_reading(connection.transport.get_extra_info("socket"))
        assert connection.read_bytes == bytes_read(reading)
        assert connection.written_bytes == bytes_written(reading, connected=False)
        assert row.read_base + len(request) - 20 == bytes_read(reading)  # type: ignore[attr-defined]
        await gateway.replace(1)  # in mid-request
        client.send(request[-20:])
        await client.head()
        await client.event()
        await gateway.replace(1)  # in mid-answer
        answer = await client.rest()
        assert answer.is_marked_done and answer.text == answer_text(3, 60)
        assert len(gateway.sim.requests) == 2
        client.post(chat(tokens=9), fields)
        assert (await client.answer()).text == answer_text(3, 9)


async def test_a_second_message_of_one_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender was killed after it had sent it and before its row said so: the adopter of the row sends it again."""
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        client = await gateway.connect(1)
        with monkeypatch.context() as patched:
            patched.setattr(ClientConnection, "let_go", lambda self: None)  # killed here
            client.get(f"/v1/streams/{stream_id}", EVENTS)
            answer = await client.answer()
        table = gateway[1].memory.connections
        ((index, row),) = [(i, unpack_connection(p)) for i in range(64) if (p := table.read(i))]
        assert row.phase == Phase.PASSING and row.head == b"127.0.0.1"
        (sock,) = gateway[1].die().values()
        heir = gateway.make(gateway[1].memory)
        heir.neighbours.start()
        claim_rows(heir.memory)
        heir.neighbours.pass_again(index, row, sock)
        assert sock.fileno() == -1 and table.read(index) is None
        client.get(f"/v1/streams/{stream_id}", EVENTS)
        assert (await client.answer()).body == answer.body
        assert gateway[0].neighbours.statistics()["received"] == 1
        gateway.shards[1] = heir


async def test_an_adopter_passes_on_what_had_not_been_sent() -> None:
    async with open_shards() as gateway:
        stream_id, _ = await make_stream(gateway, 0)
        gateway[0].neighbours.stop()
        fill(gateway.inboxes[0][1])
        client = await gateway.connect(1)
        client.get(f"/v1/streams/{stream_id}", EVENTS)
        await until(lambda: gateway[1].neighbours.statistics()["waiting"], "it waits")
        table = gateway[1].memory.connections
        ((index, row),) = [(i, unpack_connection(p)) for i in range(64) if (p := table.read(i))]
        (sock,) = gateway[1].die().values()
        heir = gateway.make(gateway[1].memory)
        heir.neighbours.start()
        claim_rows(heir.memory)
        heir.neighbours.pass_again(index, row, sock)
        assert heir.neighbours.statistics()["waiting"] == 1
        gateway[0].neighbours.start()
        assert (await client.answer()).stream_id == stream_id
        gateway.shards[1] = heir
