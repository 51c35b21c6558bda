"""Accepting from a socket that several shards read: near the descriptor limit, and in turn with the others."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Iterator
from typing import cast

import pytest
from tests.house import EVENTS, Client, chat, open_house, until
from tests.server.shards import open_shards
from tests.server.test_tls import Pair, make_pair

from longwire.groundwork import make_tls
from longwire.observe.instruments import Instruments
from longwire.server import accepting
from longwire.server.accepting import LINGER_S, LOAD_SLACK, PAUSE_S, YIELD_S, Acceptor
from longwire.server.turns import Turns
from longwire.words.clock import VirtualClock
from longwire.words.settings import Settings


class Door:
    """A listening socket, and an acceptor that keeps what it takes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock.dup()  # one loop knows one reader of a descriptor
        self.sock.setblocking(False)
        self.clock, self.instruments = VirtualClock(), Instruments()
        self.taken: list[socket.socket] = []
        self.acceptor = Acceptor(
            self.sock, self.taken.append, self.clock, self.instruments, Turns(asyncio.get_running_loop())
        )
        self.clients: list[socket.socket] = []

    def knock(self, count: int = 1) -> None:
        for _ in range(count):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(self.sock.getsockname())
            self.clients.append(client)

    async def turn(self, times: int = 5) -> None:
        for _ in range(times):
            await asyncio.sleep(0)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
        sock.setblocking(False)
        yield sock


@pytest.fixture
def doors(sock: socket.socket) -> Iterator[list[Door]]:
    made: list[Door] = []
    yield made
    for door in made:
        for each in [door.sock, *door.taken, *door.clients]:
            each.close()


async def test_a_burst_is_taken_in_parts(sock: socket.socket, doors: list[Door]) -> None:
    doors.append(door := Door(sock))
    door.knock(4)
    door.acceptor.start()
    await until(lambda: door.taken, "the first comes in")
    assert len(door.taken) == 1, "in one turn no more than that"
    await until(lambda: len(door.taken) == 4, "all are in")
    assert all(not each.getblocking() for each in door.taken)
    door.acceptor.stop()
    door.knock()
    await door.turn()
    assert len(door.taken) == 4
    assert door.sock.fileno() >= 0, "it is not ours to close"


async def test_a_shard_that_is_ahead_leaves_clients_to_others_for_one_pause(
    sock: socket.socket, doors: list[Door]
) -> None:
    doors += [ahead := Door(sock), behind := Door(sock)]
    streams = [LOAD_SLACK + 2, 1]
    ahead.acceptor.loads = lambda: (streams[0], streams)
    behind.acceptor.loads = lambda: (streams[1], streams)
    ahead.acceptor.start()
    behind.acceptor.start()
    for number in range(1, 6):
        ahead.knock()
        await until(lambda number=number: len(behind.taken) == number, "the other takes it")  # type: ignore[misc]
        ahead.clock.advance(YIELD_S)
    assert not ahead.taken
    behind.acceptor.stop()  # it hangs
    ahead.knock()
    await until(lambda: not ahead.acceptor._is_reading, "it waits for the other")
    assert not ahead.taken
    ahead.clock.advance(YIELD_S)
    assert len(ahead.taken) == 1, "the client waits no longer than that"
    streams[0] = LOAD_SLACK + 1
    ahead.knock()
    await until(lambda: len(ahead.taken) == 2, "equal is equal enough")
    ahead.acceptor.stop()


async def test_near_the_limit_clients_are_refused_in_words(sock: socket.socket, doors: list[Door]) -> None:
    doors.append(door := Door(sock))
    door.acceptor.ceiling = 0
    door.acceptor.start()
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    client = Client(reader, writer)
    client.get("/v1/models")
    answer = await client.answer()
    assert answer.status == 503 and answer.error["code"] == "overloaded"
    assert answer.header("retry-after") == "2" and answer.header("connection") == "close"
    assert await client.wait_closed_by_peer() == b""
    door.clock.advance(LINGER_S)
    writer.close()
    assert door.instruments.accepts_refused_total == 1 and not door.taken
    door.acceptor.ceiling = 1 << 20
    door.knock()
    await until(lambda: door.taken, "there is room again")
    door.acceptor.stop()


