"""A gateway that is told to stop, or whose keeper is killed: what runs is finished or told, and nobody is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.gateways import (
    Gateway,
    Reader,
    Sim,
    fetch,
    hurry,
    is_alive,
    own_sim_port,
    play,
    read_whole,
    running,
    until,
)

from longwire.sim.answer import answer_text

pytestmark = pytest.mark.e2e

MS = 40


class World:
    """A stand-in, and gateways before it that are ended with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.sim = Sim(folder)
        stack.enter_context(running(self.sim))

    def gateway(self, *arguments: str, engine: str = "", ports: tuple[int, int] = (0, 0)) -> Gateway:
        given = ("--engine", engine or self.sim.url, "--shards", "2", "--log-level", "info", *arguments)
        gateway = Gateway(self.folder, *given, ports=ports)
        self.stack.enter_context(running(gateway))
        until(lambda: len(gateway.pids()) >= 9, "there is a spare, and a process for large bodies beside each shard")
        return gateway


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


async def connect_to_each(gateway: Gateway, seeds: range, tokens: int, headers: str = "") -> list[Reader]:
    """A reader with a stream per seed. The second half comes when it is known who has the first, so both shards have some."""
    readers: list[Reader] = []
    for half in (seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]):
        before = len(readers)
        readers += [await Reader.connect(gateway.port) for _ in half]
        await asyncio.gather(
            *(reader.generate(seed, tokens, MS, headers) for seed, reader in zip(half, readers[before:], strict=True))
        )
        await asyncio.to_thread(until, partial(have_said, gateway, len(readers)), "the shards have said so")
    return readers


def have_heirs(gateway: Gateway, pids: list[int]) -> bool:
    """Whether others have taken over from all of these, and drain."""
    return all(shard["state"] == "draining" and shard["pid"] not in pids for shard in gateway.shards())


def have_said(gateway: Gateway, streams: int) -> bool:
    return sum(int(shard["streams"]) for shard in gateway.shards()) >= streams


async def finish(readers: list[Reader], seeds: range, tokens: int) -> None:
    await asyncio.gather(*(reader.rest() for reader in readers))
    for seed, reader in zip(seeds, readers, strict=True):
        assert (reader.text, reader.is_done, reader.error) == (answer_text(seed, tokens), True, None)


