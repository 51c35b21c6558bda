"""A tenant that asks for far more than its share: so many requests a second, whatever becomes of them.

What lives here: an open loop over connections that are kept, and the count of what was answered.
What must not: what others notice of it.

Orders on stdin (see control.py): start → ok; stop → ok, nothing more is asked; count → what was asked, answered and refused.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from itertools import cycle
from typing import cast

import uvloop
from arrivals import encode, lengths
from control import Orders, settle_down

MOST_CONNECTIONS = 1000
"""Beyond it a request is not sent, and counted as kept back: the gateway has no more of this tenant's than that to bear."""
TICK_S = 0.01
LEAST_RETRY = b"\r\nretry-after: "


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, greedy: Greedy) -> None:
        self.greedy = greedy
        self.transport: asyncio.Transport | None = None
        self.received = b""
        self.awaits = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.ask()

    def ask(self) -> None:
        """Send the request."""
        assert self.transport is not None
        self.received, self.awaits = b"", True
        self.transport.write(next(self.greedy.requests))

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, mark, body = self.received.partition(b"\r\n\r\n")
        if not mark:
            return
        _, told, length = head.lower().partition(b"\r\ncontent-length:")
        is_whole = len(body) >= int(length.split(b"\r\n", 1)[0]) if told else body.endswith(b"0\r\n\r\n")
        if is_whole:
            self.greedy.note(int(head[9:12]), has_retry=LEAST_RETRY in head.lower())
            self.awaits = False
            self.greedy.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.greedy.lost(self)


class Greedy:
    """The open loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        lines = "".join(f"{header}\r\n" for header in options.header).encode()
        self.port, self.rate = options.port, options.rate
        answers = lengths(options.answer_tokens)
        self.requests = cycle([encode(options.prompt_tokens, each, lines, keep=True) for each in answers])
        self.orders = Orders()
        self.idle: list[Connection] = []
        self.connections = 0
        self.is_asking = False
        self.due = 0.0
        self.told: Counter[str] = Counter()
        self.opening: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the parent is gone."""
        asyncio.get_running_loop().add_reader(0, self.obey)
        while not self.orders.ended:
            await asyncio.sleep(TICK_S)
            self.due += self.rate * TICK_S if self.is_asking else 0.0
            while self.due >= 1.0:
                self.due -= 1.0
                self.ask()

    def ask(self) -> None:
        """One request more, over a connection that is free."""
        self.told["asked"] += 1
        if self.idle:
            self.idle.pop().ask()
        elif self.connections >= MOST_CONNECTIONS:
            self.told["kept back"] += 1
        else:
            self.connections += 1
            task = asyncio.get_running_loop().create_task(self.open())
            self.opening.add(task)
            task.add_done_callback(self.opening.discard)

    async def open(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Connection(self), "127.0.0.1", self.port)
        except OSError:
            self.connections -= 1
            self.told["failed"] += 1

    def note(self, status: int, *, has_retry: bool) -> None:
        """An answer is whole."""
        self.told["whole" if status == 200 else "refused" if status in {429, 503} else "failed"] += 1
        self.told["refused without Retry-After"] += status in {429, 503} and not has_retry

    def lost(self, connection: Connection) -> None:
        """A connection was closed by the gateway."""
        self.connections -= 1
        if connection in self.idle:
            self.idle.remove(connection)
        self.told["failed"] += connection.awaits

    def obey(self) -> None:
        for order in self.orders.take():
            if order["do"] == "count":
                self.orders.answer(**self.told)
                continue
            self.is_asking = order["do"] == "start"
            self.orders.answer(ok=True)
        if self.orders.ended:
            asyncio.get_running_loop().remove_reader(0)


def main() -> None:
    """Ask until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="requests per second")
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE, sent with each request")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--answer-tokens", type=int, default=5)
    options = parser.parse_args()
    settle_down()
    uvloop.run(Greedy(options).run())


if __name__ == "__main__":
    main()
