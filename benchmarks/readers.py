"""Readers that know their streams: the longest gap of each around a kill, and coming back after a cut.

What lives here: what load.py does, and for each stream its id, its slot, and when its last event came.
What must not: anything about processes; whoever gives the orders kills them.

Orders as load.py has them, and: fill → when each stream has had its first ``--fill`` events; mark → gaps are measured from
here on; gaps → what they were, for the streams of a slot and for the others; cut → every connection closed at once;
return → all of them opened again within ``over_s`` through GET /v1/streams/{id}, answered when each has had an event.
"""

from __future__ import annotations

import argparse
import re
import select
import socket
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from control import percentile, settle_down
from load import Load, Stream

NO_SLOT = -1
OTHER_SOURCES = 8
"""Addresses of loopback that connections come from: each has 28,000 ports, some of which are still in TIME_WAIT."""
_ID = re.compile(rb"x-stream-id: (lw_[0-9a-f]{32}([0-9a-f]{2}))", re.IGNORECASE)


class KnownStream(Stream):
    """A stream with a name and a clock."""

    __slots__ = ("id", "is_back", "last_ns", "longest_ns", "slot")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.id = b""
        self.slot = NO_SLOT
        self.last_ns = self.longest_ns = 0
        self.is_back = True


class Readers(Load):
    """All streams, each with its longest gap."""

    make_stream: ClassVar[type[KnownStream]] = KnownStream
    streams: dict[int, KnownStream]  # type: ignore[assignment]

    def __init__(self, port: int, headers: Sequence[str], fill: int) -> None:
        super().__init__(port, headers)
        self.fill = fill
        self.filled = 0
        self.away: list[KnownStream] = []
        self.back = 0
        self.returning = 0
        self.return_ns = self.begun_ns = self.connected_ns = self.served_ns = 0
        self._source = 0

    def connect(self) -> socket.socket:
        self._source = (self._source + 1) % OTHER_SOURCES
        sock = socket.create_connection(
            ("127.0.0.1", self.port), timeout=5, source_address=(f"127.0.0.{2 + self._source}", 0)
        )
        sock.setblocking(False)
        return sock

    # Gaps.

    def on_event(self, stream: Stream, data: bytes, at: int, now: int) -> None:
        super().on_event(stream, data, at, now)
        assert isinstance(stream, KnownStream)
        if now - stream.last_ns > stream.longest_ns and stream.last_ns:
            stream.longest_ns = now - stream.last_ns
        stream.last_ns = now
        self.filled += stream.next_number == self.fill
        if not stream.is_back:
            stream.is_back = True
            self.back += 1
            self.served_ns = now
        elif stream.slot == NO_SLOT and (found := _ID.search(stream.reader.head)):
            stream.id, stream.slot = found[1], int(found[2], 16)
            stream.reader.head = b""

    def gaps(self, slot: int) -> dict[str, object]:
        """The longest gap of each stream since the mark, one that still lasts included; in milliseconds."""
        now = time.monotonic_ns()
        hit, others = [], []
        for stream in self.streams.values():
            longest = round(max(stream.longest_ns, now - stream.last_ns) / 1e6, 3)
            (hit if stream.slot == slot else others).append(longest)
        return {
            "hit": sorted(hit),
            "others_p99_ms": percentile(sorted(others), 0.99),
            "errors": self.errors,
            "examples": self.examples,
            "open": len(self.streams),
        }

    # Leaving and coming back.

    def cut(self) -> None:
        """Close every connection at once, read or unread."""
        self.away = list(self.streams.values())
        self.streams.clear()
        for stream in self.away:
            stream.sock.close()

    def come_back(self, over_s: float) -> None:
        """Begin to open them again, evenly over so long."""
        self.back = 0
        self.returning = len(self.away)
        self.begun_ns = time.monotonic_ns()
        self.return_ns = int(over_s * 1e9)

    def pause_s(self) -> float:
        return 0.0 if self.return_ns else super().pause_s()

    def open_some(self) -> None:
        super().open_some()
        if not self.away or not self.return_ns:
            return
        passed = min(1.0, (time.monotonic_ns() - self.begun_ns) / self.return_ns)
        due = int(passed * self.returning) - (self.returning - len(self.away))
        for _ in range(min(due, 64)):
            self.resume(self.away.pop())
        if not self.away:
            self.return_ns = 0
            self.connected_ns = time.monotonic_ns()

    def resume(self, left: KnownStream) -> None:
        """The same stream through a new connection, from the event on that it has not had."""
        try:
            sock = self.connect()
            sock.send(
                b"GET /v1/streams/%s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: text/event-stream\r\n"
                b"last-event-id: %d\r\n%s\r\n" % (left.id, self.port, left.next_number - 1, self.headers)
            )
        except OSError as error:
            self.note(f"no connection: {error}")
            return
        stream = KnownStream(sock)
        stream.id, stream.slot, stream.next_number = left.id, left.slot, left.next_number
        stream.last_ns, stream.is_back = left.last_ns, False
        self.streams[sock.fileno()] = stream
        self.poller.register(sock, select.EPOLLIN)

    # Orders.

    def obey(self, order: dict[str, Any]) -> None:
        what = order["do"]
        if what in ("fill", "return"):
            self.waiting_for = what
            self.deadline_ns = time.monotonic_ns() + int(order["within_s"] * 1e9)
        if what == "return":
            self.come_back(order["over_s"])
        elif what == "mark":
            for stream in self.streams.values():
                stream.longest_ns = 0
            self.orders.answer(ok=True)
        elif what == "gaps":
            self.orders.answer(**self.gaps(int(order["slot"])))
        elif what == "cut":
            self.cut()
            self.orders.answer(cut=len(self.away))
        elif what != "fill":
            super().obey(order)

    def answer_if_reached(self) -> None:
        is_due = self.waiting_for and time.monotonic_ns() > self.deadline_ns
        if self.waiting_for == "fill" and (self.filled == self.opened or not self.fill or is_due):
            self.waiting_for = ""
            self.orders.answer(filled=self.filled, errors=self.errors, examples=self.examples)
        elif self.waiting_for == "return" and (self.back + self.errors >= self.returning or is_due):
            self.waiting_for = ""
            self.orders.answer(
                back=self.back,
                errors=self.errors,
                examples=self.examples,
                connected_s=(self.connected_ns - self.begun_ns) / 1e9,
                served_s=(self.served_ns - self.begun_ns) / 1e9,
            )
        else:
            super().answer_if_reached()


def main() -> None:
    """Read from one port until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fill", type=int, default=0, help="events of each stream that are its past")
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE, sent with each request")
    options = parser.parse_args()
    readers = Readers(options.port, options.header, options.fill)
    settle_down()
    readers.run()


if __name__ == "__main__":
    main()
