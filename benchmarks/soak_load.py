"""The load of the soak: long streams, a new one for each that ends, and a tenth of them cut in the middle and resumed.

What lives here: what load.py does, for streams that end by themselves: who is cut when, gaps, and every byte of each event.
What must not: memory, and anything about processes.

The first streams are of all lengths up to the full one, so that from the first full life on streams begin and end evenly.
A gap is more than GAP_NS between two content events of a stream as they arrive here, or between asking for the rest of one
that was cut and its next event. Where the engine sent the two that far apart, it is the engine's and counted apart.

Orders as load.py has them, but for end → ok: to put the delays of a window in order takes half a second, in which every stream
would seem to stand still. And: windows → the delays of each, when nothing streams any more; fill → when so many streams of two
events have come and gone, so that what a gateway keeps of the last so many is full; state → what was counted so far.
"""

from __future__ import annotations

import argparse
import select
import time
from array import array
from collections import deque
from random import Random
from typing import Any, ClassVar

from control import percentile, settle_down
from event import number_and_time
from load import Load
from readers import KnownStream
from soak_bytes import is_exact, post, rest, stream_id

GAP_NS = 500_000_000
PAUSE_NS = 300_000_000
"""How long a client that lost its connection takes to ask for the rest."""
CUT_SHARE = 0.1
SEED = 1
FILL_TOKENS = 2
MAX_WAITING = 64
"""Streams that wait for their first event."""


class SoakStream(KnownStream):
    """A stream of so many events, that is cut at one of them or at none."""

    __slots__ = ("cut_at", "had_gap", "last_sent_ns", "tokens")

    tokens: int
    cut_at: int

    def take_plan(self, tokens: int, cut_at: int) -> None:
        self.tokens, self.cut_at = tokens, cut_at
        self.last_sent_ns = 0
        self.had_gap = False


