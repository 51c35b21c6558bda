"""Several shards of one gateway in one loop: a house for each slot, and inboxes between them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.house import Client, until

from longwire.admission.limiter import Limiter
from longwire.admission.matrix import Matrix
from longwire.admission.tenants import Tenant, Tenants
from longwire.adopt import Adopter, claim_rows
from longwire.engines.directory import Directory
from longwire.engines.pool import Upstream
from longwire.gateway import Gateway
from longwire.generation import GenerationShell
from longwire.keeper.channel import Channel
from longwire.observe.instruments import Instruments
from longwire.server.handlers import Handlers
from longwire.server.listener import Listener
from longwire.server.passing import Neighbours
from longwire.sim import SimServer
from longwire.streams.memory import Memory
from longwire.streams.registry import Registry
from longwire.words.clock import VirtualClock
from longwire.words.ids import Place
from longwire.words.settings import EngineSettings, Settings, SimSettings

SECRET = bytes(32)


class Shard:
    """What one shard has of its own."""

    def __init__(self, gateway: Shards, memory: Memory, clock: VirtualClock) -> None:
        settings = gateway.settings
        self.memory, self.clock, self.settings = memory, clock, settings
        self.instruments = Instruments()
        self.registry = Registry(memory, settings, clock, self.instruments, lambda stream: None)
        self.registry.use_secret(SECRET)
        self.directory = Directory(Upstream(engine, settings, clock) for engine in settings.engines)
        for upstream in self.directory.upstreams:
            upstream.is_up = True
        self.generations = GenerationShell.make(settings, self.directory, self.registry, clock, self.instruments)
        self.limiter = Limiter(Matrix.create(8, 1), 0, clock, 1000)
        core = Gateway(settings, self.directory, self.limiter, self.registry, self.generations)
        self.handlers = Handlers(core, Tenants(settings.tenants), cast(Executor, None), lambda: (True, ""))
        self.handlers.home_of = lambda tenant: gateway.homes.get(tenant.name)
        self.listener = Listener(memory, settings, clock, self.instruments, self.handlers)
        slot = memory.place.slot
        ends = [write for _, write in gateway.inboxes]
        self.neighbours = Neighbours(self.listener, gateway.inboxes[slot][0], ends)
        self.port = 0

    async def serve(self, send_buffer: int = 0) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        if send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted sockets inherit it
        self.port = sock.getsockname()[1]
        await self.listener.start(sock)
        self.neighbours.start()

    def die(self) -> dict[tuple[int, int], socket.socket]:
        """Stop like a process that is killed: its sockets stay open elsewhere, by the numbers that they had."""
        self.neighbours.close()
        sockets: dict[tuple[int, int], socket.socket] = {}
        connections = list(self.listener.connections)
        for connection in connections:
            if connection.writer is not None and connection.writer.subscriber is not None:
                connection.writer.subscriber.is_paused = True  # the dead write nothing more in the loop's next turn
        transports = [connection.transport for connection in connections]
        for upstream in self.directory.upstreams:
            transports += [c.transport for c in [*upstream._busy, *upstream._idle] if c.transport is not None]
        for transport in transports:
            sock = transport.get_extra_info("socket")
            sockets[self.memory.place.incarnation, sock.fileno()] = socket.socket(fileno=socket.dup(sock.fileno()))
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
        for task in list(self.generations.calls.tasks):
            task.cancel()
        self.listener.stop_accepting()
        return sockets

    async def adopt(self, sockets: dict[tuple[int, int], socket.socket]) -> None:
        rows = claim_rows(self.memory)
        self.listener.neighbours = self.neighbours
        adopter = Adopter(self.memory, self.registry, self.listener, self.generations)
        await adopter.adopt(rows, sockets)
        while adopter.wake_some(100):
            pass

    @property
    def held(self) -> dict[str, int]:
        """What must be nothing when all is over."""
        arena = self.memory.arena.statistics()
        counts = {
            "blocks": arena["blocks"] - arena["free"],
            "streams": self.memory.streams.rows_used,
            "connections": self.memory.connections.rows_used,
            "waiting": self.neighbours.statistics()["waiting"],
        }
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        self.neighbours.close()
        self.listener.close()
        for upstream in self.directory.upstreams:
            upstream.close()


class Shards:
    """The gateway as a whole."""

    def __init__(self, sim: SimServer, url: str, count: int, settings: dict[str, Any]) -> None:
        self.sim = sim
        cold = {"warm_floor": 0, "warm_ceiling": 0}
        self.settings = Settings(engines=[EngineSettings(name="sim", url=url)], **{**cold, **settings})
        self.homes: dict[str, int] = {}
        self.clock = VirtualClock()
        self.inboxes = [Channel.pair() for _ in range(count)]
        self.places = [Place(slot, count, slot + 1) for slot in range(count)]
        self.shards = [self.make(Memory.make(16 << 20, 64, 64, place)) for place in self.places]
        self.clients: list[Client] = []

    def make(self, memory: Memory) -> Shard:
        return Shard(self, memory, self.clock)

    def __getitem__(self, slot: int) -> Shard:
        return self.shards[slot]

    async def replace(self, slot: int) -> Shard:
        """Kill a shard, and have another process adopt what it had."""
        dead = self.shards[slot]
        sockets = dead.die()
        place = Place(slot, len(self.shards), dead.memory.place.incarnation + len(self.shards))
        heir = self.make(Memory.attach([os.dup(fd) for fd in dead.memory.fds], place))
        await heir.adopt(sockets)
        heir.neighbours.start()
        self.shards[slot] = heir
        return heir

    async def connect(self, slot: int, *, limit: int = 1 << 22, receive_buffer: int = 0) -> Client:
        """A connection that this slot's shard accepts."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self[slot].port))
        client = Client(*await asyncio.open_connection(sock=sock, limit=limit))
        self.clients.append(client)
        return client

    def tenant(self, slot: int, name: str) -> Tenant:
        tenant = self[slot].handlers.tenants.by_name(name)
        assert tenant is not None
        return tenant

    def live_streams(self, slot: int, name: str) -> int:
        return self[slot].limiter.live_here(self.tenant(slot, name))

    async def settle(self) -> None:
        """Every client leaves; then no shard may hold anything any more."""
        for client in self.clients:
            client.close()
        for shard in self.shards:
            await until(lambda shard=shard: not shard.listener.connections, "every client has left")  # type: ignore[misc]
            shard.registry.close()
            for upstream in shard.directory.upstreams:
                upstream.close()
        for shard in self.shards:
            await until(lambda shard=shard: not shard.held, f"everything is given back, but {shard.held}")  # type: ignore[misc]


@asynccontextmanager
async def open_shards(
    count: int = 2, *, sim: dict[str, Any] | None = None, send_buffer: int = 0, **settings: Any
) -> AsyncIterator[Shards]:
    """So many shards before one engine stand-in."""
    stand_in = SimServer(SimSettings(**{"port": 0, "itl_ms": 0, "ttft_ms": 0, "tokens": 5, "seed": 3, **(sim or {})}))
    host, port = await stand_in.start()
    gateway = Shards(stand_in, f"http://{host}:{port}", count, settings)
    try:
        for shard in gateway.shards:
            await shard.serve(send_buffer)
        yield gateway
        await gateway.settle()
    finally:
        for shard in gateway.shards:
            shard.close()
        for client in gateway.clients:
            client.writer.transport.abort()
        await stand_in.close()
        for ends in gateway.inboxes:
            for end in ends:
                end.close()


def slots_of(ids: Sequence[str]) -> list[int]:
    """Where streams are kept, as their ids say."""
    return [int(each[-2:], 16) for each in ids]
