"""The kernel's counters: one table for every corner, tried on real loopback sockets."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest

from longwire.streams.counters import Reading, bytes_read, bytes_written, counters_work, take_reading

SENT, TAKEN = 1000, 300

# (how the peer ended, whether all was read, which side we are)
CASES = list(itertools.product(["open", "fin", "rst", "half_closed"], ["read", "unread"], ["accepted", "connected"]))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """``(accepted, connected)``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = socket.create_connection(server.getsockname(), timeout=5)
        accepted, _ = server.accept()
    with accepted, connected:
        yield accepted, connected


def end(peer: socket.socket, ours: socket.socket, how: str) -> None:
    """Let the peer (or we ourselves) end the connection, and wait until the kernel has seen it."""
    if how == "fin":
        peer.shutdown(socket.SHUT_WR)
        ours.settimeout(5)
        while take_reading(ours).state == 1:
            ours.recv(1, socket.MSG_PEEK)
    elif how == "rst":
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        peer.close()
    elif how == "half_closed":
        ours.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(("how", "taken", "side"), CASES)
def test_counts_are_exact(pair: tuple[socket.socket, socket.socket], how: str, taken: str, side: str) -> None:
    """Bytes read and written come out right whatever happened to the connection."""
    accepted, connected = pair
    ours, peer = (accepted, connected) if side == "accepted" else (connected, accepted)
    peer.sendall(b"p" * SENT)
    ours.sendall(b"o" * SENT)
    assert len(ours.recv(TAKEN, socket.MSG_WAITALL)) == TAKEN
    assert len(peer.recv(SENT, socket.MSG_WAITALL)) == SENT
    count = TAKEN
    if taken == "read":
        count += len(ours.recv(SENT - TAKEN, socket.MSG_WAITALL))
    end(peer, ours, how)
    reading = take_reading(ours)
    if how == "rst":
        # What was unread is gone with the connection; what had been read and written is still counted.
        reading = reading._replace(unread=SENT - count)
    assert bytes_read(reading) == count
    assert reading.was_shut == (how == "half_closed")
    assert bytes_written(reading, connected=side == "connected") == SENT + reading.was_shut, "a FIN of ours counts"


@pytest.mark.parametrize(
    ("reading", "read", "written"),
    [
        (Reading(1, 0, 0, 0, 0), 0, 0),
        (Reading(1, 100, 50, 20, 7), 30, 107),
        (Reading(8, 0, 51, 0, 0), 50, 0),
        (Reading(9, 0, 51, 10, 0), 40, 0),
        (Reading(11, 0, 1, 0, 0), 0, 0),
        (Reading(6, 5, 6, 0, 0), 5, 5),
    ],
)
def test_the_arithmetic(reading: Reading, read: int, written: int) -> None:
    """A FIN in the states that show it is no byte."""
    assert bytes_read(reading) == read
    assert bytes_written(reading, connected=False) == written


def test_this_kernel_counts_exactly() -> None:
    assert counters_work()
