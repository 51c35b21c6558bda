"""What a tenant that has more than its share leaves free of an engine for those that have less: values in, values out.

What lives here: who shares an engine, and the part of it that is kept. What must not: whose turn it is among those who wait
(admission/fairqueue.py), what bounds an engine (room.py).

A fair queue decides who is next, and not how long the next one waits: where all of an engine is in use, even the first in line
waits until some answer ends. With 16 answers at once that is up to a third of an answer's time, mostly far more than the engine
takes to the first token. So while several tenants use an engine, one with much more than its equal share may not fill it: a
little is kept free, and whoever has less goes in at once.

How much is a matter of how many come at the same moment, which grows with the root of how many there are (square-root
staffing): three quarters of a limit's root are 6 of 64 and 18 of 640. It costs as much of the engine while one tenant floods
and others are about, and nothing where a tenant is alone, or where all have as much as each other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from math import floor, sqrt

from .room import NOTHING, Bounds, Need, added, taken_off

KEPT_ROOTS = 0.75
"""Roots of a limit that are kept. Then those who use half their shares of 64 wait a hundredth of an answer at p99."""
MOST_KEPT = 1 / 8
"""Of a limit, at most: of 16 three would be kept. Below 8 that is no whole request, so it takes effect for none."""
KEPT_OF_CACHE = 1 / 16
"""Of a cache's tokens, whose number says nothing of how many answers it is for."""
RECENT_S = 30.0
"""A tenant that has asked for nothing for so long has nothing kept for it: it may not come for a day."""


def is_much(own: float, whole: float, tenants: int) -> bool:
    """Whether a tenant with so much of the whole has much more than its equal share: nearly twice as much among many, three
    quarters of all beside one other. Those that have as much as each other never have."""
    return own * tenants > whole * (2.0 - 1.0 / tenants)


def left_to(bounds: Bounds, own: Need, need: Need, tenants: int) -> Bounds:
    """What bounds a request that needs so much, of a tenant that has ``own`` under way, while so many share the engine."""
    limit, capacity = bounds.limit, bounds.capacity_tokens
    if tenants < 2 or own.weight <= 0:
        return bounds  # whoever has nothing there floods nobody, however large the one request is
    if limit is not None and is_much(own.weight + need.weight, limit, tenants):
        bounds = replace(bounds, limit=limit - floor(min(KEPT_ROOTS * sqrt(limit), MOST_KEPT * limit)))
    if capacity is not None and is_much(own.tokens + need.tokens, capacity, tenants):
        bounds = replace(bounds, capacity_tokens=capacity * (1.0 - KEPT_OF_CACHE))
    return bounds


class Sharers:
    """Who shares one engine, and what each has under way there."""

    __slots__ = ("_held", "_seen")

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Need]] = {}
        self._seen: OrderedDict[str, float] = OrderedDict()
        """When each has asked last; those who asked last stand last."""

    def __repr__(self) -> str:
        return f"<Sharers {len(self._held)} with requests, {len(self._seen)} seen>"

    def statistics(self) -> dict[str, int]:
        """Tenants with requests under way, and those that were seen lately."""
        return {"holding": len(self._held), "seen": len(self._seen)}

    def enter(self, tenant: str, need: Need) -> None:
        """One of its requests is under way."""
        count, held = self._held.get(tenant, (0, NOTHING))
        self._held[tenant] = count + 1, added(held, need)

    def leave(self, tenant: str, need: Need) -> None:
        """It is not any more."""
        count, held = self._held.pop(tenant)
        if count > 1:
            self._held[tenant] = count - 1, taken_off(held, need, count - 1)

    def held_by(self, tenant: str) -> Need:
        """What a tenant has under way."""
        return self._held.get(tenant, (0, NOTHING))[1]

    def note_asked(self, tenant: str, now: float) -> int:
        """A tenant asks for room; how many share the engine now. Only those who ask while there is a bound are counted."""
        self._seen[tenant] = now
        self._seen.move_to_end(tenant)
        while (first := next(iter(self._seen))) != tenant and now - self._seen[first] > RECENT_S:
            del self._seen[first]
        return len(self._seen)
