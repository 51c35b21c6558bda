"""An engine stand-in that answers at once: one token, finish, usage if asked for, end marker, all in one write.

What lives here: an epoll loop with an answer that is ready but for the number that it repeats from the request.
What must not: pace, and anything that costs time (engine.py has streams that last).

The request's message is ``@`` and ten digits, and so is the token: an answer that reaches the wrong client is noticed.
"""

from __future__ import annotations

import argparse
import select
import socket

from control import Orders, settle_down
from engine import BACKLOG, FOUND, HEAD, READ_BYTES, reply
from short_answer import MARK, NUMBER_DIGITS, PLAIN, WITH_USAGE

REPLIES = {path: reply("200 OK", body) for path, body in FOUND.items()}
"""To routers that ask after health and model before they send anything."""
NOT_HERE = reply("404 Not Found", {"error": {"message": "not here", "type": "not_found_error"}})
ASKS_USAGE = b'"include_usage"'


class ShortEngine:
    """The loop."""

    def __init__(self, port: int) -> None:
        self.orders = Orders()
        self.listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self.listener.setblocking(False)
        self.poller = select.epoll()
        self.poller.register(self.listener, select.EPOLLIN)
        self.poller.register(0, select.EPOLLIN)
        self.connections: dict[int, socket.socket] = {}
        self.received: dict[int, bytes] = {}

    def run(self) -> None:
        """Until the parent is gone."""
        connections, poll, read = self.connections, self.poller.poll, self.read
        listener = self.listener.fileno()
        while not self.orders.ended:
            for fd, _mask in poll(1.0):
                if fd in connections:
                    read(fd, connections[fd])
                elif fd == listener:
                    self.accept()
                elif fd == 0:
                    self.orders.take()

    def accept(self) -> None:
        for _ in range(64):
            try:
                sock, _address = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[sock.fileno()] = sock
            self.poller.register(sock, select.EPOLLIN)

    def read(self, fd: int, sock: socket.socket) -> None:
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or data.startswith(b"PRI "):  # or a router that tries whether we speak gRPC
            del self.connections[fd]
            self.received.pop(fd, None)
            sock.close()
            return
        if fd in self.received:
            data = self.received.pop(fd) + data
        answer, rest = answers(data)
        if rest:
            self.received[fd] = rest
        if answer:
            try:
                sock.send(answer)  # less than any socket's buffer: nobody asks twice before it is read
            except OSError:
                return  # a peer that is gone is noticed by the next read


def answers(data: bytes) -> tuple[bytes, bytes]:
    """To all complete requests, and what is left of the bytes."""
    found = b""
    while (body_at := data.find(b"\r\n\r\n") + 4) >= 4:
        at = data[:body_at].lower().find(b"content-length:")
        end = body_at + (int(data[at + 15 : data.index(b"\r", at)]) if at >= 0 else 0)
        if len(data) < end:
            break
        found += answer_to(data[:end])
        data = data[end:]
    return found, data


def answer_to(request: bytes) -> bytes:
    """One answer to one request."""
    if request.startswith(b"POST") and (at := request.find(MARK)) >= 0:
        number = request[at + len(MARK) : at + len(MARK) + NUMBER_DIGITS]
        return HEAD + (WITH_USAGE if ASKS_USAGE in request else PLAIN) % number
    return REPLIES.get(request.split(b" ", 2)[1].partition(b"?")[0], NOT_HERE)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free port; the first line on stdout names it")
    engine = ShortEngine(parser.parse_args().port)
    settle_down()
    engine.orders.answer(port=engine.listener.getsockname()[1])
    engine.run()


if __name__ == "__main__":
    main()
