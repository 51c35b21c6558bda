"""How the kernel is to find out that a connection's other end has vanished.

What lives here: the options of TCP that say so, for either side. What must not: connections, settings, waiting.

A peer whose machine loses power, or whose network does, sends neither FIN nor RST. One that owes us an acknowledgement is found
by TCP_USER_TIMEOUT (RFC 5482), one that owes nothing only by asking it, which is what keep-alive does.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import lru_cache
from typing import Final, Protocol

IDLE_S: Final = 30
"""Silence after which the peer is asked: shorter than the minutes after which NATs and firewalls forget a connection."""
PROBES: Final = 6
"""Questions without an answer that end it: a few may get lost."""
LONGEST_PROBE_INTERVAL_S: Final = 75
"""Linux's own default."""
READER_MARGIN_S: Final = 5.0
"""TCP_USER_TIMEOUT also ends a living peer whose window stays shut. How long a reader may take nothing is slow_reader_s, told
in its own words; the kernel must not be there first."""


class HasOptions(Protocol):
    """A socket, or what a transport gives for one."""

    @property
    def family(self) -> int: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def client_timeout_s(peer_timeout_s: float, slow_reader_s: float) -> float:
    """How long a client may leave sent bytes unacknowledged; 0: as the system has it."""
    return max(peer_timeout_s, slow_reader_s + READER_MARGIN_S) if peer_timeout_s > 0 else 0.0


@lru_cache(maxsize=8)  # clients' and engines'; they change with a reload only
def peer_options(peer_timeout_s: float) -> tuple[tuple[int, int, int], ...]:
    """``(level, option, value)`` of whatever this platform has; none where ``peer_timeout_s`` is 0.

    A vanished peer that owes nothing is found within ``IDLE_S`` and ``peer_timeout_s`` more (at least one probe's second), one
    that owes an acknowledgement within ``peer_timeout_s``.
    """
    if peer_timeout_s <= 0:
        return ()
    interval_s = min(LONGEST_PROBE_INTERVAL_S, max(1, int(peer_timeout_s / PROBES)))
    wanted = {
        "TCP_KEEPIDLE": IDLE_S,
        "TCP_KEEPINTVL": interval_s,
        "TCP_KEEPCNT": min(PROBES, max(1, int(peer_timeout_s / interval_s))),
        "TCP_USER_TIMEOUT": max(1, round(peer_timeout_s * 1000)),
    }
    if not hasattr(socket, "TCP_KEEPIDLE") and hasattr(socket, "TCP_KEEPALIVE"):
        wanted["TCP_KEEPALIVE"] = IDLE_S  # macOS's name for it
    known = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wanted.items() if hasattr(socket, name)
    ]
    return (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known


def set_peer_options(sock: HasOptions | None, peer_timeout_s: float) -> None:
    """Have the kernel watch over a TCP connection; anything else is left alone.

    They are the socket's own, and stay when it is passed to another process.
    """
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # it has been reset already (macOS says EINVAL then); who reads from it will hear of that
        for level, option, value in peer_options(peer_timeout_s):
            sock.setsockopt(level, option, value)
