"""An engine stand-in for channels: as many slots on the wheel as there are streams, and a pace that can be changed.

What lives here: what engine.py does, with the rate as an order.
What must not: anything that engine.py does otherwise.

One stream in each slot: events that many readers wait for come one by one, evenly over the period, and not in bunches.
Orders as engine.py has them, and: pace → from now on every stream has ``rate`` events a second; late → how late events were
sent since begin.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from control import percentile, settle_down, wait_readable
from engine import Engine
from event import EVENT_BYTES


class PacedEngine(Engine):
    """The wheel, at any speed."""

    def __init__(self, port: int, rate: float, streams: int) -> None:
        super().__init__(port, rate, round(1e6 / rate / streams))
        self.origin_ns, self.tick = time.monotonic_ns(), 1

    def run(self) -> None:
        """Until the parent is gone."""
        clock, slots = time.monotonic_ns, self.slots
        while not self.orders.ended:
            due = self.origin_ns + int(self.tick * self.tick_ns)
            now = clock()
            if now >= due:
                self.late_ns.append(now - due)
                self.turn(slots[self.tick % len(slots)])
                self.tick += 1
            else:
                wait_readable(self.poller, (due - now) / 1e9)
            for fd, _mask in self.poller.poll(0):
                self.on_ready(fd)

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "pace":
            self.set_pace(order["rate"])
            self.orders.answer(ok=True)
        elif order["do"] == "late":
            self.orders.answer(late_p99_ms=percentile(sorted(self.late_ns), 0.99) / 1e6, skipped=self.skipped)
        else:
            super().obey(order)

    def set_pace(self, rate: float) -> None:
        self.tick_ns = 1e9 / rate / len(self.slots)
        self.tick %= len(self.slots)  # the same stream is next
        self.origin_ns = time.monotonic_ns() - int((self.tick - 1) * self.tick_ns)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free port; the first line on stdout names it")
    parser.add_argument("--rate", type=float, required=True, help="events per second and stream, to begin with")
    parser.add_argument("--streams", type=int, required=True, help="how many there will be")
    options = parser.parse_args()
    engine = PacedEngine(options.port, options.rate, options.streams)
    settle_down()
    engine.orders.answer(port=engine.listener.getsockname()[1], event_bytes=EVENT_BYTES)
    engine.run()


if __name__ == "__main__":
    main()
