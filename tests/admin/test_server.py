"""The admin server on a real socket: it starts in a running loop, leaves the signals alone and closes in any state."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator

import pytest

from longwire.admin.app import admin_app
from longwire.admin.server import AdminServer

from .fakes import FakeGateway, FakeMetrics

ID = "lw_" + "b" * 34


def bound_socket(host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.bind((host, 0))
    return sock


async def started(gateway: FakeGateway) -> AdminServer:
    server = AdminServer(admin_app(gateway, FakeMetrics()), bound_socket())
    await server.start()
    return server


async def connect(server: AdminServer, request: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode())
    return reader, writer


class Endless(FakeGateway):
    """Its tails never end by themselves."""

    async def _read(self, blocks: list[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: first\n\n"
            await asyncio.Event().wait()
        finally:
            self.closed_tails += 1


def test_it_answers_and_leaves_the_signals_alone() -> None:
    async def run() -> bytes:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        server = await started(FakeGateway())
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert "running" in repr(server)
        reader, writer = await connect(server, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert server.statistics()["answered"] == 1
        await server.close()
        return answer

    answer = asyncio.run(asyncio.wait_for(run(), 10))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b'{"status":"ok"}'
    assert head.lower().count(b"\r\ndate: ") == 1
    assert b"uvicorn" not in head


def test_after_close_nobody_is_accepted_and_idle_connections_are_closed() -> None:
    async def run() -> None:
        server = await started(FakeGateway())
        reader, writer = await connect(server, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b'"ok"}')
        await server.close()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await connect(server, "")
        await server.close()
        assert "stopped" in repr(server)

    asyncio.run(asyncio.wait_for(run(), 10))


def test_close_cuts_a_tail_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longwire.admin.server.CLOSE_S", 0.01)

    async def run() -> int:
        gateway = Endless()
        gateway.add(ID, 1)
        server = await started(gateway)
        request = f"GET /v1/streams/{ID} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        reader, writer = await connect(server, request)
        await reader.readuntil(b"data: first\n\n")
        assert server.statistics() == {"connections": 1, "answers": 1, "answered": 0}
        await server.close()
        assert server.statistics()["answers"] == 0
        writer.close()
        return gateway.closed_tails

    assert asyncio.run(asyncio.wait_for(run(), 10)) == 1


def test_a_server_that_never_started_frees_its_socket() -> None:
    sock = bound_socket()
    server = AdminServer(admin_app(FakeGateway(), FakeMetrics()), sock)
    asyncio.run(server.close())
    assert sock.fileno() == -1


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    with bound_socket("::1") as sock:
        assert AdminServer(admin_app(FakeGateway(), FakeMetrics()), sock).address.startswith("[::1]:")
