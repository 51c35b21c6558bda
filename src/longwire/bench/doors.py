"""How an answer is read off the wire: one entry for each way in which a gateway may send it.

What lives here: what a door asks for, what its events are and how its end is known.
What must not: sockets, and what is measured of it (reading.py).
"""

from __future__ import annotations

from typing import NamedTuple


class Door(NamedTuple):
    """A framing of events."""

    name: str
    accept: bytes
    """What the request says it wants."""
    is_sse: bool
    """Events end at blank lines, the stream at ``data: [DONE]``; else each HTTP chunk is an event, the last one the end."""
    help: str


DOORS: dict[str, Door] = {
    door.name: door
    for door in (
        Door(
            "sse",
            b"text/event-stream",
            True,
            "Server-sent events, however HTTP frames them. The end marker is `data: [DONE]`.",
        ),
        Door(
            "chunked",
            b"text/plain, text/event-stream;q=0.5",
            False,
            "Of an event stream its events, however HTTP frames them; of any other body each HTTP chunk is one. The end "
            "marker is the chunk of size 0.",
        ),
    )
}
