"""TLS on both sides, over real sockets: our own certificate before clients, and engines behind https."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.house import (
    CHUNKED,
    EVENTS,
    HOLD,
    WHOLE,
    Client,
    TestHouse,
    chat,
    delta,
    in_chunks,
    open_house,
    serving,
    until,
)

from longwire.engines.pool import Upstream
from longwire.engines.tls import SESSION_S, EngineTls
from longwire.groundwork import make_tls
from longwire.server.record import fd_of
from longwire.words.clock import VirtualClock
from longwire.words.errors import SettingsError
from longwire.words.settings import EngineSettings, Settings


class Pair(NamedTuple):
    """A self-signed certificate for localhost and its key."""

    certificate: str
    key: str


def make_pair(folder: Path, name: str) -> Pair:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make a certificate")
    pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
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
    who = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*make, *who, "-keyout", pair.key, "-out", pair.certificate], check=True, capture_output=True)
    return pair


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"), "foreign")


# Before clients.


@asynccontextmanager
async def secure_house(pair: Pair, **settings: Any) -> AsyncIterator[TestHouse]:
    """A house whose public port speaks TLS, as lifecycle makes it from the settings."""
    async with open_house(tls_cert_file=pair.certificate, tls_key_file=pair.key, **settings) as house:
        listener = house.gateway.listener
        listener.stop_accepting()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)  # accepted sockets inherit it
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        house.port = sock.getsockname()[1]
        await listener.start(sock, make_tls(house.gateway.settings))
        yield house


async def connect(house: TestHouse, pair: Pair) -> Client:
    context = ssl.create_default_context(cafile=pair.certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    client = Client(*await asyncio.open_connection("127.0.0.1", house.port, ssl=context, server_hostname="localhost"))
    house.clients.append(client)
    return client


async def test_a_stream_is_read_resumed_and_followed_by_the_next_request(ours: Pair) -> None:
    async with secure_house(ours) as house:
        go_on = asyncio.Event()
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), go_on, in_chunks(*WHOLE[1:]))
        client = await connect(house, ours)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        client.post(chat(model="script"))
        stream_id = (await client.head()).stream_id
        assert await client.piece() == delta("a"), "each event comes by itself"
        second = await connect(house, ours)
        second.get(f"/v1/streams/{stream_id}?after=1-0", EVENTS)
        await second.head()
        go_on.set()
        answer = await client.rest()
        assert answer.text == "ab" and answer.is_marked_done
        assert (await second.rest()).data == answer.data[1:]
        client.get(f"/v1/streams/{stream_id}", EVENTS)
        assert (await client.answer()).data == answer.data
        for connection in house.gateway.listener.connections:
            assert fd_of(connection.transport) == -1, "the state of TLS is not in the socket: nobody may adopt it"


async def test_a_client_that_leaves_stops_the_engine(ours: Pair) -> None:
    async with secure_house(ours) as house:
        for leave in (Client.close, lambda client: client.writer.transport.abort()):
            house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
            client = await connect(house, ours)
            client.post(chat(model="script"))
            await client.head()
            await client.piece()
            leave(client)
            await house.engine.wait_for(lambda: not house.engine.open_connections)


async def test_a_large_replay_passes_a_reader_that_is_slow(ours: Pair) -> None:
    async with secure_house(ours, arena_bytes=16 << 20) as house:
        client = await connect(house, ours)
        client.post(chat(fault=f"big_event={1 << 20}"))
        whole = await client.answer()
        assert whole.is_marked_done
        client.get(f"/v1/streams/{whole.stream_id}", EVENTS)
        await until(
            lambda: any(c.transport.get_write_buffer_size() for c in house.gateway.listener.connections), "it is stuck"
        )
        assert (await client.answer()).data == whole.data


async def test_a_refused_request_is_answered_before_the_close(ours: Pair) -> None:
    async with secure_house(ours, max_body_bytes=1024) as house:
        client = await connect(house, ours)
        client.post(b"x" * 5000)
        answer = await client.answer()
        assert answer.status == 413 and answer.is_whole


async def test_plain_http_on_the_tls_port_is_no_fault_of_ours(ours: Pair) -> None:
    async with secure_house(ours) as house:
        client = await house.connect()
        client.get("/healthz")
        assert not (await client.wait_closed_by_peer()).startswith(b"HTTP/")
        second = await connect(house, ours)
        second.get("/healthz")
        assert (await second.answer()).status == 200


def test_files_that_cannot_be_loaded_are_named(ours: Pair, foreign: Pair, tmp_path: Path) -> None:
    assert make_tls(Settings()) is None
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for certificate, key in (
        (ours.certificate, str(tmp_path / "missing")),
        (str(garbage), ours.key),
        (ours.certificate, foreign.key),
        (ours.certificate, ""),
    ):
        with pytest.raises(SettingsError, match="tls_cert_file and tls_key_file"):
            make_tls(Settings(tls_cert_file=certificate, tls_key_file=key))


def test_a_proxy_header_before_the_handshake_is_refused_when_it_is_set(ours: Pair) -> None:
    settings = Settings(
        tls_cert_file=ours.certificate, tls_key_file=ours.key, proxy_protocol=True, trusted_proxies=["10.0.0.0/8"]
    )
    with pytest.raises(SettingsError, match="do not go together"):
        make_tls(settings)


# Behind https.


@asynccontextmanager
async def secure_engine(
    pair: Pair,
    seen: list[bytes],
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    resumed: list[bool] | None = None,
    answers: int = 100,
) -> AsyncIterator[str]:
    """``answers``: as many come over one connection; ``resumed``: of each, whether it has gone on with a session."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    context.maximum_version = version

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if resumed is not None:
            resumed.append(writer.get_extra_info("ssl_object").session_reused)
        for _ in range(answers):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            seen.append(head + await reader.readexactly(length))
            writer.write(CHUNKED + in_chunks(*WHOLE))
        writer.close()

    async with serving(answer, ssl=context) as address:
        yield f"https://localhost:{address.rpartition(':')[2]}"


