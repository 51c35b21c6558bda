"""A tenant that behaves badly: it floods a gateway with requests, or opens streams and never reads them.

What lives here: one epoll loop that misbehaves in one of two ways.
What must not: measuring; others do that meanwhile.

flood: each connection asks for a stream, hangs up at its first bytes, and is opened again, as fast as all that goes.
stuck: each connection asks for a stream, has a small receive buffer, and is never read.

Orders on stdin (see control.py): start → ok, with so many connections; count → requests sent and refused; stop → ok, all are
closed.
"""

from __future__ import annotations

import argparse
import select
import socket
from typing import Any

from control import Orders, settle_down, wait_readable

RECEIVE_BYTES = 4096
FIRST_BYTES = 16384
OPEN_AT_ONCE = 16
PAUSE_S = 0.5


class Flood:
    """Connections that are opened again when they are closed, or kept and not read."""

    def __init__(self, port: int, headers: list[str], model: str, *, reads: bool) -> None:
        body = b'{"model":"%s","messages":[{"role":"user","content":"more"}],"stream":true}' % model.encode()
        lines = "".join(f"{header}\r\n" for header in headers).encode()
        self.port, self.reads = port, reads
        self.request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n%s\r\n%s" % (len(body), lines, body)
        )
        self.wanted = self.sent = self.refused = 0
        self.sockets: dict[int, socket.socket] = {}
        self.orders = Orders()
        self.poller = select.epoll()
        self.poller.register(0, select.EPOLLIN)

    def run(self) -> None:
        """Until the parent is gone."""
        while not self.orders.ended:
            for _ in range(min(OPEN_AT_ONCE, self.wanted - len(self.sockets))):
                self.open()
            wait_readable(self.poller, 0.0 if len(self.sockets) < self.wanted else PAUSE_S)
            for fd, _mask in self.poller.poll(0):
                if fd == 0:
                    for order in self.orders.take():
                        self.obey(order)
                elif fd in self.sockets:
                    self.hang_up(self.sockets.pop(fd))

    def open(self) -> None:
        sock = socket.socket()
        try:
            if not self.reads:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.settimeout(5)
            sock.connect(("127.0.0.1", self.port))
            sock.send(self.request)
        except OSError:
            self.refused += 1
            sock.close()
            return
        self.sent += 1
        self.sockets[sock.fileno()] = sock
        if self.reads:
            self.poller.register(sock, select.EPOLLIN)

    def hang_up(self, sock: socket.socket) -> None:
        try:
            answer = sock.recv(FIRST_BYTES)
        except OSError:
            answer = b""
        self.refused += b" 200 " not in answer[:20]
        sock.close()

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "start":
            self.wanted = int(order["connections"])
            self.orders.answer(ok=True)
        elif order["do"] == "count":
            self.orders.answer(sent=self.sent, refused=self.refused, open=len(self.sockets))
        else:
            self.wanted = 0
            while self.sockets:
                self.sockets.popitem()[1].close()
            self.orders.answer(ok=True)


def main() -> None:
    """Misbehave until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE, sent with each request")
    parser.add_argument("--model", default="bench")
    parser.add_argument("--stuck", action="store_true", help="never read, instead of hanging up")
    options = parser.parse_args()
    flood = Flood(options.port, options.header, options.model, reads=not options.stuck)
    settle_down()
    flood.run()


if __name__ == "__main__":
    main()
