"""The beginning of an answer, held back until there is something in it that a client must not get twice.

What lives here: the events before the first token, and how many of them are held. What must not: reading events (the watch).

An engine says its role, perhaps some empty deltas and comments, and only then a token. Until that has come, another engine can
be asked and nobody notices; so what comes before is not in the log yet, whose entries are never taken back.
"""

from __future__ import annotations

from ..wire.framer import Found

MAX_HELD_BYTES = 16 * 1024
"""Sixty role frames, or the comments of ten minutes. An engine that sends more before its first token is passed on as it is."""


class Opening:
    """What has come and is not passed on yet. ``is_over`` from the first token on."""

    __slots__ = ("_bytes", "events", "is_over")

    def __init__(self) -> None:
        self.events: list[Found] = []
        self.is_over = False
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Opening {'over' if self.is_over else f'{len(self.events)} events held'}>"

    def hold(self, event: Found) -> None:
        """One more that says nothing yet."""
        self.events.append(event)
        self._bytes += event.length or len(event.block)  # one that was rewritten has no length of its own

    @property
    def is_too_large(self) -> bool:
        """Whether no more is held back."""
        return self._bytes > MAX_HELD_BYTES

    def finish(self) -> list[Found]:
        """From now on everything passes; returns what was held."""
        held, self.events = self.events, []
        self.is_over = True
        return held
