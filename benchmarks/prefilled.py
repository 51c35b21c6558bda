"""An engine stand-in whose streams have a past: the first events come as fast as they are taken, then one by one.

What lives here: what engine.py does, with logs that are long before anything is measured.
What must not: anything that a stream without a past does otherwise.

A turn of the wheel sends a stream many events in one write, and none while some of the last turn are still unsent: the
gateway and the load decide how fast a log fills. Which events are the past is known to the load as well (``--fill``).
Orders as engine.py has them, and: count → how many requests for a stream have come so far, and how many events were sent.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from control import settle_down
from engine import Connection, Engine
from event import EVENT_BYTES, TEMPLATE

AT_ONCE = 256
"""Events in one write, about 64 KiB: several blocks of a log, and little enough that thousands of streams share a core."""
LAST_AT_ONCE, LAST = 4, 100
"""The last events of the past come in small writes: what a gateway notes of its readers is then as it is in steady state."""


class PrefilledEngine(Engine):
    """The wheel, with ``fill`` events of each stream sent at once."""

    def __init__(self, port: int, rate: float, tick_us: int, fill: int) -> None:
        super().__init__(port, rate, tick_us)
        self.fill = fill

    def send_event(self, connection: Connection) -> None:
        if connection.count >= self.fill:
            super().send_event(connection)
        elif not connection.unsent:
            left = self.fill - connection.count
            count = min(AT_ONCE, left - LAST) if left > LAST else min(LAST_AT_ONCE, left)
            now = time.monotonic_ns()
            first = connection.count
            connection.send(b"".join(TEMPLATE % (number, now) for number in range(first, first + count)))
            connection.count += count
            self.sent += count

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "count":
            self.orders.answer(started=self.started, sent=self.sent)
        else:
            super().obey(order)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free port; the first line on stdout names it")
    parser.add_argument("--rate", type=float, required=True, help="events per second and stream, after the first")
    parser.add_argument("--tick-us", type=int, default=970, help="how finely the wheel is divided")
    parser.add_argument("--fill", type=int, default=0, help="events of each stream that are sent as fast as possible")
    options = parser.parse_args()
    engine = PrefilledEngine(options.port, options.rate, options.tick_us, options.fill)
    settle_down()
    engine.orders.answer(port=engine.listener.getsockname()[1], event_bytes=EVENT_BYTES)
    engine.run()


if __name__ == "__main__":
    main()
