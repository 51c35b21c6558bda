"""Who generates, who waits for a place, and what an engine's own metrics make of it.

What lives here: the places, the queue behind them, and sums over the answers under way.
What must not: metrics' names (metrics.py), time.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Protocol

from .reply import Queue, Reply


class Parked(Protocol):
    """A connection whose answer waits."""

    def let_in(self) -> None:
        """It has a place: go on."""


class Batch:
    """Generations under way. ``places`` of them run at once, the others wait in the order in which they came; 0: all run."""

    def __init__(self, places: int) -> None:
        self._places = places
        self.running: dict[Reply, None] = {}
        self.waiting: deque[Reply] = deque()
        self._parked: dict[Reply, Parked] = {}
        self._ended_tokens = 0
        self.preemptions = 0

    def __repr__(self) -> str:
        return f"<Batch {len(self.running)} running, {len(self.waiting)} waiting>"

    def enter(self, reply: Reply) -> None:
        """A new generation: it has a place, or the order to wait where its first token would be."""
        if self._places and len(self.running) >= self._places:
            self.waiting.append(reply)
            reply.items = chain([Queue()], reply.items)
        else:
            self.running[reply] = None

    def park(self, reply: Reply, connection: Parked) -> bool:
        """It has come to where it waits; False: it has got a place meanwhile."""
        if reply in self.running:
            return False
        self._parked[reply] = connection
        return True

    def leave(self, reply: Reply) -> None:
        """It is over, or its client has left; the next one has its place."""
        if reply not in self.running:
            self.waiting.remove(reply)
            self._parked.pop(reply, None)
            return
        del self.running[reply]
        self._ended_tokens += reply.generated()
        if self.waiting:
            following = self.waiting.popleft()
            self.running[following] = None
            if (connection := self._parked.pop(following, None)) is not None:
                connection.let_in()

    def preempt(self) -> None:
        """All that run lose their place for a while."""
        self.preemptions += len(self.running)

    @property
    def generated_tokens(self) -> int:
        """Ever, those of answers under way included."""
        return self._ended_tokens + sum(reply.generated() for reply in self.running)

    @property
    def held_tokens(self) -> int:
        """What the answers under way will take of the KV cache."""
        return sum(reply.prompt_tokens + reply.answer_tokens for reply in self.running)