def is_refused(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


async def wait_told(gateway: Gateway) -> None:
    """Until it drains: by then nobody may be let in any more."""
    await asyncio.to_thread(until, lambda: is_refused(gateway.port), "new connections are refused")


async def get(reader: Reader, path: str, accept: str = "application/json") -> int:
    reader.writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
    return await reader.head()


def test_what_finishes_in_time_does_and_the_rest_is_told(world: World) -> None:
    """Told by a signal or by a command. Most of it is the wait for the deadline, so the two gateways go side by side."""
    ways = ("SIGTERM", "longwire drain")
    with ThreadPoolExecutor() as pool:
        gateways = list(pool.map(lambda _: world.gateway("--drain-s", "8"), ways))
    everyone = [pid for gateway in gateways for pid in gateway.pids()]

    async def drain(gateway: Gateway, how: str) -> None:
        short, long = range(12), range(12, 20)
        finishing = await connect_to_each(gateway, short, 60)
        told = await connect_to_each(gateway, long, 10_000)
        others = [await Reader.connect(gateway.port) for _ in range(6)]
        for other in others:
            assert await get(other, "/healthz") == 200
            await other.body()
        if how == "SIGTERM":
            gateway.process.terminate()
        else:
            assert (await asyncio.to_thread(gateway.command, "drain")).returncode == 0
        await wait_told(gateway)
        status, body = await asyncio.to_thread(fetch, gateway.admin_port, "/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "draining")
        assert await get(others[0], "/readyz") == 503
        assert json.loads(await others[0].body())["reason"] == "draining"
        for other, reader in zip(others[1:3], (told[0], finishing[0]), strict=True):
            assert await get(other, f"/v1/streams/{reader.headers['x-stream-id']}", "text/event-stream") == 200
            assert (await other.body()).startswith(b"retry: ")
            assert await other.reader.read() == b""
        assert {shard["state"] for shard in await asyncio.to_thread(gateway.shards)} == {"draining"}
        await finish(finishing, short, 60)
        await asyncio.gather(*(reader.rest() for reader in told))
        for seed, reader in zip(long, told, strict=True):
            assert reader.is_done and reader.error["code"] == "shutdown"
            assert answer_text(seed, 10_000).startswith(reader.text)
            assert reader.text

    async def drain_all() -> None:
        await asyncio.gather(*map(drain, gateways, ways))

    play(drain_all())
    for gateway in gateways:
        assert gateway.wait_end() == 0
        assert gateway.said.count('"close_reason":"shutdown"') == 8
        assert "strange_message" not in gateway.said
    assert not [pid for pid in everyone if is_alive(pid)]


def test_a_second_signal_stops_now(world: World) -> None:
    gateway = world.gateway("--drain-s", "300")
    everyone = gateway.pids()

    async def stop() -> None:
        (reader, *_) = await connect_to_each(gateway, range(8), 10_000)
        gateway.process.terminate()
        await wait_told(gateway)
        await reader.event()
        gateway.process.terminate()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.rest()

    play(stop())
    assert gateway.wait_end() == 130
    until(lambda: not [pid for pid in everyone if is_alive(pid)], "nobody is left")


def test_a_shard_that_is_killed_while_it_drains_has_a_successor(world: World) -> None:
    gateway = world.gateway("--drain-s", "40")
    everyone = gateway.pids()

    async def drain() -> None:
        seeds = range(12)
        readers = await connect_to_each(gateway, seeds, 1000)
        gateway.process.terminate()
        await wait_told(gateway)
        victims = [shard["pid"] for shard in await asyncio.to_thread(gateway.shards)]
        for pid in victims:  # the second one finds no spare, and waits for a new one
            os.kill(pid, signal.SIGKILL)
            everyone.extend(gateway.pids())
            await readers[0].event()
        heirs = partial(have_heirs, gateway, victims)
        await asyncio.to_thread(until, heirs, "others drain in their place")
        await asyncio.gather(*(reader.event() for reader in readers))
        await world.sim.hurry()
        await finish(readers, seeds, 1000)

    play(drain())
    assert gateway.wait_end() == 0
    assert not [pid for pid in everyone if is_alive(pid)]
    assert len(world.sim.generations()) == 12


def test_a_reload_that_a_stop_overtakes_cuts_nobody(world: World) -> None:
    gateway = world.gateway("--drain-s", "40")

    async def drain() -> None:
        seeds = range(12)
        readers = await connect_to_each(gateway, seeds, 1000)
        reload = asyncio.create_task(asyncio.to_thread(gateway.command, "reload"))
        await readers[0].event()
        gateway.process.terminate()
        await wait_told(gateway)
        await world.sim.hurry()
        await finish(readers, seeds, 1000)
        assert (await reload).returncode in (0, 1)

    play(drain())
    assert gateway.wait_end() == 0


@pytest.mark.parametrize("engine", ["", "sim"])
def test_without_its_keeper_a_gateway_finishes_and_makes_room(world: World, engine: str) -> None:
    """Also one whose engine is its own, which has to last as long."""
    state = ("--state-dir", str(world.folder / "state"))
    gateway = world.gateway(*state, engine=engine)
    everyone = gateway.pids()
    shards = [shard["pid"] for shard in gateway.shards()]

    async def lose_the_keeper() -> None:
        seeds = range(12)
        readers = await connect_to_each(gateway, seeds, 1000)
        sim_port = own_sim_port(gateway.process.pid) if engine else world.sim.port
        gateway.process.kill()
        await wait_told(gateway)
        ports = (gateway.port, gateway.admin_port)
        successor = await asyncio.to_thread(world.gateway, *state, ports=ports)
        assert all(map(is_alive, shards)), "they have not finished"
        found = successor.wait_said(r"of an earlier gateway there are still (.*):")
        assert {f"shard {pid}" for pid in shards} <= set(found.split(", "))
        await read_whole(successor.port, 77, 5)
        await asyncio.to_thread(hurry, sim_port)
        await finish(readers, seeds, 1000)
        successor.process.terminate()
        assert await asyncio.to_thread(successor.wait_end) == 0
        assert not (world.folder / "state" / "gateway.json").exists()

    play(lose_the_keeper())
    until(lambda: not [pid for pid in everyone if is_alive(pid)], "nobody is left", 20)


def test_the_keeper_can_be_killed_while_a_shard_takes_over(world: World) -> None:
    gateway = world.gateway()
    everyone = gateway.pids()

    async def lose_the_keeper() -> None:
        seeds = range(30)
        readers = await connect_to_each(gateway, seeds, 1000)
        victim = (await asyncio.to_thread(gateway.shards))[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        await asyncio.to_thread(
            until,
            lambda: gateway.shards()[0]["state"] == "adopting" or gateway.shards()[0]["pid"] != victim,
            "it begins",
        )
        gateway.process.kill()
        await asyncio.gather(*(reader.event() for reader in readers))
        await world.sim.hurry()
        await finish(readers, seeds, 1000)

    play(lose_the_keeper())
    until(lambda: not [pid for pid in everyone if is_alive(pid)], "nobody is left", 20)


def test_the_process_that_reads_large_bodies_ends_with_its_shard(world: World) -> None:
    gateway = world.gateway()
    usual = set(gateway.pids())
    body = json.dumps({"model": "sim", "sim": {"tokens": 2}, "messages": [{"role": "user", "content": "x" * 400_000}]})

    async def send() -> None:
        reader = await Reader.connect(gateway.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        reader.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert await reader.head() == 200

    play(send())
    assert set(gateway.pids()) == usual, "it was there before it was asked"
    for shard in gateway.shards():
        os.kill(shard["pid"], signal.SIGKILL)
    until(
        lambda: len(gateway.pids()) == len(usual) and len(usual & set(gateway.pids())) <= 3,
        "it is gone, and all is well",
    )
