"""Requests that wait for room: fair among tenants, each with a deadline, and none costs anything once it has left.

What lives here: the queue as a value that others push to, pop from and look at. What must not: clocks and timers, what is
waited for, what becomes of a request (the gateway's matters).

**Fair.** Each tenant has a lane, in which its requests keep their order, and lanes are served in turn by deficit round robin
weighed in tokens: a lane at the front is served while its balance is above nothing, each request is taken off the balance
when it is served, and a lane that has used its balance up goes to the end and is given a quantum more. So over any time
tenants that wait get equal numbers of tokens for their weights, however many requests they have sent and whatever their
size, and the difference between any two is never more than a quantum and one request of each. A lane that begins to wait goes
before those that have waited on, with one quantum: who asks seldom is not to wait for a whole round of those who flood.
That is no way to be first always, because a lane that has emptied keeps its place among the others until its turn is over
(as fq_codel has it for packets).

**Bounded.** In all, and for each tenant: a queue in memory is a promise, and one that cannot be kept within the deadline is
better not made. What one request counts is bounded, too, so that each operation takes a bounded number of steps: a lane is
passed over at most MAX_QUANTA times for a request of its.

**Deadlines** are kept in ticks: the entries of one tick lie in one place, and the ticks in a heap. A tick is looked at when it
is over, so that nobody is refused early, and nobody later than a tick. To leave is to be taken out of two dictionaries.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection
from enum import Enum
from itertools import chain
from math import ceil
from typing import Generic, TypeVar

QUANTUM_TOKENS = 256
"""A short request with its answer. Less means more turns that pass a lane over, more a coarser order."""
LEAST_COST_TOKENS = 128
"""What one request counts at least: it takes a place, however short it is. So a lane serves two in a row, not a thousand."""
MAX_QUANTA = 256
"""What one request counts at most, in quanta: 65,536 tokens are a long context, and the bound keeps the turns few."""
TICK_S = 1 / 128
"""Deadlines are seconds; a hundredth late is not noticed. A power of two, so that no rounding makes one early."""
SPARE_TICKS = 64
"""Emptied ticks that may lie in the heap before it is built anew, besides as many as are in use."""

T = TypeVar("T")


class Full(Enum):
    """Why a request may not wait."""

    TENANT = "tenant"
    """Its tenant has as many waiting as it may."""
    QUEUE = "queue"
    """There are as many in all as there may be."""


class Entry(Generic[T]):
    """A request that waits. Whoever holds it may take it out of the queue."""

    __slots__ = ("_lane", "_tick", "cost_tokens", "deadline", "item")

    def __init__(self, item: T, cost_tokens: int, deadline: float, lane: _Lane[T]) -> None:
        self.item = item
        self.cost_tokens = cost_tokens
        self.deadline = deadline
        self._tick = ceil(deadline / TICK_S)
        self._lane: _Lane[T] | None = lane

    def __repr__(self) -> str:
        return f"<Entry {self.cost_tokens} tokens until {self.deadline:g}, {'waits' if self.is_waiting else 'over'}>"

    @property
    def is_waiting(self) -> bool:
        """Whether it is still in the queue."""
        return self._lane is not None


class _Lane(Generic[T]):
    """One tenant's requests in their order, and what it may still take in this turn."""

    __slots__ = ("balance", "entries", "quantum", "tenant")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant = tenant
        self.quantum = QUANTUM_TOKENS * weight
        self.balance = self.quantum
        self.entries: OrderedDict[Entry[T], None] = (
            OrderedDict()
        )  # its first is found at once, a dict's is searched for


