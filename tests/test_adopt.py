"""Adoption in one process: stop everything at a random point, take it over from rows, arena and sockets, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, cast

import pytest
import uvloop
from tests.house import until

from longwire.admission.limiter import Limiter
from longwire.admission.matrix import Matrix
from longwire.admission.tenants import Tenants
from longwire.adopt import Adopter, claim_rows
from longwire.engines.directory import Directory
from longwire.engines.pool import Upstream
from longwire.gateway import Gateway
from longwire.generation import GenerationShell
from longwire.observe.instruments import Instruments
from longwire.rereading import LeftOut
from longwire.server.handlers import Handlers
from longwire.server.listener import Listener
from longwire.server.record import Phase
from longwire.sim import SimServer
from longwire.sim.answer import answer_text
from longwire.streams.arena import BLOCK_BYTES, NO_BLOCK, Arena, Use
from longwire.streams.doors import Door, encode
from longwire.streams.late import LateEntries
from longwire.streams.log import Log
from longwire.streams.memory import Memory
from longwire.streams.registry import Registry
from longwire.streams.stream import Facts, State, Stream
from longwire.wire.chunked import LAST_CHUNK, ChunkedDecoder, encode_chunk
from longwire.words.clock import LoopClock
from longwire.words.ids import Place
from longwire.words.settings import EngineSettings, Settings, SimSettings, TenantSettings

STREAMS = 6


class Rooms:
    """What a process has of its own."""

    def __init__(self, memory: Memory, settings: Settings, tenants: Sequence[TenantSettings] = ()) -> None:
        loop = asyncio.get_running_loop()
        clock, instruments = LoopClock(loop), Instruments()
        self.memory, self.settings = memory, settings
        self.registry = Registry(memory, settings, clock, instruments, lambda stream: None)
        self.directory = Directory((Upstream(engine, settings, clock) for engine in settings.engines), settings)
        for upstream in self.directory.upstreams:
            upstream.is_up = True
        self.generations = GenerationShell.make(settings, self.directory, self.registry, clock, instruments)
        gateway = Gateway(
            settings, self.directory, Limiter(Matrix.create(1, 1), 0, clock, 1000), self.registry, self.generations
        )
        handlers = Handlers(gateway, Tenants(tenants), cast(Executor, None), lambda: (True, ""))
        self.listener = Listener(memory, settings, clock, instruments, handlers)

    def die(self) -> dict[tuple[int, int], socket.socket]:
        """Stop like a process that is killed: sockets stay open elsewhere, what was not written is gone."""
        sockets: dict[tuple[int, int], socket.socket] = {}
        for connection in self.listener.connections:
            if connection.writer is not None and connection.writer.subscriber is not None:
                connection.writer.subscriber.is_paused = True  # the dead write nothing more in the loop's next turn
        transports = [connection.transport for connection in self.listener.connections]
        for upstream in self.directory.upstreams:
            transports += [c.transport for c in [*upstream._busy, *upstream._idle] if c.transport is not None]
        for transport in transports:
            sock = transport.get_extra_info("socket")
            sockets[self.memory.place.incarnation, sock.fileno()] = socket.socket(fileno=socket.dup(sock.fileno()))
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
        for task in list(self.generations.calls.tasks):
            task.cancel()
        self.generations.waiting.close()
        self.listener.stop_accepting()
        return sockets

    async def adopt(self, sockets: dict[tuple[int, int], socket.socket]) -> None:
        rows = claim_rows(self.memory)
        adopter = Adopter(self.memory, self.registry, self.listener, self.generations)
        await adopter.adopt(rows, sockets)
        if self.memory.place.incarnation % 2:  # else they sleep until somebody asks, or the next death
            while adopter.wake_some(2):
                pass
        assert not adopter.faults
        self.adopted = adopter.streams_adopted, adopter.connections_adopted


class Client:
    """A raw reader that keeps every byte; a slow one takes 64 bytes at a time out of a small window."""

    def __init__(self, index: int, port: int, *, slow: bool) -> None:
        self.index, self.port, self.slow = index, port, slow
        self.received = bytearray()
        self.progress = asyncio.Event()

    async def run(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=64 if self.slow else 65536)
        writer.write(request)
        while not self.received.endswith(b"0\r\n\r\n"):
            piece = await reader.read(64 if self.slow else 65536)
            assert piece, f"client {self.index}: the connection ended after {bytes(self.received[-200:])!r}"
            self.received += piece
            self.progress.set()
        writer.close()
        return bytes(self.received)


def request_of(seed: int, tokens: int, fault: str = "", ttft_ms: int = 1) -> bytes:
    sim = f'{{"tokens":{tokens},"itl_ms":1,"ttft_ms":{ttft_ms},"seed":{seed},"fault":"{fault}"}}'
    body = f'{{"model":"sim","stream":true,"sim":{sim},"messages":[{{"role":"user","content":"{seed}"}}]}}'.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Longwire-On-Disconnect: run\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def body_of(response: bytes) -> bytes:
    head, _, rest = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return rest


async def serve(rooms: Rooms) -> int:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    await rooms.listener.start(sock)
    return int(sock.getsockname()[1])


class Trial:
    """A simulator, and a gateway that can die and be adopted."""

    sim: SimServer
    rooms: Rooms
    port: int

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    async def __aenter__(self) -> Trial:
        self.sim = SimServer(SimSettings(port=0))
        host, port = await self.sim.start()
        engines = [EngineSettings(name="sim", url=f"http://{host}:{port}")]
        cold = {"warm_floor": 0, "warm_ceiling": 0}
        settings = Settings(engines=engines, heartbeat_s=0.05, **{**cold, **self._settings})
        self.rooms = Rooms(Memory.make(64 << 20, 64, 64), settings)
        self.port = await serve(self.rooms)
        return self

    async def kill(self, tenants: Sequence[TenantSettings] = ()) -> None:
        """One process dies; another takes everything over. ``tenants`` are those that it knows."""
        sockets = self.rooms.die()
        fds = [os.dup(fd) for fd in self.rooms.memory.fds]
        place = Place(incarnation=self.rooms.memory.place.incarnation + 1)
        heir = Rooms(Memory.attach(fds, place), self.rooms.settings, tenants)
        await heir.adopt(sockets)
        self.rooms = heir
        answering = [each for each in heir.listener.connections if each.phase == Phase.ANSWERING]
        assert not any(each.deadline for each in answering), "nothing is waited for in the middle of an answer"

    async def __aexit__(self, *exc: object) -> None:
        for connection in list(self.rooms.listener.connections):
            connection.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.rooms.registry.close()
        self.rooms.listener.close()
        for upstream in self.rooms.directory.upstreams:
            upstream.close()
        await self.sim.close()


async def round_trip(seed: int, kills: int, fault: str) -> None:
    """Several clients, one sim, several deaths at random moments; every client gets exactly what the log holds."""
    async with Trial() as trial:
        await _round_trip(trial, random.Random(seed), kills, fault)


async def _round_trip(trial: Trial, rng: random.Random, kills: int, fault: str) -> None:
    sim, public = trial.sim, trial.port
    clients = [Client(i, public, slow=i % 3 == 0) for i in range(STREAMS)]
    tasks = [asyncio.create_task(c.run(request_of(i, 60 + 10 * i, fault))) for i, c in enumerate(clients)]
    await sim.wait_requests(STREAMS)
    for _ in range(kills):
        chosen = rng.choice(clients)
        chosen.progress.clear()
        if not all(task.done() for task in tasks):
            waits = [asyncio.create_task(c.progress.wait()) for c in [chosen]] + [t for t in tasks if not t.done()]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        await trial.kill()
    rooms = trial.rooms
    responses = await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert len(sim.requests) == STREAMS, "one upstream request per stream"
    logs = sorted(whole_body(stream) for stream in rooms.registry.list(None))
    assert sorted(body_of(response) for response in responses) == logs
    for seed, response in enumerate(responses):
        assert text_of(body_of(response)) == answer_text(seed, 60 + 10 * seed)
    assert all(stream.state is State.ENDED and stream.reason == "completed" for stream in rooms.registry.list(None))


def whole_body(stream: Stream) -> bytes:
    """What a reader from the start gets through the framed door."""
    blocks = [stream.log.block(position) for position in range(stream.log.deliverable)]
    return b"".join(encode_chunk(block) for block in blocks) + LAST_CHUNK


def text_of(body: bytes) -> str:
    """The answer's text, put together from the deltas."""
    decoder = ChunkedDecoder()
    events = b"".join(body[start:end] for start, end in decoder.feed(body)).split(b"\n\n")
    data = [json.loads(event[6:]) for event in events if event.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in data if event["choices"])