async def test_an_https_engine_gets_its_own_key_and_never_the_client_s(ours: Pair) -> None:
    seen: list[bytes] = []
    async with secure_engine(ours, seen) as url:
        engine = EngineSettings(name="tls", url=url, models=["tls"], ca_file=ours.certificate, api_key="sk-engine")
        async with open_house(engines=[engine]) as house:
            first = await house.ask(chat(model="tls"), {"authorization": "Bearer sk-client"})
            second = await house.ask(chat(model="tls"), {"x-api-key": "sk-client"})
            assert first.text == second.text == "ab"
            assert (await house.replay(first.stream_id, "1-0")).data == first.data[1:]
            assert len(seen) == 2
            for request in seen:
                assert b"authorization: Bearer sk-engine\r\n" in request and b"sk-client" not in request
            (upstream,) = house.gateway.directory.upstreams
            assert upstream.statistics() == {"idle": 1, "busy": 0, "connecting": 0}, (
                "the second used the first's connection"
            )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_next_connection_to_an_engine_goes_on_with_the_last_one_s_session(
    ours: Pair, version: ssl.TLSVersion
) -> None:
    resumed: list[bool] = []
    async with secure_engine(ours, [], version, resumed, answers=1) as url:
        engine = EngineSettings(name="tls", url=url, models=["tls"], ca_file=ours.certificate)
        async with open_house(engines=[engine]) as house:
            for _ in range(3):
                assert (await house.ask(chat(model="tls"))).text == "ab"
            house.clock.advance(SESSION_S)
            assert (await house.ask(chat(model="tls"))).text == "ab"
            assert (await house.ask(chat(model="tls"))).text == "ab"
    assert resumed == [False, True, True, False, True], "and a certificate is looked at again after an hour"


async def test_a_session_that_an_engine_has_forgotten_is_replaced_by_its_next_one(ours: Pair) -> None:
    """As after its restart: what it is shown then means nothing to it."""
    before: list[bool] = []
    after: list[bool] = []
    context = EngineTls.make(ours.certificate, VirtualClock(0).now)
    for resumed in (before, after):
        async with secure_engine(ours, [], resumed=resumed, answers=1) as url:
            port = int(url.rpartition(":")[2])
            for _ in range(3):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="localhost"
                )
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await reader.read()
                context.keep_session(writer.get_extra_info("ssl_object"))
                writer.close()
    assert (before, after) == ([False, True, True], [False, True, True])


async def test_an_engine_with_a_strange_certificate_is_told_of_in_words(ours: Pair, foreign: Pair) -> None:
    seen: list[bytes] = []
    async with secure_engine(ours, seen) as url:
        wrong = EngineSettings(
            name="wrong", url=url, models=["wrong"], ca_file=foreign.certificate, api_key="sk-engine"
        )
        named = EngineSettings(
            name="named", url=url.replace("localhost", "127.0.0.1"), models=["named"], ca_file=ours.certificate
        )
        async with open_house(engines=[wrong, named]) as house:
            for model in ("wrong", "named"):
                answer = await house.ask(chat(model=model))
                assert answer.status == 502 and answer.error["code"] == "upstream_unreachable"
                message = answer.error["message"]
                assert f"engine {model}" in message and "certificate" in message.lower()
                assert "_ssl.c" not in message and "127.0.0.1" not in message, "no place in a library, and no address"
        assert not seen, "nothing is sent to whom we do not trust"


async def test_an_engine_that_speaks_no_tls_is_told_of_in_words() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(answer) as address:
        engine = EngineSettings(name="plain", url=f"https://{address}", models=["plain"])
        async with open_house(engines=[engine]) as house:
            refused = await house.ask(chat(model="plain"))
            assert refused.status == 502 and "engine plain cannot be reached" in refused.error["message"]
            assert "_ssl.c" not in refused.error["message"]


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_loaded_is_a_setting_s_fault(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    engine = EngineSettings(name="a", url="https://localhost:1", ca_file=str(path))
    with pytest.raises(SettingsError, match="ca_file of engine a"):
        Upstream(engine, Settings(), VirtualClock())
