"""How many bytes of a TCP connection were read by us and were written by us, as the kernel counts them.

What lives here: the arithmetic over TCP_INFO and the queues, and the self-test that decides whether this kernel can be
believed.
What must not: anything that acts on the numbers (adopt).

The kernel's counters outlive the process that read and wrote, which is what makes adoption exact. Their corners, each a
row in the tests: a received FIN counts as a byte received but not as one that waits; a SYN that we sent counts as a
byte acknowledged; so does our own FIN.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Final, NamedTuple

from ..words.faultpoint import lacks

TCP_INFO_BYTES: Final = 136
_STATE_AND_COUNTERS = struct.Struct("=B119xQQ")
"""struct tcp_info (linux/tcp.h): the state, then at offset 120 bytes_acked and bytes_received."""

SIOCOUTQ: Final = getattr(termios, "TIOCOUTQ", 0x5411)
MAX_READINGS: Final = 1000
"""Bytes can arrive between two system calls. Nobody sends so fast that a thousand readings in a row disagree."""

_FIN_RECEIVED: Final = frozenset({6, 8, 9, 11})
"""TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING (include/net/tcp_states.h)."""


_FIN_SENT: Final = frozenset({4, 5, 6, 9, 11})
"""FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING."""


class Reading(NamedTuple):
    """One consistent look at a connection."""

    state: int
    acked: int
    received: int
    unread: int
    unacked: int

    @property
    def was_shut(self) -> bool:
        """Whether we had sent our FIN: it counts among the bytes written, and nothing can be written behind it."""
        return self.state in _FIN_SENT


def bytes_read(reading: Reading) -> int:
    """Bytes that were taken out of the socket since the connection was made."""
    return reading.received - reading.unread - (reading.state in _FIN_RECEIVED)


def bytes_written(reading: Reading, *, connected: bool) -> int:
    """Bytes that were put into the socket since the connection was made, whether acknowledged or not.

    ``connected``: we had connected (and our SYN counts), not accepted. A FIN of ours (:attr:`Reading.was_shut`) counts.
    """
    return reading.acked + reading.unacked - connected


def take_reading(sock: socket.socket) -> Reading:
    """Read counters and queues until two looks at the counters agree.

    Raises:
        OSError: the socket is no TCP connection, or will not hold still.
    """
    before = _counters(sock)
    for _ in range(MAX_READINGS):
        unread = _queue(sock, termios.FIONREAD)
        unacked = _queue(sock, SIOCOUTQ)
        after = _counters(sock)
        if after == before:
            return Reading(*after, unread, unacked)
        before = after
    raise OSError("the connection's counters do not hold still")


def counters_work() -> bool:
    """Whether this kernel counts exactly: tried on a loopback connection. False on macOS, gVisor and very old kernels."""
    if not hasattr(socket, "TCP_INFO") or lacks("counters"):
        return False
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            writer = socket.create_connection(server.getsockname(), timeout=2)
            with writer, server.accept()[0] as reader:
                return _count_exactly(writer, reader)
    except OSError:
        return False  # no loopback, no such option, or bytes that do not arrive: all mean no


def _count_exactly(writer: socket.socket, reader: socket.socket) -> bool:
    """Write 10 bytes and read 4 of them: do the counters say so?"""
    reader.settimeout(2)
    writer.sendall(b"x" * 10)
    if len(reader.recv(4, socket.MSG_WAITALL)) != 4:
        return False
    wrote = bytes_written(take_reading(writer), connected=True)
    return wrote == 10 and bytes_read(take_reading(reader)) == 4


def _counters(sock: socket.socket) -> tuple[int, int, int]:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < TCP_INFO_BYTES:
        raise OSError("this kernel's TCP_INFO has no byte counters")
    state, acked, received = _STATE_AND_COUNTERS.unpack(info)
    return state, acked, received


def _queue(sock: socket.socket, request: int) -> int:
    return int.from_bytes(fcntl.ioctl(sock, request, bytes(4)), "little")
