"""An engine stand-in whose streams end by themselves, after as many events as ``max_tokens`` of their request says.

What lives here: what engine.py does, with an end.
What must not: anything that engine.py does otherwise.
"""

from __future__ import annotations

import argparse
from typing import Any

from control import settle_down
from engine import Connection, Engine
from event import EVENT_BYTES


class EndingEngine(Engine):
    """The wheel, with streams that leave it."""

    def __init__(self, port: int, rate: float, tick_us: int) -> None:
        super().__init__(port, rate, tick_us)
        self.wanted: dict[Connection, int] = {}
        self.ending: list[Connection] = []

    def start_stream(self, connection: Connection, request: dict[str, Any]) -> None:
        self.wanted[connection] = int(request.get("max_tokens") or 0)
        super().start_stream(connection, request)

    def send_event(self, connection: Connection) -> None:
        super().send_event(connection)
        if connection.count == self.wanted[connection]:
            self.ending.append(connection)

    def turn(self, slot: list[Connection]) -> None:
        super().turn(slot)
        for connection in self.ending:
            self.finish(connection)
        self.ending.clear()

    def leave_slot(self, connection: Connection) -> None:
        super().leave_slot(connection)
        self.wanted.pop(connection, None)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free port; the first line on stdout names it")
    parser.add_argument("--rate", type=float, required=True, help="events per second and stream")
    parser.add_argument("--tick-us", type=int, default=970, help="how finely the wheel is divided")
    options = parser.parse_args()
    engine = EndingEngine(options.port, options.rate, options.tick_us)
    settle_down()
    engine.orders.answer(port=engine.listener.getsockname()[1], event_bytes=EVENT_BYTES)
    engine.run()


if __name__ == "__main__":
    main()