class SoakLoad(Load):
    """All streams."""

    make_stream: ClassVar[type[SoakStream]] = SoakStream
    streams: dict[int, SoakStream]  # type: ignore[assignment]

    def __init__(self, port: int, concurrent: int, tokens: int) -> None:
        super().__init__(port)
        self.concurrent, self.tokens = concurrent, tokens
        self.dice = Random(SEED)
        self.away: deque[tuple[int, SoakStream]] = deque()
        self.all_events = self.whole = self.cuts = self.resumed = 0
        self.gaps = self.engine_gaps = self.gap_streams = self.broken = 0
        self.longest_ns = self.turn_ns = self.longest_turn_ns = 0
        self.resume_ns = array("q")
        self.filling = 0
        self.goes_on = False
        self.windows: list[array[int]] = []

    # Beginning.

    def open_some(self) -> None:
        now = time.monotonic_ns()
        if self.turn_ns:
            self.longest_turn_ns = max(self.longest_turn_ns, now - self.turn_ns)
            self.turn_ns = now
        while self.away and self.away[0][0] <= now:
            self.resume(self.away.popleft()[1])
        if self.opened < self.wanted and self.opening < MAX_WAITING:
            self.opened += 1
            self.begin_stream()

    def begin_stream(self) -> None:
        """One more, of full length unless it is one of the first."""
        number = self.opened - self.filling
        tokens = FILL_TOKENS if number <= 0 else self.tokens * min(number, self.concurrent) // self.concurrent
        tokens = max(FILL_TOKENS, tokens)
        is_cut = number > 0 and self.dice.random() < CUT_SHARE
        cut_at = self.dice.randrange(tokens // 10, tokens - tokens // 10) if is_cut else -1
        try:
            sock = self.connect()
            sock.send(post(self.port, tokens, is_cut=is_cut))
        except OSError as error:
            self.note(f"no connection: {error}")
            return
        self.opening += 1
        stream = self.streams[sock.fileno()] = SoakStream(sock)
        stream.take_plan(tokens, cut_at)
        self.poller.register(sock, select.EPOLLIN)

    def pause_s(self) -> float:
        if self.opened < self.wanted and self.opening < MAX_WAITING:
            return 0.0
        return max(0.0, (self.away[0][0] - time.monotonic_ns()) / 1e9) if self.away else 1.0

    # Events.

    def on_event(self, stream: SoakStream, data: bytes, at: int, now: int) -> None:  # type: ignore[override]
        super().on_event(stream, data, at, now)
        number, sent_ns = number_and_time(data, at)
        if not is_exact(data, number, sent_ns):
            self.note(f"other bytes than the engine sent: {data[:400]!r}")
        self.all_events += 1
        self.look_at_gap(stream, sent_ns, now)
        if not stream.is_back:
            stream.is_back = True
            self.resumed += 1
            self.resume_ns.append(now - stream.last_ns)
        stream.last_ns, stream.last_sent_ns = now, sent_ns
        if not stream.id:
            stream.id = stream_id(stream.reader.head)
            stream.reader.head = b""
        if number == stream.cut_at and stream.id:
            self.cut(stream, now)

    def look_at_gap(self, stream: SoakStream, sent_ns: int, now: int) -> None:
        gap = now - stream.last_ns if stream.last_ns else 0
        self.longest_ns = max(self.longest_ns, gap)
        if gap <= GAP_NS:
            return
        if stream.last_sent_ns and sent_ns - stream.last_sent_ns > GAP_NS:
            self.engine_gaps += 1
            return
        self.gaps += 1
        self.gap_streams += not stream.had_gap
        stream.had_gap = True

    # Leaving and coming back.

    def cut(self, stream: SoakStream, now: int) -> None:
        """Close its connection, whatever is under way in it."""
        self.cuts += 1
        stream.cut_at = -1
        self.streams.pop(stream.sock.fileno(), None)
        stream.sock.close()
        self.away.append((now + PAUSE_NS, stream))

    def read_slowly(self, stream: SoakStream, data: bytes, now: int) -> None:  # type: ignore[override]
        """As any load; but events behind the one at which the stream was cut are not looked at."""
        reader = stream.reader
        for payload in reader.feed(data):
            if stream.sock.fileno() < 0:
                return
            self.on_payload(stream, payload, now)
        if stream.sock.fileno() < 0:
            return
        stream.clean = reader.at_boundary
        if reader.problem:
            self.drop(stream, reader.problem)
        elif reader.ended:
            self.drop(stream, "" if stream.done else "the body ended without the end marker")

    def resume(self, left: SoakStream) -> None:
        """The same stream through a new connection, from the event on that it has not had."""
        try:
            sock = self.connect()
            sock.send(rest(self.port, left.id, left.next_number - 1))
        except OSError as error:
            self.note(f"no connection: {error}")
            self.broken += 1
            return
        stream = self.streams[sock.fileno()] = SoakStream(sock)
        stream.take_plan(left.tokens, -1)
        stream.id, stream.next_number, stream.had_gap = left.id, left.next_number, left.had_gap
        stream.last_ns, stream.is_back = time.monotonic_ns(), False
        self.poller.register(sock, select.EPOLLIN)

    def drop(self, stream: SoakStream, problem: str) -> None:  # type: ignore[override]
        """One has ended: another begins, until the end."""
        super().drop(stream, problem)
        self.broken += bool(problem)
        self.whole += not problem and stream.next_number == stream.tokens
        self.wanted += self.goes_on

    # Orders.

    def answer_if_reached(self) -> None:
        """As any load; and those that are to come or to come back have not ended."""
        is_due = time.monotonic_ns() > self.deadline_ns
        if self.waiting_for != "finish" or is_due or (self.opened == self.wanted and not self.away):
            super().answer_if_reached()

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "finish":
            self.goes_on = False
            self.wanted = self.opened
        elif order["do"] == "open":
            self.goes_on = True
        if order["do"] == "fill":
            self.filling = int(order["streams"])
            super().obey(order | {"do": "open"})
            self.waiting_for = "finish"  # answered when all have ended
        elif order["do"] == "state":
            self.orders.answer(**self.state())
        elif order["do"] == "end":
            self.measuring = False
            self.windows.append(self.delays_ns)
            self.orders.answer(ok=True)
        elif order["do"] == "windows":
            ordered = [sorted(delays) for delays in self.windows]
            self.orders.answer(
                p50_ms=[percentile(delays, 0.5) / 1e6 for delays in ordered],
                p99_ms=[percentile(delays, 0.99) / 1e6 for delays in ordered],
            )
        else:
            super().obey(order)
        if order["do"] == "begin" and not self.turn_ns:  # what was the longest while all was opened does not count
            self.turn_ns = time.monotonic_ns()
            self.longest_ns = 0
            del self.resume_ns[:]

    def state(self) -> dict[str, Any]:
        resumes = sorted(self.resume_ns)
        return {
            "streams": self.complete + self.broken,
            "whole": self.whole,
            "all_events": self.all_events,
            "broken": self.broken,
            "gaps": self.gaps,
            "gap_streams": self.gap_streams,
            "engine_gaps": self.engine_gaps,
            "load_turn_max_ms": self.longest_turn_ns / 1e6,
            "longest_gap_ms": self.longest_ns / 1e6,
            "cuts": self.cuts,
            "resumed": self.resumed,
            "resume_p99_ms": percentile(resumes, 0.99) / 1e6 if resumes else 0.0,
            "errors": self.errors,
            "examples": self.examples,
        }


def main() -> None:
    """Load one port until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True, help="at once")
    parser.add_argument("--tokens", type=int, required=True, help="events of each")
    options = parser.parse_args()
    load = SoakLoad(options.port, options.streams, options.tokens)
    settle_down()
    load.run()


if __name__ == "__main__":
    main()
