"""Tenants over shards that die: counted exactly, limited, and kept apart whatever is tried at the seams between processes."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest
from tests.house import Client, encode_request

from longwire.admission.tenants import hash_key

from .luck import CHAT, Gateway, ask, check_all, kill, resume_request, running

pytestmark = pytest.mark.e2e

ANNA, BORA = {"authorization": "Bearer anna-key-0123456789"}, {"authorization": "Bearer bora-key-0123456789"}


def config(anna: str = "", bora: str = "", top: str = "") -> str:
    """Two tenants, each with more lines of its own."""
    return f"""
{top}
[[engines]]
name = "sim"
url = "ENGINE"
[[tenants]]
name = "anna"
key_hashes = ["{hash_key("anna-key-0123456789")}"]
{anna}
[[tenants]]
name = "bora"
key_hashes = ["{hash_key("bora-key-0123456789")}"]
{bora}
"""


async def use(gateway: Gateway, tenant: str) -> float:
    return await gateway.metric(f'longwire_tenant_streams{{tenant="{tenant}"}}')


async def comes_to(gateway: Gateway, anna: int, bora: int) -> None:
    async def does() -> bool:
        return (await use(gateway, "anna"), await use(gateway, "bora")) == (anna, bora)

    await gateway.until(does, f"anna has {anna} streams and bora {bora}")


@pytest.mark.parametrize("homes", ["", "home = {}"])
async def test_two_tenants_that_alternate_on_one_connection_are_counted_exactly(tmp_path: Path, homes: str) -> None:
    text = config(homes.format(1), homes.format(3))
    async with running(4, config=text, path=tmp_path) as gateway:
        client = await gateway.connect()
        for round in range(12):
            stream = await gateway.stream(round + 1, 20, 2, client=client, headers=ANNA if round % 2 else BORA)
            if homes:
                assert stream.slot == (1 if round % 2 else 3)
            await stream.check()
        await comes_to(gateway, 0, 0)
        running_streams = []
        for number in range(6):
            mine = await gateway.connect()
            for who in (BORA, ANNA):
                first = await gateway.stream(40 + number, 3, 1, client=mine, headers=who)
                await first.check()
            running_streams.append(
                await gateway.stream(60 + number, 1500, client=mine, headers=ANNA if number < 4 else BORA)
            )
        await comes_to(gateway, 4, 2)
        victim = await gateway.pid_of(running_streams[0].slot)
        kill(victim)
        await gateway.settled(victim)
        await comes_to(gateway, 4, 2)
        gateway.sim.hurry()
        await check_all(running_streams)
        await comes_to(gateway, 0, 0)


async def test_limits_hold_over_shards_and_after_kills(tmp_path: Path) -> None:
    limit, shards = 6, 3
    async with running(shards, config=config(f"max_streams = {limit}"), path=tmp_path) as gateway:
        clients = [await gateway.connect() for _ in range(20)]
        for seed, client in enumerate(clients):
            client.post(ask(seed + 1, 2000), ANNA)
        heads = [await client.head() for client in clients]
        admitted = [client for client, head in zip(clients, heads, strict=True) if head.status == 200]
        assert limit <= len(admitted) <= limit + shards - 1
        assert {head.status for head in heads} == {200, 429}
        victims = [await gateway.pid_of(slot) for slot in range(2)]
        kill(*victims)
        await gateway.settled(*victims)
        await comes_to(gateway, len(admitted), 0)
        late = await gateway.connect()
        late.post(ask(90, 3), ANNA)
        assert (await late.answer()).status == 429, "adopted streams hold their slots"
        gateway.sim.hurry()
        for client in admitted:
            assert (await client.rest()).is_marked_done
        await comes_to(gateway, 0, 0)
        await check_all([await gateway.stream(200 + n, 3, 1, headers=ANNA) for n in range(limit)])


async def test_requests_per_minute_hold_over_shards_and_a_kill_forgives_nothing(tmp_path: Path) -> None:
    limit, shards = 8, 2
    async with running(shards, config=config(f"max_requests_per_min = {limit}"), path=tmp_path) as gateway:
        statuses = await asyncio.gather(*(status(gateway, ask(seed + 1, 3, 1), ANNA) for seed in range(20)))
        # A minute may end in between: then what was used in the one before counts for less.
        assert limit <= statuses.count(200) <= limit + shards
        victims = [await gateway.pid_of(0), await gateway.pid_of(1)]
        kill(*victims)
        await gateway.settled(*victims)
        more = [await status(gateway, ask(50 + n, 3, 1), ANNA) for n in range(4)]
        assert more.count(200) <= 3 and 429 in more


async def status(gateway: Gateway, body: object, headers: dict[str, str]) -> int:
    client = await gateway.connect()
    client.post(body, headers)
    return (await client.answer()).status


# Attacks at the seams.


async def test_no_stream_of_another_tenant_is_reached_through_any_shard(tmp_path: Path) -> None:
    async with running(3, config=config(), path=tmp_path) as gateway:
        stream = await gateway.stream(1, 1500, headers={**ANNA, "idempotency-key": "one"})
        prefix = stream.id[:-2]
        for number in range(24):
            client = await gateway.connect()
            path, headers = resume_request(stream.id if number % 2 else prefix + f"{number * 10:02x}")
            client.get(path, {**BORA, **(headers if number % 3 else {})})
            assert (await client.answer()).status == 404
            client.request("DELETE", path, None, BORA)
            assert (await client.answer()).status == 404
        for slot in (3, 77, 255):
            client = await gateway.connect()
            client.get(f"/v1/streams/{prefix}{slot:02x}", ANNA)
            assert (await client.answer()).status == 404
        theirs = await gateway.stream(1, 5, 1, headers={**BORA, "idempotency-key": "one"})
        assert theirs.id != stream.id, "a key is its tenant's own"
        gateway.sim.hurry()
        await check_all([theirs, stream])


def raw(method: str, path: str, headers: dict[str, str], body: object = None) -> bytes:
    return encode_request(method, path, body, headers, "1.1")


async def test_requests_behind_a_passed_one_are_who_they_say_they_are(tmp_path: Path) -> None:
    async with running(4, config=config("home = 0", "home = 2"), path=tmp_path) as gateway:
        anna = await gateway.stream(1, 1500, headers=ANNA)
        client = await gateway.connect()
        client.send(
            raw("POST", CHAT, BORA, ask(2, 10, 1))
            + raw("GET", f"/v1/streams/{anna.id}", BORA)
            + raw("POST", CHAT, ANNA, ask(3, 10, 1))
            + raw("GET", f"/v1/streams/{anna.id}", {"authorization": "Bearer nobody"})
            + raw("GET", f"/v1/streams/{anna.id}", ANNA)
        )
        answers = [await client.answer() for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 404, 200, 401, 200]
        assert [int(answers[n].stream_id[-2:], 16) for n in (0, 2)] == [2, 0]
        gateway.sim.hurry()
        await anna.check()


SMUGGLING = (
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"Content-Length: 5\r\nContent-Length: 50\r\n",
    b"X-A: b\r\n folded: c\r\nContent-Length: 2\r\n",
    b"Content-Length : 2\r\n",
)


async def test_nothing_is_smuggled_across_the_seam(tmp_path: Path) -> None:
    async with running(2, config=config("home = 0", "home = 1"), path=tmp_path) as gateway:
        secret = await gateway.stream(1, 1500, headers=ANNA)
        inner = raw("GET", f"/v1/streams/{secret.id}", ANNA)
        for head, who in product(SMUGGLING, (ANNA, BORA)):
            client = await gateway.connect()
            first = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
            first += f"Authorization: {who['authorization']}\r\n".encode() + head + b"\r\n0\r\n\r\n"
            client.send(first + inner)
            answer = await client.answer()
            assert answer.status == 400, head
            assert await client.wait_closed_by_peer() == b"", "what stands behind it is not read"
        gateway.sim.hurry()
        await secret.check()


async def test_the_client_s_address_survives_being_passed(tmp_path: Path) -> None:
    top = 'proxy_protocol = true\ntrusted_proxies = ["127.0.0.1"]'
    async with running(2, config=config("home = 0", "home = 1", top), path=tmp_path) as gateway:
        for _ in range(6):
            client = await gateway.connect()
            client.send(b"PROXY TCP4 203.0.113.9 192.0.2.1 5555 80\r\n" + raw("POST", CHAT, ANNA, ask(1, 3, 1)))
            assert (await client.answer()).status == 200
            client.send(raw("POST", CHAT, BORA, ask(1, 3, 1)))
            assert (await client.answer()).status == 200
            client.send(raw("GET", "/v1/models", {"authorization": "Bearer wrong"}))
            assert (await client.answer()).status == 401
        seen = {event["client"] for event in gateway.events("unauthenticated")}
        assert seen == {"203.0.113.9"}


async def test_clients_that_leave_while_they_are_passed_leave_nothing_behind(tmp_path: Path) -> None:
    async with running(2, config=config("home = 0", "home = 1"), path=tmp_path) as gateway:
        for number in range(60):
            client = await gateway.connect()
            client.send(raw("POST", CHAT, ANNA if number % 2 else BORA, ask(number, 400, 5)))
            if number % 3 == 0:
                client.fin()
            elif number % 3 == 1:
                client.reset()
            else:
                client.writer.transport.abort()
        await comes_to(gateway, 0, 0)

        async def empty() -> bool:
            return all(shard["connections"] == 0 and shard["streams"] == 0 for shard in await gateway.shards())

        await gateway.until(empty, "no connection is left")
        await check_all([await gateway.stream(9, 5, 1, headers=ANNA)])


async def test_a_flood_to_one_home_harms_nobody_else(tmp_path: Path) -> None:
    async with running(2, config=config("home = 0\nmax_streams = 10", "home = 1"), path=tmp_path) as gateway:
        bora = [await gateway.stream(seed, 1500, headers=BORA) for seed in range(1, 5)]
        flood = await asyncio.gather(*(status(gateway, ask(seed, 3, 1), ANNA) for seed in range(300)))
        assert set(flood) <= {200, 429, 503} and 200 in flood
        gateway.sim.hurry()
        await check_all(bora)
        await check_all([await gateway.stream(400, 5, 1, headers=ANNA)])


async def test_no_request_is_taken_for_an_operator_s(tmp_path: Path) -> None:
    async with running(2, config=config(), path=tmp_path) as gateway:
        anna = await gateway.stream(1, 1500, headers=ANNA)
        for extra in ({"x-operator": "1"}, {"kind": "operator"}, {"x-longwire-kind": "operator"}):
            client: Client = await gateway.connect()
            client.get(f"/v1/streams/{anna.id}", extra)
            assert (await client.answer()).status == 401
            client = await gateway.connect()
            client.get("/v1/streams", {**BORA, **extra})
            assert (await client.answer()).json["data"] == []
        # No process of the gateway listens anywhere but at its two ports.
        listening = {port for pid in [gateway.process.pid, *gateway.children()] for port in ports_of(pid)}
        assert listening == {gateway.port, int(gateway.admin.rpartition(":")[2])}
        gateway.sim.hurry()
        await anna.check()


def ports_of(pid: int) -> set[int]:
    """Ports on which a process accepts."""
    own = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {int(each[1].rpartition(":")[2], 16) for each in fields if each[3] == "0A" and f"socket:[{each[9]}]" in own}
