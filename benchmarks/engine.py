"""An engine stand-in whose every event says when it was sent.

What lives here: a small HTTP server that answers POST …/chat/completions with an endless, evenly paced SSE stream.
What must not: faults, text, jitter (``longwire sim`` has those). This one is a clock with a socket.

A hand-written epoll loop and not asyncio, so that the time in an event is read immediately before the system call that
sends it. One event is one HTTP chunk and one write. All streams are paced by one wheel of slots: the k-th stream that
connects sits in slot k modulo their number, so that N streams are spread evenly over the period whatever N is.

Orders on stdin (see control.py): begin → ok (lateness is counted from here on); finish → what was counted, after which
every stream ends properly at its next turn.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from array import array
from typing import Any

from control import Orders, percentile, settle_down, wait_readable
from event import EVENT_BYTES, MODEL, TEMPLATE, ending

BACKLOG = 4096
READ_BYTES = 65536
MAX_REQUEST_BYTES = 1 << 20
MAX_UNSENT_BYTES = 1 << 20  # a gateway that does not read: its stream skips turns, which is counted
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1767225600, "owned_by": "bench"}]}
ABOUT = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}
FOUND = {
    b"/v1/models": MODELS,
    b"/health": {"status": "ok"},
    **dict.fromkeys([b"/model_info", b"/get_model_info", b"/server_info", b"/get_server_info"], ABOUT),
}
"""What can be got. Routers send nothing to an engine before it has answered for its health and its model."""


def reply(status: str, body: object) -> bytes:
    """A short JSON answer."""
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status.encode(),
        len(data),
        data,
    )


class Connection:
    """One gateway connection: a request being read, or a stream being sent."""

    __slots__ = ("count", "received", "slot", "sock", "unsent", "with_usage")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.unsent = b""
        self.slot: list[Connection] | None = None
        self.count = 0
        self.with_usage = False

    def send(self, data: bytes) -> None:
        """Send now what the kernel takes and keep the rest; a dead peer is noticed by the reading side."""
        if self.unsent:
            self.unsent += data
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return
        if sent < len(data):
            self.unsent = data[sent:]

    def send_unsent(self) -> None:
        """Try what an earlier write left behind."""
        data, self.unsent = self.unsent, b""
        self.send(data)

    def take_request(self) -> tuple[bytes, bytes, bytes] | None:
        """Method, path and body of the next complete request."""
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if not found:
            return None
        lines = head.split(b"\r\n")
        length = 0
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return None
        self.received = rest[length:]
        method, path, _version = lines[0].split(b" ", 2)
        return method, path, rest[:length]


class Engine:
    """The loop: accept, read requests, and turn the wheel."""

    def __init__(self, port: int, rate: float, tick_us: int) -> None:
        period_ns = 1e9 / rate
        slot_count = max(1, round(period_ns / (tick_us * 1000)))
        self.tick_ns = period_ns / slot_count
        self.slots: list[list[Connection]] = [[] for _ in range(slot_count)]
        self.started = 0
        self.finishing = False
        self.poller = select.epoll()
        self.orders = Orders()
        self.connections: dict[int, Connection] = {}
        self.listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self.listener.setblocking(False)
        self.poller.register(self.listener, select.EPOLLIN)
        self.poller.register(0, select.EPOLLIN)
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self.sent = self.skipped = self.delayed = 0
        self.late_ns = array("q")

    def run(self) -> None:
        """Until the parent is gone."""
        clock = time.monotonic_ns
        slots, slot_count, tick_ns = self.slots, len(self.slots), self.tick_ns
        origin, tick = clock(), 1
        while not self.orders.ended:
            due = origin + int(tick * tick_ns)
            now = clock()
            if now >= due:
                self.late_ns.append(now - due)
                self.turn(slots[tick % slot_count])
                tick += 1
            else:
                wait_readable(self.poller, (due - now) / 1e9)
            # Looked at once per turn, also when late: a wheel that has to catch up must not starve its readers.
            for fd, _mask in self.poller.poll(0):
                self.on_ready(fd)

    def turn(self, slot: list[Connection]) -> None:
        """One event for every stream of a slot."""
        if self.finishing:
            for connection in slot.copy():
                self.finish(connection)
            return
        for connection in slot:
            if connection.unsent:
                connection.send_unsent()
                self.delayed += 1
                if len(connection.unsent) > MAX_UNSENT_BYTES:
                    self.skipped += 1
                    continue
            self.send_event(connection)

    def send_event(self, connection: Connection) -> None:
        connection.send(TEMPLATE % (connection.count, time.monotonic_ns()))
        connection.count += 1
        self.sent += 1

    def finish(self, connection: Connection) -> None:
        """The proper end of a stream; its connection can be used again."""
        self.leave_slot(connection)
        connection.send(ending(connection.count, with_usage=connection.with_usage))

    def leave_slot(self, connection: Connection) -> None:
        if connection.slot is not None:
            connection.slot.remove(connection)
            connection.slot = None

    def on_ready(self, fd: int) -> None:
        if fd == 0:
            for order in self.orders.take():
                self.obey(order)
        elif fd == self.listener.fileno():
            self.accept()
        elif fd in self.connections:
            self.read(self.connections[fd])

    def accept(self) -> None:
        for _ in range(64):
            try:
                sock, _address = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[sock.fileno()] = Connection(sock)
            self.poller.register(sock, select.EPOLLIN)

    def read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.received += data
        is_http2 = connection.received.startswith(b"PRI ")  # a router that tries whether we speak gRPC
        if not data or len(connection.received) > MAX_REQUEST_BYTES or is_http2:
            self.close(connection)
            return
        while connection.slot is None and (request := connection.take_request()) is not None:
            self.answer(connection, *request)

    def close(self, connection: Connection) -> None:
        self.leave_slot(connection)
        del self.connections[connection.sock.fileno()]
        connection.sock.close()

    def answer(self, connection: Connection, method: bytes, path: bytes, body: bytes) -> None:
        path = path.partition(b"?")[0]
        if method == b"POST" and path.endswith(b"/chat/completions"):
            self.start_stream(connection, json.loads(body))
        elif method == b"GET" and path in FOUND:
            connection.send(reply("200 OK", FOUND[path]))
        else:
            connection.send(reply("404 Not Found", {"error": {"message": "not here", "type": "not_found_error"}}))

    def start_stream(self, connection: Connection, request: dict[str, Any]) -> None:
        if not request.get("stream"):
            connection.send(reply("400 Bad Request", {"error": {"message": "this stand-in only streams"}}))
            return
        connection.with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        connection.count = 0
        connection.slot = self.slots[self.started % len(self.slots)]
        connection.slot.append(connection)
        self.started += 1
        connection.send(HEAD)
        self.send_event(connection)  # at once, as a prefill's first token; the wheel has the rest

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "begin":
            self.reset()
            self.orders.answer(ok=True)
        elif order["do"] == "finish":
            self.finishing = True
            late = sorted(self.late_ns)
            self.orders.answer(
                sent=self.sent,
                skipped=self.skipped,
                delayed=self.delayed,
                late_p50_ms=percentile(late, 0.5) / 1e6,
                late_p99_ms=percentile(late, 0.99) / 1e6,
            )


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True, help="0: any free port; the first line on stdout names it")
    parser.add_argument("--rate", type=float, required=True, help="events per second and stream")
    parser.add_argument("--tick-us", type=int, default=970, help="how finely the wheel is divided")
    options = parser.parse_args()
    engine = Engine(options.port, options.rate, options.tick_us)
    settle_down()
    engine.orders.answer(port=engine.listener.getsockname()[1], event_bytes=EVENT_BYTES)
    engine.run()


if __name__ == "__main__":
    main()
