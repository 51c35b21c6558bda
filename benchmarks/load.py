"""The load: opens streams, checks every event of each, and measures how long events were on their way.

What lives here: one epoll loop that reads N streams and counts.
What must not: anything about the gateway that is measured; it is a port.

Orders on stdin (see control.py): open → when so many more are open and have had an event; begin → ok; end → what was
measured in between; finish → when every stream has ended (the engine was told to end them), with all that was wrong. Open
and finish name a time after which they answer in any case.

Delay is the time when ``recv`` has returned an event less the time when the engine sent it. This process's own queueing
is therefore inside it, which is why each benchmark also measures the way without any gateway.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from control import Orders, percentile, settle_down, wait_readable
from event import MARK, MODEL, TOTAL_MARK, number_and_time, total
from response import ResponseReader

READ_BYTES = 16384
MAX_OPENING = 64  # streams that wait for their first event; far below any accept queue
OPEN_AT_ONCE = 8
MAX_EXAMPLES = 3
MAX_EXAMPLE_CHARS = 160
BODY = b'{"model":"%s","messages":[{"role":"user","content":"count for me"}],"stream":true}' % MODEL.encode()


class Stream:
    """One stream: what the next event must be."""

    __slots__ = ("clean", "done", "next_number", "reader", "sock", "total")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = ResponseReader()
        self.clean = False  # the next byte opens an HTTP chunk that opens an event
        self.next_number = 0
        self.total = -1
        self.done = False  # the end marker was seen


class Load:
    """All streams and what was measured."""

    make_stream: ClassVar[Callable[[socket.socket], Stream]] = Stream

    def __init__(self, port: int, headers: Sequence[str] = ()) -> None:
        self.port = port
        self.headers = "".join(f"{header}\r\n" for header in headers).encode()
        self.request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
            b"accept: text/event-stream\r\ncontent-length: %d\r\n%s\r\n%s" % (port, len(BODY), self.headers, BODY)
        )
        self.poller = select.epoll()
        self.poller.register(0, select.EPOLLIN)
        self.orders = Orders()
        self.streams: dict[int, Stream] = {}
        self.wanted = self.opened = self.opening = self.complete = 0
        self.errors = 0
        self.examples: list[str] = []
        self.measuring = False
        self.waiting_for = ""
        self.deadline_ns = 0
        self.begin()

    def begin(self) -> None:
        """Measure from here on."""
        self.events = self.reads = 0
        self.delays_ns = array("q")
        self.began_ns = time.monotonic_ns()

    def run(self) -> None:
        """Until the parent is gone."""
        while not self.orders.ended:
            self.open_some()
            self.answer_if_reached()
            wait_readable(self.poller, self.pause_s())
            for fd, _mask in self.poller.poll(0):
                if fd == 0:
                    for order in self.orders.take():
                        self.obey(order)
                elif fd in self.streams:
                    self.read(self.streams[fd])

    def pause_s(self) -> float:
        """How long to wait for events before there is something else to do."""
        return 0.0 if self.opened < self.wanted and self.opening < MAX_OPENING else 1.0

    def open_some(self) -> None:
        for _ in range(min(OPEN_AT_ONCE, self.wanted - self.opened, MAX_OPENING - self.opening)):
            self.opened += 1
            try:
                sock = self.connect()
                sock.send(self.request)  # some 200 bytes into an empty buffer
            except OSError as error:
                self.note(f"no connection: {error}")
                continue
            self.opening += 1
            self.streams[sock.fileno()] = self.make_stream(sock)
            self.poller.register(sock, select.EPOLLIN)

    def connect(self) -> socket.socket:
        """A connection to the gateway. Others may come from other addresses."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        sock.setblocking(False)
        return sock

    def read(self, stream: Stream) -> None:
        """One read. Nearly all are exactly one event in one HTTP chunk, which is checked without copying twice."""
        try:
            data = stream.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(stream, f"connection lost: {error}")
            return
        now = time.monotonic_ns()
        self.reads += 1
        if stream.clean and (at := data.find(MARK)) > 0 and _is_one_event(data):
            self.on_event(stream, data, at, now)
        elif data:
            self.read_slowly(stream, data, now)
        elif stream.done and not stream.reader.chunked:
            self.drop(stream, "")
        else:
            self.drop(stream, f"connection closed by the gateway after {stream.next_number} events")

    def read_slowly(self, stream: Stream, data: bytes, now: int) -> None:
        reader = stream.reader
        for payload in reader.feed(data):
            self.on_payload(stream, payload, now)
        stream.clean = reader.at_boundary
        if reader.problem:
            self.drop(stream, reader.problem)
        elif reader.ended:
            self.drop(stream, "" if stream.done else "the body ended without the end marker")

    def on_payload(self, stream: Stream, payload: bytes, now: int) -> None:
        if (at := payload.find(MARK)) >= 0:
            self.on_event(stream, payload, at, now)
        elif (at := payload.find(TOTAL_MARK)) >= 0:
            stream.total = total(payload, at)
            if stream.total != stream.next_number:
                self.note(f"{stream.next_number} events arrived of {stream.total} sent")
        elif payload == b"[DONE]":
            stream.done = True
            if stream.total < 0:
                self.note("end marker without finish")
        elif b'"usage"' not in payload and not (stream.total >= 0 and b'"finish_reason":"stop"' in payload):
            # Some gateways say the finish in an event of its own, behind the last content.
            self.note(f"unexpected: {payload[:300]!r}")

    def on_event(self, stream: Stream, data: bytes, at: int, now: int) -> None:
        number, sent_ns = number_and_time(data, at)
        if number != stream.next_number:
            self.note(f"event {number} where {stream.next_number} was due")
        if number == 0:
            self.opening -= 1
        stream.next_number = number + 1
        if self.measuring:
            self.events += 1
            self.delays_ns.append(now - sent_ns)

    def drop(self, stream: Stream, problem: str) -> None:
        """Forget a stream; with a problem it counts as an error, without as complete."""
        del self.streams[stream.sock.fileno()]
        stream.sock.close()
        if problem:
            self.opening -= stream.next_number == 0
            self.note(problem)
        else:
            self.complete += 1

    def note(self, problem: str) -> None:
        self.errors += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(problem[:MAX_EXAMPLE_CHARS])

    def obey(self, order: dict[str, Any]) -> None:
        what = order["do"]
        if what in {"open", "finish"}:
            self.wanted += order.get("streams", 0)
            self.waiting_for = what
            self.deadline_ns = time.monotonic_ns() + int(order["within_s"] * 1e9)
        elif what == "begin":
            self.begin()
            self.measuring = True
            self.orders.answer(ok=True)
        elif what == "end":
            self.measuring = False
            self.orders.answer(**self.measured())

    def answer_if_reached(self) -> None:
        """The answers that have to wait for something, or for long enough."""
        opened = self.waiting_for == "open" and self.opened == self.wanted and self.opening == 0
        finished = self.waiting_for == "finish" and not self.streams
        if opened or finished or (self.waiting_for and time.monotonic_ns() > self.deadline_ns):
            self.waiting_for = ""
            self.orders.answer(
                open=len(self.streams), complete=self.complete, errors=self.errors, examples=self.examples
            )

    def measured(self) -> dict[str, float]:
        seconds = (time.monotonic_ns() - self.began_ns) / 1e9
        delays = sorted(self.delays_ns)
        return {
            "events": self.events,
            "reads": self.reads,
            "seconds": seconds,
            "mean_ms": sum(delays) / max(1, len(delays)) / 1e6,
            "p50_ms": percentile(delays, 0.5) / 1e6,
            "p90_ms": percentile(delays, 0.9) / 1e6,
            "p99_ms": percentile(delays, 0.99) / 1e6,
            "p999_ms": percentile(delays, 0.999) / 1e6,
            "max_ms": percentile(delays, 1.0) / 1e6,
        }


def _is_one_event(data: bytes) -> bool:
    """Whether these bytes are one HTTP chunk that holds one whole block, to the byte."""
    line_end = data.find(b"\r\n")
    return (
        data.endswith(b"\n\n\r\n")
        and data.find(b"\n\n") == len(data) - 4
        and data[:line_end] == b"%x" % (len(data) - line_end - 4)
    )


def main() -> None:
    """Load one port until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE, sent with each request")
    options = parser.parse_args()
    load = Load(options.port, options.header)
    settle_down()
    load.run()


if __name__ == "__main__":
    main()