async def test_only_so_many_refused_clients_are_held(
    sock: socket.socket, doors: list[Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_REFUSED", 2)
    doors.append(door := Door(sock))
    door.acceptor.ceiling = 0
    door.acceptor.start()
    door.knock(5)
    await until(lambda: door.instruments.accepts_refused_total == 5, "all are refused")
    assert len(door.acceptor._refused) == 2
    door.clock.advance(LINGER_S)
    assert not door.acceptor._refused
    door.acceptor.stop()


def test_the_ceiling_leaves_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, ceiling in [
        (20_000, 20_000 - accepting.DESCRIPTOR_RESERVE),
        (256, 224),
        (resource.RLIM_INFINITY, 1 << 30),
    ]:
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert accepting.descriptor_ceiling() == ceiling


class Failing:
    """A listening socket whose accept fails."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock, self.number, self.calls = sock, number, 0

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        if self.number:
            raise OSError(self.number, "no more")
        return self.sock.accept()

    def fileno(self) -> int:
        return self.sock.fileno()

    def listen(self, backlog: int) -> None:
        self.sock.listen(backlog)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EPERM])
async def test_accept_that_fails_is_left_alone_for_a_while(sock: socket.socket, doors: list[Door], number: int) -> None:
    doors.append(door := Door(sock))
    failing = Failing(door.sock, number)
    door.acceptor._sock = cast(socket.socket, failing)
    door.acceptor.start()
    door.knock()
    await until(lambda: failing.calls, "it is tried")
    await door.turn(20)
    assert failing.calls == door.instruments.accept_pauses_total == 1, "and not again at once"
    failing.number = 0
    door.clock.advance(PAUSE_S)
    await until(lambda: door.taken, "it is tried again")
    door.acceptor.stop()


async def test_a_shared_socket_is_left_to_its_other_holders(sock: socket.socket) -> None:
    async with open_house() as house:
        inside = house.gateway
        inside.listener.stop_accepting()
        house.port = sock.getsockname()[1]
        await inside.listener.start(sock, is_shared=True, loads=lambda: [inside.registry.live_count])
        assert (await house.ask(chat())).status == 200
        inside.listener.stop_accepting()
        assert sock.fileno() >= 0


async def test_over_tls_of_our_own_nothing_is_passed(tmp_path_factory: pytest.TempPathFactory) -> None:
    pair: Pair = make_pair(tmp_path_factory.mktemp("tls"), "ours")
    tls = make_tls(Settings(tls_cert_file=pair.certificate, tls_key_file=pair.key))
    assert tls is not None
    async with open_shards() as gateway:
        plain = await gateway.connect(0)
        plain.post(chat())
        stream_id = (await plain.answer()).stream_id
        shard = gateway[1]
        shard.listener.stop_accepting()
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        await shard.listener.start(sock, tls)
        client = await over_tls(gateway.clients, sock, pair)
        client.get(f"/v1/streams/{stream_id}")
        answer = await client.answer()
        assert answer.status == 421 and answer.error["code"] == "misdirected"
        assert answer.header("connection") == "close"
        client = await over_tls(gateway.clients, sock, pair)
        client.get(f"/v1/streams/{stream_id}", EVENTS)
        answer = await client.answer()
        assert answer.status == 200 and answer.body.startswith(b"retry: "), "an EventSource comes back"
        assert answer.header("connection") == "close"
        client = await over_tls(gateway.clients, sock, pair)
        for number in range(4):
            client.post(chat(), {"idempotency-key": f"k{number}"})
            assert (await client.answer()).stream_id.endswith("01"), "answered where it came"


async def over_tls(clients: list[Client], sock: socket.socket, pair: Pair) -> Client:
    trusting = ssl.create_default_context(cafile=pair.certificate)
    client = Client(*await asyncio.open_connection(*sock.getsockname(), ssl=trusting, server_hostname="localhost"))
    clients.append(client)
    return client
