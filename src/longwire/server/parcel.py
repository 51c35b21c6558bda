"""A connection on its way to another shard, as a message.

What lives here: what the receiving shard must know, as JSON and descriptors, and back, with everything checked.
What must not: sockets' and channels' work (passing.py), connections.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

CONNECTION: Final = "connection"
OPERATOR: Final = "operator"

MAX_INLINE_BYTES = 4 * 1024
"""What is longer lies in a memfd beside the socket. JSON spends up to six characters on a byte, and a message must stay far
below what a channel takes."""

MAX_CARRIED_BYTES = 4 << 20
"""More than a shard holds of a request whose head it has just read: the largest head that can be set, one read, and what may be
pipelined behind it."""

MAX_PEER_CHARS = 64
MAX_COUNT = 1 << 63

_SEALS: Final = 0x0001 | 0x0002 | 0x0004 | 0x0008
"""F_SEAL_SEAL, _SHRINK, _GROW and _WRITE: what the receiver reads can no longer change under it."""
_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034


class Parcel(NamedTuple):
    """A connection at the beginning of a request."""

    slot: int
    """The slot that it is for."""
    serial: int
    peer: str
    read_base: int
    """Bytes that had been read on the connection before the first of ``data``."""
    written: int
    """Bytes that had been written on it."""
    data: bytes
    """What was received of the request and what is pipelined behind it."""


def pack(parcel: Parcel) -> tuple[dict[str, object], int]:
    """The message, and a memfd that must go along and be closed (-1: none).

    Raises:
        OSError: no memfd could be made.
        ValueError: there is more data than whoever gets it would take.
    """
    if len(parcel.data) > MAX_CARRIED_BYTES:
        raise ValueError(f"{len(parcel.data)} bytes of a request are more than are passed on")
    message: dict[str, object] = {
        "kind": CONNECTION,
        "for": parcel.slot,
        "serial": parcel.serial,
        "peer": parcel.peer,
        "read_base": parcel.read_base,
        "written": parcel.written,
        "bytes": len(parcel.data),
    }
    if len(parcel.data) <= MAX_INLINE_BYTES:
        message["data"] = parcel.data.decode("latin-1")
        return message, -1
    return message, _sealed(parcel.data)


def _sealed(data: bytes) -> int:
    fd = os.memfd_create("longwire-request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def unpack(message: Mapping[str, Any], fds: Sequence[int]) -> Parcel:
    """Inverse of :func:`pack`; ``fds`` are those behind the socket's. None is closed here.

    Raises:
        ValueError: it is not what :func:`pack` makes.
    """
    peer = message.get("peer")
    if not isinstance(peer, str) or len(peer) > MAX_PEER_CHARS:
        raise ValueError("the peer's address is missing or too long")
    slot, serial, read_base, written, size = (
        _count(message, name) for name in ("for", "serial", "read_base", "written", "bytes")
    )
    if not 0 < size <= MAX_CARRIED_BYTES:
        raise ValueError(f"{size} bytes of a request")
    data = _inline(message) if "data" in message else _read_sealed(fds, size)
    if len(data) != size:
        raise ValueError(f"{len(data)} of {size} bytes of a request")
    return Parcel(slot, serial, peer, read_base, written, data)


def _count(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is no count")
    return value


def _inline(message: Mapping[str, Any]) -> bytes:
    data = message["data"]
    if not isinstance(data, str):
        raise ValueError("the request's bytes are no text")
    return data.encode("latin-1")  # UnicodeEncodeError is a ValueError


def _read_sealed(fds: Sequence[int], size: int) -> bytes:
    if len(fds) != 1:
        raise ValueError(f"{len(fds)} descriptors where the request's bytes should be")
    try:
        seals = fcntl.fcntl(fds[0], _F_GET_SEALS)
        if seals & _SEALS != _SEALS:
            raise ValueError("the request's bytes may still change")
        return os.pread(fds[0], size, 0)
    except OSError as exc:
        raise ValueError(f"the request's bytes cannot be read: {exc.strerror}") from exc
