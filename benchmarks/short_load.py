"""The load of short requests: so many connections, each asking again at once, or all together at a given rate.

What lives here: one epoll loop over keep-alive connections, the clock of each request, and the check of each answer.
What must not: anything about the gateway that is measured; it is a port.

Orders on stdin (see control.py): closed → ``connections`` ask for ``seconds``, after ``warm_s`` that do not count; paced →
so many requests a second from a schedule made before (Poisson, seeded) for ``seconds``, each by a connection that is idle.
Latencies count from the schedule there: a request for which no connection was idle has waited, and that is in its latency.
Beyond MAX_BEHIND such requests, and those left when time is up, are not sent but counted as skipped.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from array import array
from collections import deque
from random import Random
from typing import Any

from control import Orders, percentile, settle_down, wait_readable
from short_answer import Checker, request

READ_BYTES = 65536
MAX_BEHIND = 2000
MAX_EXAMPLES = 3
DRAIN_NS = 5_000_000_000
LAST_BYTES = b"\r\n0\r\n\r\n"
ALL_NUMBERS = 10**10


class Asker:
    """One connection and what it waits for."""

    __slots__ = ("began_ns", "number", "received", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.number = b""
        self.began_ns = 0


class ShortLoad:
    """All connections and what was measured."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.orders = Orders()
        self.poller = select.epoll()
        self.poller.register(0, select.EPOLLIN)
        self.askers: dict[int, Asker] = {}
        self.idle: deque[Asker] = deque()
        self.checker = Checker()
        self.asked = 0
        self.goes_on = False
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self.latencies_ns = array("q")
        self.errors = self.skipped = 0
        self.examples: list[str] = []
        self.began_ns = time.monotonic_ns()

    def run(self) -> None:
        """Until the parent is gone."""
        while not self.orders.ended:
            self.turn(1.0)

    def turn(self, pause_s: float) -> None:
        """Read what there is to be read."""
        wait_readable(self.poller, pause_s)
        for fd, _mask in self.poller.poll(0):
            if fd:
                self.read(self.askers[fd])
            else:
                for order in self.orders.take():
                    self.obey(order)

    # Asking.

    def connect(self) -> Asker:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asker = self.askers[sock.fileno()] = Asker(sock)
        self.poller.register(sock, select.EPOLLIN)
        return asker

    def ask(self, asker: Asker, began_ns: int) -> None:
        self.asked = (self.asked + 1) % ALL_NUMBERS
        asker.number = b"%010d" % self.asked
        asker.began_ns = began_ns
        try:
            asker.sock.send(request(self.port, asker.number))
        except OSError as error:
            self.replace(asker, f"a request could not be sent: {error}")

    def read(self, asker: Asker) -> None:
        try:
            data = asker.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.replace(asker, f"connection lost: {error}")
            return
        if not data:
            self.replace(asker, "connection closed in an answer" if asker.number else "")
            return
        if asker.received:
            data = asker.received + data
        if data.endswith(LAST_BYTES):
            self.on_answer(asker, data, time.monotonic_ns())
        else:
            asker.received = data
            if not data.startswith(b"HTTP/1.1 200"[: len(data)]):
                self.replace(asker, f"refused: {data[:160]!r}")

    def on_answer(self, asker: Asker, data: bytes, now: int) -> None:
        if problem := self.checker.problem(data, asker.number):
            self.replace(asker, problem)
            return
        self.latencies_ns.append(now - asker.began_ns)
        asker.received, asker.number = b"", b""
        if b"connection: close" in data[: data.find(b"\r\n\r\n")].lower():  # nginx: after 1,000 requests
            self.replace(asker, "")
        else:
            self.is_free(asker)

    def is_free(self, asker: Asker) -> None:
        if self.goes_on:
            self.ask(asker, time.monotonic_ns())
        else:
            self.idle.append(asker)

    def replace(self, asker: Asker, problem: str) -> None:
        """Another connection in its place."""
        if problem:
            self.note(problem)
        if asker in self.idle:
            self.idle.remove(asker)
        del self.askers[asker.sock.fileno()]
        asker.sock.close()
        try:
            self.is_free(self.connect())
        except OSError as error:
            self.note(f"no connection: {error}")

    def note(self, problem: str) -> None:
        self.errors += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(problem[:200])

    # Orders.

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "closed":
            self.closed(order)
        elif order["do"] == "paced":
            self.paced(order)

    def closed(self, order: dict[str, Any]) -> None:
        """Every connection asks again as soon as it has its answer."""
        self.idle.clear()
        self.goes_on = True
        for _ in range(order["connections"] - len(self.askers)):
            self.connect()
        for asker in list(self.askers.values()):
            self.ask(asker, time.monotonic_ns())
        self.turn_until(time.monotonic_ns() + int(order["warm_s"] * 1e9))
        self.reset()
        self.orders.answer(warm=True)
        self.turn_until(self.began_ns + int(order["seconds"] * 1e9))
        self.answer()
        self.goes_on = False
        self.drain()

    def paced(self, order: dict[str, Any]) -> None:
        """Requests at the times of a schedule."""
        due = schedule(order["rate"], order["seconds"], int(order["seed"]))
        self.reset()
        self.orders.answer(warm=True)
        at, began = 0, self.began_ns
        while at < len(due) and not self.orders.ended:
            now = time.monotonic_ns() - began
            if now > order["seconds"] * 1e9:
                self.skipped += len(due) - at
                break
            while at < len(due) and due[at] <= now and self.idle:
                self.ask(self.idle.popleft(), began + due[at])
                at += 1
            while at + MAX_BEHIND < len(due) and due[at + MAX_BEHIND] <= now:
                at += 1
                self.skipped += 1
            late = at < len(due) and due[at] <= now
            self.turn(1.0 if late or at == len(due) else (due[at] - now) / 1e9)
        self.drain()
        self.answer()

    def turn_until(self, end_ns: int) -> None:
        while (left := end_ns - time.monotonic_ns()) > 0 and not self.orders.ended:
            self.turn(left / 1e9)

    def drain(self) -> None:
        """Until every connection has its answer."""
        end_ns = time.monotonic_ns() + DRAIN_NS
        while len(self.idle) < len(self.askers) and time.monotonic_ns() < end_ns and not self.orders.ended:
            self.turn(0.1)

    def answer(self) -> None:
        latencies = sorted(self.latencies_ns)
        self.orders.answer(
            requests=len(latencies),
            seconds=(time.monotonic_ns() - self.began_ns) / 1e9,
            p50_ms=percentile(latencies, 0.5) / 1e6,
            p99_ms=percentile(latencies, 0.99) / 1e6,
            errors=self.errors,
            skipped=self.skipped,
            examples=self.examples,
        )


def schedule(rate: float, seconds: float, seed: int) -> array[int]:
    """When requests are due, in nanoseconds from the start: Poisson arrivals, the same for every target."""
    dice, at, due = Random(seed), 0.0, array("q")
    while (at := at + dice.expovariate(rate)) < seconds:
        due.append(int(at * 1e9))
    return due


def main() -> None:
    """Load one port until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    load = ShortLoad(parser.parse_args().port)
    settle_down()
    load.run()


if __name__ == "__main__":
    main()
