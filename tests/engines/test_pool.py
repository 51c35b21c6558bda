"""Connections to one upstream: which is taken, which is kept, which is closed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.house import CHUNKED, WHOLE, ScriptedEngine, chat, in_chunks, open_house, serving, until

from longwire.engines.connections import MAX_DRAIN_PURGES
from longwire.engines.dialing import ConnectFailed
from longwire.engines.endpoints import Endpoint
from longwire.engines.kinds import KINDS
from longwire.engines.pool import Upstream
from longwire.engines.transport import UpstreamConnection
from longwire.words.clock import VirtualClock
from longwire.words.settings import EngineSettings, Settings


class Pool:
    """An upstream on a clock of its own, before an engine that says nothing."""

    def __init__(self, engine: ScriptedEngine, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.engine = engine
        self.upstream = Upstream(EngineSettings(name="e", url=engine.url), Settings(**settings), self.clock)

    async def connect(self, count: int) -> list[UpstreamConnection]:
        return [await self.upstream.wait_connection() for _ in range(count)]

    @property
    def counts(self) -> tuple[int, int]:
        statistics = self.upstream.statistics()
        return statistics["idle"], statistics["busy"]


@asynccontextmanager
async def pool_of(**settings: Any) -> AsyncIterator[Pool]:
    engine = ScriptedEngine()
    await engine.start()
    pool = Pool(engine, **settings)
    try:
        yield pool
        pool.upstream.close()
        await engine.wait_for(lambda: engine.open_connections == 0)
        assert pool.counts == (0, 0)
    finally:
        await engine.close()


async def test_the_last_that_came_back_is_taken_first() -> None:
    async with pool_of() as pool:
        first, second = await pool.connect(2)
        assert pool.counts == (0, 2) and pool.upstream.take_idle() is None
        first.release(reusable=True)
        second.release(reusable=True)
        assert pool.counts == (2, 0)
        assert pool.upstream.take_idle() is second and pool.upstream.take_idle() is first
        assert pool.counts == (0, 2)


async def test_one_that_may_not_be_used_again_is_closed() -> None:
    async with pool_of() as pool:
        (connection,) = await pool.connect(1)
        connection.release(reusable=False)
        assert pool.counts == (0, 0) and connection.is_closed
        await pool.engine.wait_for(lambda: pool.engine.open_connections == 0)


async def test_one_that_has_been_idle_too_long_is_not_taken() -> None:
    """Engines close idle connections after some seconds; a request into a closing one would have to be repeated."""
    async with pool_of(upstream_keep_alive_s=4) as pool:
        old, young = await pool.connect(2)
        old.release(reusable=True)
        pool.clock.advance(3)
        young.release(reusable=True)
        pool.clock.advance(3)
        assert pool.upstream.take_idle() is young
        young.release(reusable=True)
        pool.clock.advance(5)
        assert pool.upstream.take_idle() is None and old.is_closed and young.is_closed


async def test_what_has_grown_old_is_closed_by_the_purge() -> None:
    async with pool_of(upstream_keep_alive_s=4) as pool:
        old, young, busy = await pool.connect(3)
        old.release(reusable=True)
        pool.clock.advance(3)
        young.release(reusable=True)
        pool.clock.advance(2)
        pool.upstream.purge_nowait()
        assert (old.is_closed, young.is_closed, busy.is_closed) == (True, False, False)
        assert pool.counts == (1, 1)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({"max_upstream_idle": 1}, 1), ({"max_upstream_idle": 0}, 0), ({"upstream_keep_alive_s": 0}, 0)],
)
async def test_only_so_many_are_kept(settings: dict[str, Any], kept: int) -> None:
    async with pool_of(**settings) as pool:
        for connection in await pool.connect(3):
            connection.release(reusable=True)
        assert pool.counts == (kept, 0)


async def test_one_that_the_engine_closes_leaves_the_pool() -> None:
    async with pool_of() as pool:
        idle, busy = await pool.connect(2)
        idle.release(reusable=True)
        await pool.engine.close()
        await until(lambda: pool.counts == (0, 0), "both have left")
        assert idle.is_closed and busy.is_closed and pool.upstream.take_idle() is None


async def test_one_that_sends_unasked_is_closed() -> None:
    say = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await say.wait()
        writer.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    async with pool_of() as pool, serving(answer) as address:
        pool.upstream.set_url(f"http://{address}")
        (connection,) = await pool.connect(1)
        connection.release(reusable=True)
        say.set()
        await until(lambda: pool.counts == (0, 0), "it has left the pool")
        assert connection.is_closed


async def test_a_body_that_never_ends_behind_its_end_marker_is_given_up() -> None:
    """The client has its answer; but a connection each for an engine that never sends the last chunk would add up."""
    async with open_house() as house:
        house.engine.will_say(CHUNKED + in_chunks(*WHOLE, last=False), asyncio.Event())
        assert (await house.ask(chat(model="script"))).text == "ab"
        upstream = house.gateway.directory.upstreams[1]
        for _ in range(MAX_DRAIN_PURGES):
            upstream.purge_nowait()
            assert upstream.statistics()["busy"] == 1
        upstream.purge_nowait()
        await until(lambda: upstream.statistics()["busy"] == 0, "it is closed")


# Connecting.


async def test_a_refused_connection_is_told_by_name_and_not_by_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        upstream = Upstream(EngineSettings(name="e", url=f"http://127.0.0.1:{port}"), Settings(), VirtualClock())
        with pytest.raises(ConnectFailed, match=r"engine e cannot be reached: .*refused") as caught:
            await upstream.wait_connection()
        assert str(port) not in str(caught.value)
        assert upstream.statistics() == {"idle": 0, "busy": 0, "connecting": 0}


async def test_a_connection_that_is_not_made_in_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(connect_timeout_s=0.05) as pool:

        async def never(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "get_running_loop", lambda: _Loop(loop, never))
            with pytest.raises(ConnectFailed, match="did not accept a connection in time"):
                await pool.upstream.wait_connection()
        assert pool.upstream.connecting == 0


class _Loop:
    """The loop, with another way to connect."""

    def __init__(self, loop: asyncio.AbstractEventLoop, create_connection: object) -> None:
        self._loop = loop
        self.create_connection = create_connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


@pytest.mark.parametrize(
    ("url", "host", "port", "base", "field"),
    [
        ("http://h:8000", "h", 8000, "", b"h:8000"),
        ("http://h:8000/", "h", 8000, "", b"h:8000"),
        ("http://h:8000/v1", "h", 8000, "", b"h:8000"),
        ("http://h/proxy/v1/", "h", 80, "/proxy", b"h"),
        ("http://h/v1/openai", "h", 80, "/v1/openai", b"h"),
        ("https://api.example.com/v1", "api.example.com", 443, "", b"api.example.com"),
        ("http://[::1]:8000/v1", "::1", 8000, "", b"[::1]:8000"),
        ("http://user:secret@h:1", "h", 1, "", b"h:1"),
        ("http://bücher.example", "bücher.example", 80, "", b"xn--bcher-kva.example"),
    ],
)
def test_a_url_says_where(url: str, host: str, port: int, base: str, field: bytes) -> None:
    upstream = Upstream(EngineSettings(url=url), Settings(), VirtualClock())
    assert (upstream.host, upstream.port, upstream.base_path, upstream.host_header) == (host, port, base, field)
    assert (upstream._tls is not None) == url.startswith("https")


def test_a_pool_knows_what_its_engine_is() -> None:
    engine = EngineSettings(name="e", url="http://h", kind="vllm", weight=7)
    upstream = Upstream(engine, Settings(), VirtualClock())
    assert (upstream.kind, upstream.weight, upstream.abilities) == ("vllm", 7, KINDS["vllm"])
    assert Upstream(EngineSettings(url="sim"), Settings(), VirtualClock()).kind == "sim"


async def test_no_address_of_an_endpoint_is_told_to_whoever_asked() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        endpoint = Endpoint(f"e@{url[7:]}", url)
        upstream = Upstream(EngineSettings(name="e", url="http://h"), Settings(), VirtualClock(), endpoint)
        assert upstream.name == endpoint.name
        with pytest.raises(ConnectFailed, match="engine e cannot be reached") as caught:
            await upstream.wait_connection()
        assert "127.0.0.1" not in str(caught.value)


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost, with its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    key = path.with_name("key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*make, *subject, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


async def test_an_https_engine_is_spoken_to_over_tls(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    said = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        said.set()
        writer.write(CHUNKED + in_chunks(*WHOLE))
        await reader.read()

    async with serving(answer, ssl=context) as address:
        url = f"https://localhost:{address.rpartition(':')[2]}/v1"
        engine = EngineSettings(name="tls", url=url, models=["tls"], ca_file=str(certificate))
        stranger = EngineSettings(name="stranger", url=url, models=["stranger"])
        async with open_house(engines=[engine, stranger]) as house:
            assert (await house.ask(chat(model="tls"))).text == "ab" and said.is_set()
            refused = await house.ask(chat(model="stranger"))
            assert refused.status == 502 and refused.error["code"] == "upstream_unreachable"


async def test_an_address_is_spoken_to_under_the_name_in_its_hosts_certificate(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with serving(answer, ssl=context) as address:
        port = address.rpartition(":")[2]
        for host, is_trusted in (("localhost", True), ("elsewhere.invalid", False)):
            url = f"https://{host}:{port}"
            engine = EngineSettings(name="e", url=url, ca_file=str(certificate))
            upstream = Upstream(engine, Settings(), VirtualClock(), Endpoint("e@127.0.0.1", url, "127.0.0.1"))
            with nullcontext() if is_trusted else pytest.raises(ConnectFailed, match="not trusted"):
                await upstream.wait_connection()
            assert upstream.statistics()["busy"] == is_trusted
            upstream.close()
