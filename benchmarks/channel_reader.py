"""A channel and one of its many readers: what the next event must be.

What lives here: the state that channel_load.py keeps for each, which there are tens of thousands of.
What must not: the loop, and anything that is measured.
"""

from __future__ import annotations

import socket

from response import ResponseReader


class Channel:
    """A stream, and the event of it that was decoded last."""

    __slots__ = ("data", "id", "number", "sent_ns")

    def __init__(self, stream_id: bytes) -> None:
        self.id = stream_id
        self.data = b"-"  # equal to nothing that is read
        self.number = self.sent_ns = 0


class Reader:
    """One connection."""

    __slots__ = ("channel", "clean", "done", "next_number", "response", "sock")

    def __init__(self, sock: socket.socket, channel: Channel) -> None:
        self.sock = sock
        self.channel = channel
        self.response: ResponseReader | None = ResponseReader()
        self.clean = self.done = False
        self.next_number = -1
