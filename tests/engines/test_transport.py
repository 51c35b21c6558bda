"""Real sockets: no delay on either side, nothing left over, and no request whose rest is sent when nobody wants it any more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.house import (
    CHUNKED,
    HOLD,
    WHOLE,
    Step,
    TestHouse,
    chat,
    delta,
    head_of,
    in_chunks,
    open_house,
    serving,
    until,
)

from longwire.engines.transport import MAX_DRAIN_BYTES, UpstreamConnection
from longwire.server.writer import Writer
from longwire.wire.chunked import LAST_CHUNK
from longwire.words.reasons import CloseReason as Reason

LARGE = "x" * 8_000_000
"""More than the kernel's buffers of both sides take."""


def busy(house: TestHouse, name: str = "script") -> UpstreamConnection:
    (connection,) = next(u for u in house.gateway.directory.upstreams if u.name == name)._busy
    return connection


def has_no_delay(transport: asyncio.BaseTransport | None) -> bool:
    assert transport is not None
    sock = transport.get_extra_info("socket")
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


async def test_86_small_frames_wait_for_no_acknowledgement_on_either_side() -> None:
    """Row 86 (aisix#948): Nagle's algorithm cost 40 ms per frame."""
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        assert has_no_delay(busy(house).transport), "the engine's side"
        (accepted,) = house.gateway.listener.connections
        assert has_no_delay(accepted.transport), "the client's side"


