"""Messages between two processes of one gateway: a JSON object each, and descriptors beside it.

What lives here: one end of a channel, and sending and receiving descriptors with bytes, whole or not at all.
What must not: what a message means, waiting for one (the callers have loops of their own).

A channel is a SOCK_SEQPACKET pair: the kernel keeps messages apart, so no half of one is ever seen, and a process that is
killed in mid-send has sent all or nothing. Descriptors that lie in a channel unread stay open.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_MESSAGE_BYTES = 32 * 1024
"""A SEQPACKET record must fit one of the kernel's socket buffers (skb): beyond its linear part that depends on free pages in a
row, and the whole must fit the send buffer, 208 KiB where nobody has changed it. What is longer goes into a memfd."""

MAX_DESCRIPTORS = 200
"""Per message. The kernel's own limit is 253 (SCM_MAX_FD), and more is refused; a round number below it."""

_RIGHTS_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize)

# As plain numbers: each operator of an enum makes an object, in Python, and a message takes several.
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # not on macOS, where no channel is made
_RIGHTS_CUT = int(socket.MSG_CTRUNC)
_RECORD_CUT = int(socket.MSG_TRUNC)
_PEEK = int(socket.MSG_PEEK)


class Channel:
    """One end. It belongs to whoever holds it, and closes its socket when told to."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two ends of one channel, both blocking and close-on-exec."""
        one, other = seqpacket_pair()
        return cls(one), cls(other)

    def __repr__(self) -> str:
        if self._sock.fileno() < 0:
            return "<Channel closed>"
        how = "blocking" if self._sock.getblocking() else "non-blocking"
        return f"<Channel at descriptor {self._sock.fileno()}, {how}>"

    def send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """Send one message. The descriptors are duplicated on their way: the sender's own stay open.

        Raises:
            ValueError: the message is beyond a bound; nothing was sent.
            BlockingIOError: non-blocking, and the other side does not read; nothing was sent.
            BrokenPipeError: the other side is gone.
        """
        data = json.dumps(dict(message), separators=(",", ":")).encode()
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(data)} bytes does not fit a channel ({MAX_MESSAGE_BYTES} do)")
        send_with_descriptors(self._sock, data, fds)

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its descriptors (close-on-exec, the caller's from now on); None at the end.

        Raises:
            BlockingIOError: non-blocking, and there is none.
            ValueError: it is no JSON object, or cut off; its descriptors are closed.
            OSError: not all of its descriptors arrived, see :func:`receive_with_descriptors`.
        """
        return self._receive(0)

    def _receive(self, flags: int) -> tuple[dict[str, Any], list[int]] | None:
        data, fds = receive_with_descriptors(self._sock, MAX_MESSAGE_BYTES, flags)
        if not data:
            close_all(fds)
            return None
        try:
            message = json.loads(data)
            if not isinstance(message, dict):
                raise ValueError(f"a message must be a JSON object, and this is {type(message).__name__}")
        except ValueError:
            close_all(fds)
            raise
        return message, fds

    def peek(self) -> tuple[dict[str, Any], list[int]] | None:
        """As :meth:`receive`, but the message stays, for whoever comes after us, until :meth:`drop`."""
        return self._receive(_PEEK)

    def drop(self) -> None:
        """Take the next message out, and its descriptors with it."""
        self._sock.recv(1)

    def fileno(self) -> int:
        return self._sock.fileno()

    def set_blocking(self, is_blocking: bool) -> None:
        """Of the end and not of the process: whoever else holds this end finds it so, too."""
        self._sock.setblocking(is_blocking)

    def close(self) -> None:
        self._sock.close()


# Bytes and descriptors.


def seqpacket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_with_descriptors(sock: socket.socket, data: bytes, fds: Sequence[int], flags: int = 0) -> None:
    """One record.

    Raises:
        ValueError: too many descriptors.
    """
    if len(fds) > MAX_DESCRIPTORS:
        raise ValueError(f"{len(fds)} descriptors do not fit one message ({MAX_DESCRIPTORS} do)")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([data], rights, flags)


def receive_with_descriptors(sock: socket.socket, max_bytes: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """One record; no bytes at the end.

    Raises:
        OSError: with EMFILE: this process may open no more descriptors, or more came than may. Those that did arrive are
            closed, because which ones are missing cannot be known.
        ValueError: the record is longer than ``max_bytes``.
    """
    flags |= _CLOSE_ON_EXEC
    try:
        data, ancillary, seen, _ = sock.recvmsg(max_bytes, _RIGHTS_BYTES, flags)
    except ConnectionResetError:
        # Said once, before all else that it has said: the other side has ended, and left something of ours unread.
        data, ancillary, seen, _ = sock.recvmsg(max_bytes, _RIGHTS_BYTES, flags)
    fds = array("i")
    for level, kind, rights in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    if seen & (_RIGHTS_CUT | _RECORD_CUT):
        close_all(fds)
        if seen & _RIGHTS_CUT:
            raise OSError(errno.EMFILE, "not all descriptors of a message arrived: the limit of open files is reached")
        raise ValueError(f"a record is longer than {max_bytes} bytes, and its end is lost")
    return data, list(fds)


def close_all(fds: Iterable[int]) -> None:
    """Close what came and cannot be used."""
    for fd in fds:
        os.close(fd)
