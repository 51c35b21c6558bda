"""The floor for passing: two event loops that hand a connection to each other, and keep nothing of it.

What lives here: the least that two shards on the same event loop must do: read, send the descriptor with the bytes, make
a transport of it over there, answer. What must not: parsing, rows, anything that survives a kill.

It answers any request; the path's last character is the slot (0 or 1) that must do so.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

import uvloop
from control import Orders, settle_down

MAX_BYTES = 4096
BACKLOG = 16
BODY = b"x" * 400
"""About as long as what a gateway says of a stream."""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


class Slot:
    """One of the two loops."""

    def __init__(self, number: int, other: socket.socket) -> None:
        self.number, self.other = number, other
        self.is_over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._loop.add_reader(other.fileno(), self._receive)

    def _receive(self) -> None:
        data, fds, _, _ = socket.recv_fds(self.other, MAX_BYTES, 1)
        if not data:
            self.is_over.set()  # the other loop is gone
            return
        sock = socket.socket(fileno=fds[0])
        sock.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: Passed(self, data), sock))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)


class Connection(asyncio.Protocol):
    """Answers what is for its slot, and sends itself away with all else."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        path = data[: data.index(b" HTTP/")]
        if int(path[-1:]) == self._slot.number:
            self._transport.write(ANSWER)
            return
        self._transport.pause_reading()
        fd = self._transport.get_extra_info("socket").fileno()
        socket.send_fds(self._slot.other, [data], [fd])
        self._transport.abort()


class Passed(Connection):
    """One that comes with its request."""

    def __init__(self, slot: Slot, data: bytes) -> None:
        super().__init__(slot)
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.data_received(self._data)


async def serve(number: int, other: socket.socket, listening: socket.socket | None) -> None:
    """Until the other loop, or whoever started this, is gone."""
    slot = Slot(number, other)
    if listening is not None:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Connection(slot), sock=listening)
        loop.add_reader(0, slot.is_over.set)  # nothing is said there: it ends with whoever started this
        Orders.answer(port=listening.getsockname()[1])
    await slot.is_over.wait()


def main() -> None:
    """The second loop is a child's."""
    settle_down()
    listening = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        listening.close()
        one.close()
        uvloop.run(serve(1, other, None))
        os._exit(0)
    other.close()
    uvloop.run(serve(0, one, listening))


if __name__ == "__main__":
    main()