@asynccontextmanager
async def deaf_engine(house: TestHouse, *answer: bytes, fin: bool = False) -> AsyncIterator[None]:
    """An engine that answers, and never reads more than the beginning of a request."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(20)
        for part in answer:
            writer.write(part)
            await writer.drain()
        if fin:
            writer.write_eof()
        await over.wait()

    async with serving(serve, limit=1024) as address:
        house.gateway.directory.upstreams[1].set_url(f"http://{address}")
        yield


REFUSAL = head_of(b"content-length: 26", status=b"413 Large", kind=b"application/json") + b'{"error":{"message":"no"}}'
UNREAD = [
    (REFUSAL, 413),
    (CHUNKED + in_chunks(*WHOLE), 200),
    (CHUNKED + in_chunks(*WHOLE, last=False), 200),
]


@pytest.mark.parametrize(("answer", "status"), UNREAD, ids=["refusal", "whole", "without_the_last_chunk"])
async def test_an_engine_that_answers_without_reading_is_not_asked_on_that_connection_again(
    answer: bytes, status: int
) -> None:
    """Its answer is passed on; the rest of the request is dropped with the connection."""
    async with open_house(arena_bytes=64 << 20) as house:
        async with deaf_engine(house, answer):
            got = await house.ask(chat(model="script", pad=LARGE))
            assert got.status == status and got.is_whole
            upstream = house.gateway.directory.upstreams[1]
            await until(lambda: upstream.statistics()["busy"] == 0, "it is let go")
            assert upstream.statistics()["idle"] == 0, "and not kept"


async def test_an_engine_that_says_goodbye_without_reading_does_not_hold_us() -> None:
    async with open_house(arena_bytes=64 << 20) as house:
        async with deaf_engine(house, REFUSAL[:40], fin=True):
            asked = asyncio.create_task(house.ask(chat(model="script", pad=LARGE)))
            upstream = house.gateway.directory.upstreams[1]
            await until(lambda: upstream._busy, "the request is on its way")
            connection = busy(house)
            lost = asyncio.Event()
            connection._home = cast(Any, SimpleNamespace(freed=connection._home.freed, lost=lambda _: lost.set()))
            got = await asked
            assert got.status == 502 and got.error["code"] == "upstream_reset"
            await lost.wait()  # closing in the usual way would wait for the rest of the request to be taken


async def test_a_large_request_arrives_whole_while_other_streams_take_and_give_blocks() -> None:
    """What the transport has not sent yet must not change when its blocks are taken by others."""
    async with open_house(arena_bytes=64 << 20) as house:
        pad = "".join(f"{number:07}," for number in range(500_000))
        house.engine.will_say(CHUNKED + in_chunks(*WHOLE))
        large = asyncio.create_task(house.ask(chat(model="script", pad=pad)))
        while not large.done():
            await house.ask(chat(tokens=3))
        assert (await large).text == "ab"
        assert pad.encode() in house.engine.requests[-1][1]


async def test_more_than_a_last_chunk_behind_the_end_marker_is_not_read_for_ever() -> None:
    async with open_house() as house:
        straggler = in_chunks(delta("y" * 900), last=False)
        few, many = MAX_DRAIN_BYTES // len(straggler) - 2, MAX_DRAIN_BYTES // len(straggler) + 2
        upstream = house.gateway.directory.upstreams[1]
        for count, is_kept in ((few, True), (many, False)):
            steps: list[Step] = [CHUNKED + in_chunks(*WHOLE, last=False), *[straggler] * count, LAST_CHUNK]
            house.engine.will_say(*steps)
            assert (await house.ask(chat(model="script"))).text == "ab"
            await until(lambda: upstream.statistics()["busy"] == 0, "the connection is let go")
            assert upstream.statistics()["idle"] == is_kept


async def test_a_full_arena_pauses_reading_and_drops_nothing() -> None:
    """A stream as large as what is free: it goes on when blocks come back, byte for byte."""
    async with open_house(arena_bytes=2 << 20, retention_bytes=1 << 19) as house:
        blocks = [delta(f"{number:05}" + "z" * 3000) for number in range(150)]
        for _ in range(3):
            house.engine.will_say(CHUNKED + in_chunks(*blocks, *WHOLE[2:]))
            answer = await house.ask(chat(model="script"))
            assert answer.pieces == [*blocks, *WHOLE[2:]]
            await house.check_ending(answer.stream_id, Reason.COMPLETED)


async def test_its_state_can_be_read() -> None:
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        client = await house.connect()
        client.post(chat(model="script"))
        await client.head()
        connection = busy(house)
        assert "events" in repr(connection) and connection.fd >= 0
        assert connection.read_bytes == house.streams[0].log.upstream.end
        client.close()
        await until(lambda: connection.is_closed, "it is closed")
        assert "closed" in repr(connection)


@pytest.mark.parametrize(
    ("policy", "reason"), [("run", Reason.COMPLETED), ("cancel", Reason.CLIENT_LEFT)], ids=["run", "cancel"]
)
async def test_a_reader_that_cannot_be_written_to_on_the_short_way_ends_alone(
    monkeypatch: pytest.MonkeyPatch, policy: str, reason: Reason
) -> None:
    """What becomes of the stream is its policy for a reader that has left, and the engine's connection is none the worse."""

    def raises(frame: bytes) -> None:
        raise LookupError

    monkeypatch.setattr(Writer, "splice", lambda _: raises)
    async with open_house() as house:
        gates = [asyncio.Event() for _ in range(3)]
        a, b, c = (in_chunks(delta(text), last=False) for text in "abc")
        house.engine.will_say(CHUNKED + a, gates[0], b, gates[1], c, gates[2], in_chunks(*WHOLE[2:]))
        client = await house.connect()
        client.post(chat(model="script"), {"longwire-on-disconnect": policy})
        answer = await client.head()
        for gate in gates:
            await client.piece()
            gate.set()
        assert answer.text == "ab" and not answer.is_whole, "the third frame is the first that goes the short way"
        await house.check_ending(answer.stream_id, reason)
        replay = await house.replay(answer.stream_id)
        assert replay.text == "abc" and (replay.in_band_error is None) is reason.is_success


async def test_a_fault_of_ours_on_the_short_way_is_told_as_ours_and_felt_by_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Left to the loop it would break the connection, and the answer would say that the engine had."""
    begin_frame = UpstreamConnection._begin_frame
    broken: list[UpstreamConnection] = []

    def breaks(connection: UpstreamConnection, chain: Any, data: bytes) -> bool:
        if connection in broken or not broken:
            broken.append(connection)
            raise LookupError
        return begin_frame(connection, chain, data)

    monkeypatch.setattr(UpstreamConnection, "_begin_frame", breaks)
    async with open_house(arena_bytes=16 << 20) as house:
        answers = await asyncio.gather(*(house.ask(chat(tokens=2000)) for _ in range(2)))
        whole, cut = sorted(answers, key=lambda answer: len(answer.pieces), reverse=True)
        error = cut.in_band_error
        assert error is not None and error["code"] == "internal_error" and len(broken) == 1
        assert whole.in_band_error is None and whole.is_marked_done
        await house.check_ending(cut.stream_id, Reason.INTERNAL_ERROR)