class FairQueue(Generic[T]):
    """The queue of one shard for one thing that is waited for."""

    __slots__ = ("_heap", "_lanes", "_new", "_old", "_ticks", "_waiting", "max_entries", "max_per_tenant")

    def __init__(self, max_entries: int, max_per_tenant: int) -> None:
        self.max_entries = max_entries
        self.max_per_tenant = max_per_tenant
        self._waiting = 0
        self._lanes: dict[str, _Lane[T]] = {}
        self._new: OrderedDict[str, _Lane[T]] = OrderedDict()
        self._old: OrderedDict[str, _Lane[T]] = OrderedDict()
        self._ticks: dict[int, dict[Entry[T], None]] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return self._waiting

    def __repr__(self) -> str:
        return f"<FairQueue {self._waiting} of {self.max_entries} in {len(self._lanes)} lanes>"

    def waiting_of(self, tenant: str) -> int:
        """How many of a tenant's requests wait."""
        lane = self._lanes.get(tenant)
        return len(lane.entries) if lane is not None else 0

    # Coming.

    def push(self, item: T, tenant: str, cost_tokens: int, deadline: float, weight: float = 1.0) -> Entry[T] | Full:
        """Let a request wait until ``deadline``, or say why it may not. ``weight`` (1 or more) is the tenant's share."""
        if self.waiting_of(tenant) >= self.max_per_tenant:
            return Full.TENANT
        if self._waiting >= self.max_entries:
            return Full.QUEUE
        lane = self._lanes.get(tenant)
        if lane is None:
            lane = self._lanes[tenant] = self._new[tenant] = _Lane(tenant, max(1.0, weight))
        entry = Entry(item, cost_tokens, deadline, lane)
        lane.entries[entry] = None
        self._waiting += 1
        if entry._tick not in self._ticks:
            self._ticks[entry._tick] = {}
            heapq.heappush(self._heap, entry._tick)
        self._ticks[entry._tick][entry] = None
        return entry

    # Going.

    def peek(self, passed_over: Collection[str] = ()) -> Entry[T] | None:
        """Whose turn it is; None: nobody waits. It stays so until something comes or goes. Tenants that are passed over keep
        their turns."""
        lane = self._whose_turn(passed_over)
        return next(iter(lane.entries)) if lane is not None else None

    def pop(self, passed_over: Collection[str] = ()) -> Entry[T] | None:
        """Serve the one whose turn it is."""
        lane = self._whose_turn(passed_over)
        if lane is None:
            return None
        entry = next(iter(lane.entries))
        lane.balance -= min(max(LEAST_COST_TOKENS, entry.cost_tokens), MAX_QUANTA * lane.quantum)
        self._take_out(entry, lane)
        return entry

    def remove(self, entry: Entry[T]) -> bool:
        """Take out a request whose client has left; False: it does not wait any more."""
        lane = entry._lane
        if lane is None:
            return False
        self._take_out(entry, lane)
        return True

    def expire(self, now: float) -> list[Entry[T]]:
        """Take out those whose deadline is over, in the order of their deadlines."""
        over: list[Entry[T]] = []
        while self._heap and self._heap[0] * TICK_S <= now:
            tick = heapq.heappop(self._heap)
            over += sorted(self._ticks.get(tick, ()), key=lambda entry: entry.deadline)
            for entry in list(self._ticks.get(tick, ())):
                assert entry._lane is not None
                self._take_out(entry, entry._lane)
            self._ticks.pop(tick, None)
        return over

    def next_deadline(self) -> float | None:
        """When :meth:`expire` is to be called at the latest; None: nobody waits."""
        while self._heap and not self._ticks.get(self._heap[0]):
            self._ticks.pop(heapq.heappop(self._heap), None)
        return self._heap[0] * TICK_S if self._heap else None

    def statistics(self) -> dict[str, int]:
        """Requests that wait, and what keeps them."""
        return {"waiting": self._waiting, "lanes": len(self._lanes), "ticks": len(self._heap)}

    # Inside.

    def _whose_turn(self, passed_over: Collection[str] = ()) -> _Lane[T] | None:
        """The lane to be served; those before it that are empty or in debt have had their turn."""
        while self._waiting:
            lane = next(
                (lane for lane in chain(self._new.values(), self._old.values()) if lane.tenant not in passed_over), None
            )
            if lane is None or (lane.entries and lane.balance > 0):
                return lane
            lanes = self._new if lane.tenant in self._new else self._old
            del lanes[lane.tenant]
            if lane.entries or lanes is self._new:
                lane.balance += lane.quantum if lane.balance <= 0 else 0.0
                self._old[lane.tenant] = lane
            else:
                del self._lanes[lane.tenant]
        return None

    def _take_out(self, entry: Entry[T], lane: _Lane[T]) -> None:
        entry._lane = None
        del lane.entries[entry]
        del self._ticks[entry._tick][entry]
        self._waiting -= 1
        if not self._waiting:
            self._forget()
        elif len(self._heap) > 2 * self._waiting + SPARE_TICKS:
            self._ticks = {tick: entries for tick, entries in self._ticks.items() if entries}
            self._heap = sorted(self._ticks)

    def _forget(self) -> None:
        """Nobody waits, so nobody is behind or ahead of anybody."""
        self._lanes.clear()
        self._new.clear()
        self._old.clear()
        self._ticks.clear()
        self._heap.clear()
