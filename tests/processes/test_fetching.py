"""Fetching what the dead had, from those who answer as guardians do."""

from __future__ import annotations

import socket
from array import array
from threading import Thread
from types import SimpleNamespace
from typing import cast

import pytest

from longwire.adopt import Rows
from longwire.keeper.channel import send_with_descriptors, seqpacket_pair
from longwire.processes import bequest as module
from longwire.processes.bequest import Bequest

# What is not closed here belongs to a process that ends, and takes it along.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def fetch_named(*sockets: tuple[int, int], ends: dict[int, int]) -> dict[tuple[int, int], socket.socket]:
    """What rows with these sockets get."""
    with socket.create_server(("127.0.0.1", 0)) as public:
        found, newcomers = Bequest(ends).fetch(cast(Rows, SimpleNamespace(sockets=sockets)), public)
    assert not newcomers
    return found


def guardian(has: dict[int, socket.socket]) -> int:
    """An end at which somebody answers as a guardian does."""
    keepers, mine = seqpacket_pair()

    def answer() -> None:
        while request := mine.recv(1 << 16):
            words = array("I", request)
            numbers = [number for number in words[1:] if number in has]
            send_with_descriptors(mine, array("I", [words[0], *numbers]).tobytes(), [has[n].fileno() for n in numbers])
        mine.close()

    Thread(target=answer, daemon=True).start()
    return keepers.detach()


def test_every_socket_comes_from_whoever_had_it() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    ends = {4: guardian({10: pairs[0][0], 11: pairs[1][0]}), 6: guardian({10: pairs[2][0]})}
    found = fetch_named((4, 10), (4, 11), (6, 10), (4, 99), (7, 10), ends=ends)
    assert set(found) == {(4, 10), (4, 11), (6, 10)}
    for (key, sock), n in zip(sorted(found.items()), range(3), strict=True):
        pairs[n][1].send(b"%d" % key[0])
        assert sock.recv(9) == b"%d" % key[0]
        sock.close()
    for one, other in pairs:
        one.close()
        other.close()


def test_a_guardian_that_is_gone_or_silent_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FETCH_S", 0.01)
    gone, mine = seqpacket_pair()
    mine.close()
    silent, _kept = seqpacket_pair()
    one, other = socket.socketpair()
    ends = {1: gone.detach(), 2: silent.detach(), 3: guardian({10: one})}
    found = fetch_named((1, 10), (2, 10), (3, 10), ends=ends)
    assert set(found) == {(3, 10)}
    assert "fetch_failed" in caplog.text
    for sock in (found[3, 10], one, other, _kept):
        sock.close()


def test_nothing_left_is_nothing_fetched() -> None:
    assert fetch_named(ends={}) == {}
