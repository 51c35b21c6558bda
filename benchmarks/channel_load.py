"""The load of channels: many readers of each of some streams that somebody else has started.

What lives here: one epoll loop that reads N connections and checks every event of each.
What must not: anything about the gateway that is measured; it is a port.

All readers of a stream get the same bytes. The first that reads an event decodes and checks it, byte by byte; the others
compare theirs with it and see that it is the one that was due. So a reading costs a few microseconds, on cores that the
gateway needs too. A process has as many connections as it may have open files, from several addresses of loopback.

Orders on stdin (see control.py): read → ``readers`` of each of ``ids`` are connected, when all have had an event; begin → ok;
end → what was measured; finish → when every stream has ended. Read and finish name a time after which they answer anyway.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from array import array
from typing import Any

from channel_reader import Channel, Reader
from control import Orders, percentile, settle_down, wait_readable
from event import MARK, TOTAL_MARK, number_and_time, total
from load import MAX_EXAMPLES
from response import ResponseReader
from soak_bytes import is_exact, rest

READ_BYTES = 16384
MAX_OPENING = 128
OPEN_AT_ONCE = 16
FIRST_SOURCE, SOURCES = 2, 16
"""Addresses of loopback that connections come from, 127.0.0.2 and on: each has some 28,000 ports."""


class ChannelLoad:
    """All readers and what was measured."""

    def __init__(self, port: int, first_source: int) -> None:
        self.port, self.first_source = port, first_source
        self.poller = select.epoll()
        self.poller.register(0, select.EPOLLIN)
        self.orders = Orders()
        self.readers: dict[int, Reader] = {}
        self.todo: list[Channel] = []
        self.opened = self.opening = self.complete = self.errors = 0
        self.examples: list[str] = []
        self.waiting_for = ""
        self.deadline_ns = 0
        self.measuring = False
        self.begin()

    def begin(self) -> None:
        """Measure from here on."""
        self.events = 0
        self.delays_ns = array("q")
        self.began_ns = time.monotonic_ns()

    def run(self) -> None:
        """Until the parent is gone."""
        readers = self.readers
        while not self.orders.ended:
            self.open_some()
            self.answer_if_reached()
            wait_readable(self.poller, 0.0 if self.todo and self.opening < MAX_OPENING else 1.0)
            for fd, _mask in self.poller.poll(0):
                if fd in readers:
                    self.read(readers[fd])
                elif fd == 0:
                    for order in self.orders.take():
                        self.obey(order)

    # Opening.

    def open_some(self) -> None:
        for _ in range(min(OPEN_AT_ONCE, len(self.todo), MAX_OPENING - self.opening)):
            channel = self.todo.pop()
            self.opened += 1
            source = f"127.0.0.{self.first_source + self.opened % SOURCES}"
            try:
                sock = socket.create_connection(("127.0.0.1", self.port), timeout=20, source_address=(source, 0))
                sock.setblocking(False)
                sock.send(rest(self.port, channel.id, -1).replace(b"last-event-id: -1\r\n", b""))
            except OSError as error:
                self.note(f"no connection: {error}")
                continue
            self.opening += 1
            self.readers[sock.fileno()] = Reader(sock, channel)
            self.poller.register(sock, select.EPOLLIN)

    # Reading.

    def read(self, reader: Reader) -> None:
        try:
            data = reader.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(reader, f"connection lost: {error}")
            return
        now = time.monotonic_ns()
        channel = reader.channel
        if reader.clean and data == channel.data:  # another reader has had it checked
            if channel.number != reader.next_number:
                self.note(f"event {channel.number} where {reader.next_number} was due")
            reader.next_number = channel.number + 1
            if self.measuring:
                self.events += 1
                self.delays_ns.append(now - channel.sent_ns)
        elif not data:
            self.drop(reader, "" if reader.done else f"connection closed after {reader.next_number} events")
        elif not (reader.clean and self.learn(reader, data, now)):
            self.read_slowly(reader, data, now)

    def learn(self, reader: Reader, data: bytes, now: int) -> bool:
        """The first to read an event, if it is exactly one in one HTTP chunk."""
        line_end, at = data.find(b"\r\n"), data.find(MARK)
        if at < 0 or data[:line_end] != b"%x" % (len(data) - line_end - 4) or data.find(b"\n\n") != len(data) - 4:
            return False
        self.on_event(reader, data, at, now)
        number, sent_ns = number_and_time(data, at)
        channel = reader.channel
        if number >= channel.number:  # else this reader is behind the others
            channel.data, channel.number, channel.sent_ns = data, number, sent_ns
        return True

    def read_slowly(self, reader: Reader, data: bytes, now: int) -> None:
        if reader.response is None:
            reader.response = ResponseReader()
            reader.response.status = 200
        response = reader.response
        for payload in response.feed(data):
            self.on_payload(reader, payload, now)
        reader.clean = response.at_boundary and reader.next_number >= 0
        if response.problem:
            self.drop(reader, response.problem)
        elif response.ended:
            self.drop(reader, "" if reader.done else "the body ended without the end marker")
        elif reader.clean:
            reader.response = None  # thousands of them would be this process's memory

    def on_payload(self, reader: Reader, payload: bytes, now: int) -> None:
        if (at := payload.find(MARK)) >= 0:
            self.on_event(reader, payload, at, now)
        elif (at := payload.find(TOTAL_MARK)) >= 0 and total(payload, at) != reader.next_number:
            self.note(f"{reader.next_number} events arrived of {total(payload, at)} sent")
        elif payload == b"[DONE]":
            reader.done = True

    def on_event(self, reader: Reader, data: bytes, at: int, now: int) -> None:
        number, sent_ns = number_and_time(data, at)
        if reader.next_number < 0:
            self.opening -= 1
            reader.next_number = 0
        if number != reader.next_number or not is_exact(data, number, sent_ns):
            self.note(f"where event {reader.next_number} was due: {data[:300]!r}")
        reader.next_number = number + 1
        if self.measuring:
            self.events += 1
            self.delays_ns.append(now - sent_ns)

    def drop(self, reader: Reader, problem: str) -> None:
        """Forget a reader; with a problem it counts as an error, without as complete."""
        del self.readers[reader.sock.fileno()]
        reader.sock.close()
        if problem:
            self.opening -= reader.next_number < 0
            self.note(problem)
        else:
            self.complete += 1

    def note(self, problem: str) -> None:
        self.errors += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(problem[:200])

    # Orders.

    def obey(self, order: dict[str, Any]) -> None:
        what = order["do"]
        if what == "begin":
            self.begin()
            self.measuring = True
            self.orders.answer(ok=True)
        elif what == "end":
            self.measuring = False
            self.orders.answer(**self.measured())
        elif what in {"read", "finish"}:
            channels = [Channel(each.encode()) for each in order.get("ids", ())]
            self.todo = channels * int(order.get("readers", 0))
            self.waiting_for = what
            self.deadline_ns = time.monotonic_ns() + int(order["within_s"] * 1e9)

    def answer_if_reached(self) -> None:
        """The answers that have to wait for something, or for long enough."""
        reached = not self.todo and not self.opening if self.waiting_for == "read" else not self.readers
        if self.waiting_for and (reached or time.monotonic_ns() > self.deadline_ns):
            self.waiting_for = ""
            self.orders.answer(**self.state())

    def state(self) -> dict[str, Any]:
        counts = {"open": len(self.readers), "complete": self.complete, "errors": self.errors}
        return counts | {"examples": self.examples}

    def measured(self) -> dict[str, Any]:
        delays = sorted(self.delays_ns)
        found = {f"p{name}_ms": percentile(delays, share) / 1e6 for name, share in (("50", 0.5), ("99", 0.99))}
        return (
            found
            | self.state()
            | {
                "events": self.events,
                "seconds": (time.monotonic_ns() - self.began_ns) / 1e9,
                "sum_ms": sum(delays) / 1e6,
            }
        )


def main() -> None:
    """Load one port until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first-source", type=int, default=FIRST_SOURCE, help="127.0.0.N is its first address")
    options = parser.parse_args()
    load = ChannelLoad(options.port, options.first_source)
    settle_down()
    load.run()


if __name__ == "__main__":
    main()