@pytest.mark.parametrize(
    "fault", ["none", "crlf", "split_chunks=7", "many_per_chunk=3", "comments", "close_delimited", "ids", "one_byte"]
)
@pytest.mark.parametrize("seed", range(3))
def test_streams_survive_their_process_byte_for_byte(seed: int, fault: str) -> None:
    uvloop.run(round_trip(seed, kills=6, fault=fault))


class Raw:
    """A connection in the test's own hands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, window: int = 0) -> Raw:
        sock = socket.socket()
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.connect(("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=sock, limit=1 << 20))

    async def head(self) -> dict[str, str]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return {"status": lines[0].split()[1]} | dict(line.lower().split(": ", 1) for line in lines[1:] if line)

    async def chunked(self) -> bytes:
        return await self.reader.readuntil(LAST_CHUNK)


async def adopt_everything() -> None:
    """Half a request, an answer in one piece, pipelined requests, a reader by cursor and one that is far behind."""
    async with Trial() as trial, asyncio.timeout(20):
        half, whole, piped, slow = [await Raw.connect(trial.port, window) for window in (0, 0, 0, 4096)]
        first = request_of(1, 40)
        half.writer.write(first[: len(first) // 2])
        piped.writer.write(request_of(2, 20) + request_of(3, 20))
        slow.writer.write(request_of(4, 4000).replace(b'"itl_ms":1', b'"itl_ms":0'))
        body = b'{"model":"sim","sim":{"tokens":9,"ttft_ms":40,"itl_ms":1,"seed":5},"messages":[]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole.writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await trial.sim.wait_requests(3)
        await trial.kill()
        half.writer.write(first[len(first) // 2 :])
        stream_id = (await half.head())["x-stream-id"]
        await trial.kill()
        assert text_of(await half.chunked()) == answer_text(1, 40)
        await trial.kill()
        assert json.loads(await whole.reader.readexactly(int((await whole.head())["content-length"])))["choices"][0][
            "message"
        ]["content"] == answer_text(5, 9)
        for seed in (2, 3):
            await piped.head()
            assert text_of(await piped.chunked()) == answer_text(seed, 20)
        await trial.sim.wait_for(lambda: not trial.sim.open_streams)
        for _ in range(5):
            await asyncio.sleep(0)
        await trial.kill()
        await slow.head()
        received = bytearray(await slow.reader.read(5000))
        await trial.kill()
        received += await slow.chunked()
        assert text_of(bytes(received)) == answer_text(4, 4000)
        assert len(trial.sim.requests) == 5
        # The connection lives on for another request, of a reader by cursor.
        half.writer.write(
            f"GET /v1/streams/{stream_id} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n".encode()
        )
        await trial.kill()
        half.writer.write(b"Last-Event-ID: 1-30\r\n\r\n")
        assert (await half.head())["x-stream-id"] == stream_id
        replay = await half.chunked()
        assert b"id: 1-31\n" in replay
        assert b"id: 1-30\n" not in replay
        for raw in (half, whole, piped, slow):
            raw.writer.close()


def test_everything_that_a_process_had_under_way_goes_on() -> None:
    uvloop.run(adopt_everything())


async def adopt_who_came_back() -> None:
    """Nobody reads when the first process dies; then one by cursor does, alone, and has the short way, when two more die."""
    async with Trial() as trial, asyncio.timeout(20):
        first = await Raw.connect(trial.port)
        first.writer.write(request_of(5, 1500))
        stream_id = (await first.head())["x-stream-id"]
        await first.reader.readuntil(b"\n\n")
        first.writer.close()

        def the_stream() -> Stream:
            (stream,) = trial.rooms.registry.list(None)
            return stream

        def is_short(readers: int) -> bool:
            stream = the_stream()
            return stream._is_spliced and len(stream.subscribers) == readers

        await until(lambda: is_short(0), "what nobody reads goes the short way")
        await trial.kill()
        port = await serve(trial.rooms)
        await until(lambda: is_short(0), "what nobody reads goes the short way")
        second = await Raw.connect(port)
        second.writer.write(
            f"GET /v1/streams/{stream_id} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        assert (await second.head())["status"] == "200"
        answer = asyncio.create_task(second.chunked())
        for _ in range(2):
            await until(lambda: is_short(1), "the reader by cursor has the short way")
            await trial.kill()
        body = await answer
        stream = the_stream()
        assert stream.reason == "completed"
        expected, position, _ = encode(Door.FRAMED_IDS, stream.log, 0, 1 << 30, 1 << 30)
        assert (position, body) == (stream.log.deliverable, b"".join(map(bytes, expected)) + LAST_CHUNK)
        assert len(trial.sim.requests) == 1
        second.writer.close()


def test_a_reader_that_came_back_and_a_stream_that_nobody_reads_go_on() -> None:
    uvloop.run(adopt_who_came_back())


async def adopt_between_two_blocks() -> None:
    """Half a request fills its block to the last byte, and the process dies before there is another."""
    async with Trial() as trial, asyncio.timeout(20):
        client = await Raw.connect(trial.port)
        request = request_of(1, 40).replace(b"Longwire-", b"X-Padding: %b\r\nLongwire-" % (b"x" * BLOCK_BYTES))
        client.writer.write(request[:BLOCK_BYTES])
        await until(lambda: trial.rooms.listener.connections, "it is connected")
        (connection,) = trial.rooms.listener.connections
        await until(lambda: connection.read_bytes == BLOCK_BYTES, "the block is full")
        chain, arena = connection.input_chain, trial.rooms.memory.arena
        assert chain is not None
        arena.give([chain.blocks.pop()], Use.INPUT)
        arena.links[chain.first] = NO_BLOCK
        await trial.kill()
        client.writer.write(request[BLOCK_BYTES:])
        await client.head()
        assert text_of(await client.chunked()) == answer_text(1, 40)
        client.writer.close()


def test_a_request_goes_on_in_another_block() -> None:
    uvloop.run(adopt_between_two_blocks())


HEADER = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"


async def adopt_behind_a_balancer(cut: int) -> None:
    """The PROXY header comes in one piece with the beginning of the request, or the whole of it after the death."""
    async with Trial(proxy_protocol=True, trusted_proxies=["127.0.0.1"]) as trial, asyncio.timeout(20):
        client = await Raw.connect(trial.port)
        data = HEADER + request_of(1, 40) + request_of(2, 20)
        client.writer.write(data[:cut])
        await until(lambda: trial.rooms.listener.connections, "it is connected")
        (connection,) = trial.rooms.listener.connections
        await until(lambda: connection.read_bytes == cut, "so much has come")
        await trial.kill()
        client.writer.write(data[cut:])
        for seed, tokens in ((1, 40), (2, 20)):
            await client.head()
            assert text_of(await client.chunked()) == answer_text(seed, tokens)
        assert len(trial.sim.requests) == 2
        client.writer.close()


@pytest.mark.parametrize("cut", [0, len(HEADER) + 1, len(HEADER) + 150], ids=["nothing", "a byte", "half a request"])
def test_a_request_behind_a_proxy_header_goes_on(cut: int) -> None:
    uvloop.run(adopt_behind_a_balancer(cut))


async def adopt_in_mid_header() -> None:
    async with Trial(proxy_protocol=True, trusted_proxies=["127.0.0.1"]) as trial, asyncio.timeout(20):
        client = await Raw.connect(trial.port)
        client.writer.write(HEADER[:10])
        await until(lambda: trial.rooms.listener.connections, "it is connected")
        (connection,) = trial.rooms.listener.connections
        await until(lambda: connection.read_bytes == 10, "half of it has come")
        await trial.kill()
        assert await client.reader.read() == b"", "cut, and not taken for something else"
        client.writer.close()


def test_what_was_received_and_not_kept_is_not_guessed() -> None:
    uvloop.run(adopt_in_mid_header())


async def adopt_an_idle_one() -> None:
    async with Trial(head_timeout_s=1.0, keep_alive_s=100.0) as trial, asyncio.timeout(20):
        client = await Raw.connect(trial.port)
        client.writer.write(request_of(1, 4))
        await client.head()
        await client.chunked()
        await trial.kill()
        (connection,) = trial.rooms.listener.connections
        await until(lambda: connection.phase == Phase.IDLE, "it waits")
        assert connection.deadline > trial.rooms.listener.clock.now() + 90
        client.writer.close()


def test_an_idle_connection_keeps_its_time() -> None:
    uvloop.run(adopt_an_idle_one())


async def adopt_whoever_is_not_let_in_any_more(ttft_ms: int) -> None:
    """A reload, or a keys file, has taken the key away: what it has started goes on, and what it asks next is refused."""
    async with Trial() as trial, asyncio.timeout(20):
        client = await Raw.connect(trial.port)
        client.writer.write(request_of(1, 40, ttft_ms=ttft_ms))
        await trial.sim.wait_requests(1)
        head = {} if ttft_ms > 1 else await client.head()
        await trial.kill([TenantSettings(name="somebody-else")])
        head = head or await client.head()
        assert head["status"] == "200"
        assert text_of(await client.chunked()) == answer_text(1, 40)
        client.writer.write(request_of(2, 40))
        assert (await client.head())["status"] == "401"
        client.writer.close()


@pytest.mark.parametrize("ttft_ms", [1, 60], ids=["live", "opening"])
def test_a_key_that_is_gone_ends_nothing_that_it_has_started(ttft_ms: int) -> None:
    uvloop.run(adopt_whoever_is_not_let_in_any_more(ttft_ms))


async def adopt_before_the_head() -> None:
    async with Trial() as trial, asyncio.timeout(20):
        client = await Raw.connect(trial.port)
        client.writer.write(request_of(1, 9, ttft_ms=60))
        await trial.sim.wait_requests(1)
        await trial.kill()
        (stream,) = trial.rooms.registry.list(None)
        assert stream.state is State.OPENING
        head = await client.head()
        assert head["x-request-id"] == stream.facts.request_id
        assert head["longwire-on-disconnect"] == "run"
        client.writer.close()


def test_a_response_that_was_about_to_begin_has_all_of_its_head() -> None:
    uvloop.run(adopt_before_the_head())


@pytest.mark.parametrize("mark", [None, b'"finish_reason":null', b"another engine's"])
def test_the_last_entries_are_found_as_they_would_be_from_the_start(mark: bytes | None) -> None:
    """For every place of a reader: either exactly what a reading of all finds, or nothing; whatever is known of its deltas."""
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"%d"},"logprobs":null,"finish_reason":null}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    odd = [
        encode_chunk(b": ping\n\n"),
        encode_chunk(delta % 1 + delta % 2),
        encode_chunk(b"data:"),
        encode_chunk(b" {}\n\n"),
    ]
    frames = [encode_chunk(delta % number) for number in range(30)]
    facts = Facts(tenant="", tenant_index=0, route="chat_completions")
    for pieces in (
        frames,
        [*frames[:20], *odd, *frames[20:]],
        [encode_chunk(bytes((byte,))) for byte in b"".join(frames[:2])],
    ):
        whole = log_of(head + b"".join(pieces), facts)
        found = 0
        for position in range(1, len(whole.entries)):
            log = log_of(head + b"".join(pieces), facts, read=False)
            log.missing_below = log.known_from = len(whole.entries)
            log.entries = LateEntries(len(whole.entries))
            left_out = LeftOut(log, facts, log.upstream.end, False)
            left_out.mark = mark
            if left_out.find_from(position):
                found += 1
                assert 0 < log.missing_below <= position
                blocks = [log.block(each) for each in range(log.missing_below, len(whole.entries))]
                assert blocks == [whole.block(each) for each in range(log.missing_below, len(whole.entries))]
        assert bool(found) == (pieces[0] == frames[0])


def test_ordinary_deltas_are_counted_and_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    facts = Facts(tenant="", tenant_index=0, route="chat_completions")
    log = log_of(head + encode_chunk(delta) * 30, facts, read=False)
    log.missing_below, log.entries = 30, LateEntries(30)
    left_out = LeftOut(log, facts, log.upstream.end, False)
    left_out.mark = b'"finish_reason":null'
    monkeypatch.setattr(LeftOut, "_read_frames", lambda *_: pytest.fail("it was read"))
    assert left_out.find_from(20)
    assert [log.block(each) for each in range(20, 30)] == [delta] * 10


def log_of(data: bytes, facts: Facts, *, read: bool = True) -> Log:
    log = Log(Arena(1 << 20))
    log.upstream.append(data)
    if read:
        log.missing_below = 1 << 20
        log.known_from = 0
        left_out = LeftOut(log, facts, log.upstream.end, False)
        log.entries = LateEntries(0)
        left_out.find_all()
    return log
