"""What the kernel was told about a peer that may vanish, read back from real sockets of both sides."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.house import CHUNKED, HOLD, chat, delta, in_chunks, open_house

from longwire.sockets import (
    IDLE_S,
    LONGEST_PROBE_INTERVAL_S,
    READER_MARGIN_S,
    client_timeout_s,
    peer_options,
    set_peer_options,
)

linux = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this platform has no TCP_USER_TIMEOUT")
OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


def options_of(sock: socket.socket) -> tuple[int, ...]:
    """Whether it is kept alive, and the numbers."""
    tcp = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS]
    return (sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *tcp)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            yield client, accepted


@linux
@pytest.mark.parametrize(
    ("peer_timeout_s", "expected"),
    [
        (60, (1, 30, 10, 6, 60_000)),
        (65, (1, 30, 10, 6, 65_000)),
        (10, (1, 30, 1, 6, 10_000)),
        (3, (1, 30, 1, 3, 3_000)),
        (0.25, (1, 30, 1, 1, 250)),
        (3600, (1, 30, 75, 6, 3_600_000)),
    ],
)
def test_a_vanished_peer_is_looked_for(
    peer_timeout_s: float, expected: tuple[int, ...], pair: tuple[socket.socket, socket.socket]
) -> None:
    for sock in pair:
        set_peer_options(sock, peer_timeout_s)
        assert options_of(sock) == expected


@linux
@pytest.mark.parametrize("peer_timeout_s", [0.01, 0.5, 1, 2, 5.9, 6, 7, 60, 599, 3600])
def test_it_is_found_in_time(peer_timeout_s: float) -> None:
    """By asking alone, within the time that is given after the first 30 s; never by more than a probe's second."""
    numbers = {option: value for _, option, value in peer_options(peer_timeout_s)}
    asked_s = numbers[socket.TCP_KEEPINTVL] * numbers[socket.TCP_KEEPCNT]
    assert asked_s <= max(1, peer_timeout_s) and numbers[socket.TCP_KEEPINTVL] <= LONGEST_PROBE_INTERVAL_S
    assert numbers[socket.TCP_KEEPIDLE] == IDLE_S and numbers[socket.TCP_USER_TIMEOUT] >= 1


@linux
def test_zero_leaves_the_system_s_own(pair: tuple[socket.socket, socket.socket]) -> None:
    before = options_of(pair[0])
    set_peer_options(pair[0], 0)
    assert options_of(pair[0]) == before and before[0] == 0


def test_what_is_no_tcp_is_left_alone() -> None:
    left, right = socket.socketpair()
    with left, right:
        set_peer_options(left, 60)
        assert left.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    set_peer_options(None, 60)


def test_a_socket_that_is_gone_already_is_no_error() -> None:
    class Gone:
        family = socket.AF_INET

        def setsockopt(self, level: int, option: int, value: int, /) -> None:
            raise OSError("gone")

    set_peer_options(Gone(), 60)


def test_a_platform_without_these_options_has_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OPTIONS, "TCP_KEEPALIVE"):
        monkeypatch.delattr(socket, name, raising=False)
    peer_options.cache_clear()
    assert peer_options(60) == ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),)
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 16, raising=False)
    peer_options.cache_clear()
    assert peer_options(60)[1:] == ((socket.IPPROTO_TCP, 16, IDLE_S),)
    peer_options.cache_clear()


@pytest.mark.parametrize(
    ("peer_timeout_s", "slow_reader_s", "expected"), [(60, 60, 60 + READER_MARGIN_S), (600, 60, 600), (0, 60, 0)]
)
def test_a_slow_reader_is_told_so_before_the_kernel_cuts_it(
    peer_timeout_s: float, slow_reader_s: float, expected: float
) -> None:
    assert client_timeout_s(peer_timeout_s, slow_reader_s) == expected


@linux
@pytest.mark.parametrize(
    ("settings", "client", "engine"),
    [
        ({}, (1, 30, 10, 6, 65_000), (1, 30, 10, 6, 60_000)),
        ({"peer_timeout_s": 90.0, "slow_reader_s": 20.0}, (1, 30, 15, 6, 90_000), (1, 30, 15, 6, 90_000)),
        ({"peer_timeout_s": 0.0}, None, None),
    ],
)
async def test_both_sides_of_the_gateway_are_told(
    settings: dict[str, Any], client: tuple[int, ...] | None, engine: tuple[int, ...] | None
) -> None:
    async with open_house(**settings) as house:
        house.engine.will_say(CHUNKED + in_chunks(delta("a"), last=False), HOLD)
        raw = await house.connect()
        raw.post(chat(model="script"))
        await raw.head()
        (connection,) = house.gateway.listener.connections
        upstream = next(each for each in house.gateway.directory.upstreams if each._busy)
        (call,) = upstream._busy
        assert call.transport is not None
        for transport, expected in ((connection.transport, client), (call.transport, engine)):
            found = options_of(transport.get_extra_info("socket"))
            assert found == expected or (expected is None and found[-1] == 0)
