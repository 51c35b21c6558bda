"""What is under way at one upstream, and what has been learned there.

What lives here: the account of the requests under way by what each needs, the upstream's saturation, how long its answers are,
and what its prompts are in its own tokens. What must not: what follows from a reading (saturation.py), what fits (room.py), who
waits for room.

An account that nobody asks costs two small sums per request: where neither a limit nor a cache is known, all fits.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .load import Load
from .room import (
    BELIEVED_ANSWERS,
    NOTHING,
    Answers,
    Bounds,
    Holding,
    Need,
    Spread,
    added,
    bounds_of,
    fits,
    holding_of,
    need_of,
    taken_off,
)
from .room import note_answer as with_answer
from .saturation import SILENT_S, Saturation, learn
from .shares import Sharers, left_to

UNBOUND = Bounds()
LEAST_RATIO, MOST_RATIO = 0.25, 4.0
"""Between an engine's tokens and ours. No text is further off: what an engine tells beyond that is another thing."""


class Wanted(NamedTuple):
    """What a request may take of an upstream. ``answer_tokens``: the most that all its answers together may have; 0: no
    bound."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    choices: int = 1
    tenant: str = ""


class Occupant(Protocol):
    """A request under way."""

    @property
    def tokens(self) -> int:
        """Of its answer, so far."""


class Occupancy:
    """The account of one upstream: of this process' requests, and none of other processes'."""

    __slots__ = ("_estimated", "_needs", "_told", "answers", "held", "prompt_ratio", "saturation", "sharers")

    def __init__(self) -> None:
        self.held = NOTHING
        self.saturation = Saturation()
        self.answers = Answers()
        self.sharers = Sharers()
        self.prompt_ratio = 1.0
        """How many tokens of its own the engine makes of one that was estimated."""
        self._told = self._estimated = Spread()
        self._needs: dict[Occupant, tuple[Need, str]] = {}

    def __repr__(self) -> str:
        return f"<Occupancy of {len(self._needs)}, {self.held.tokens:g} tokens, {self.saturation.pressure.value}>"

    def statistics(self) -> dict[str, float]:
        """Requests under way, and what they may take in the end."""
        return {"requests": len(self._needs), "weight": self.held.weight, "tokens": self.held.tokens}

    # Coming and going.

    def need_of(self, wanted: Wanted) -> Need:
        """What a request would take beside those that are under way."""
        prompt_tokens = int(wanted.prompt_tokens * self.prompt_ratio)
        return need_of(prompt_tokens, wanted.answer_tokens, wanted.choices, self.answers, among=len(self._needs) + 1)

    def enter(self, request: Occupant, wanted: Wanted) -> None:
        """One more is under way."""
        need = self.need_of(wanted)
        self._needs[request] = need, wanted.tenant
        self.held = added(self.held, need)
        self.sharers.enter(wanted.tenant, need)

    def leave(self, request: Occupant) -> None:
        """It is not any more, whatever became of it."""
        need, tenant = self._needs.pop(request)
        self.held = taken_off(self.held, need, len(self._needs))
        self.sharers.leave(tenant, need)

    # Learning.

    def note_load(self, load: Load, now: float, stale_s: float) -> None:
        """The engine has told of its load, smoothed."""
        self.saturation = learn(self.saturation, load, self.held.weight, now, stale_s)

    def note_answer(self, declared_tokens: int, tokens: int) -> None:
        """An answer is whole that might have had so many tokens (0: no bound)."""
        self.answers = with_answer(self.answers, declared_tokens, tokens)

    def note_prompt(self, estimated_tokens: int, tokens: int) -> None:
        """The engine has told how long a prompt was. The sums are compared, so that long prompts count for what they are."""
        self._told, self._estimated = self._told.noted(tokens), self._estimated.noted(estimated_tokens)
        if self._told.seen >= BELIEVED_ANSWERS and self._estimated.mean > 0:
            self.prompt_ratio = min(MOST_RATIO, max(LEAST_RATIO, self._told.mean / self._estimated.mean))

    # Room.

    def capacity_at(self, load: Load | None, now: float) -> float | None:
        """How many tokens the engine's cache holds, as it last said. It is forgotten when the engine need not be the same."""
        return None if load is None or now - load.at >= SILENT_S else load.capacity_tokens

    def has_room(self, wanted: Wanted, bounds: Bounds) -> bool:
        """Whether there is room for one more, whoever asks."""
        return fits(self.need_of(wanted), self.held, bounds, self._holdings)

    def has_room_for(self, wanted: Wanted, bounds: Bounds, now: float) -> bool:
        """Whether one more may be sent, besides what its tenant has and what others have."""
        tenants = self.sharers.note_asked(wanted.tenant, now)
        need = self.need_of(wanted)
        left = left_to(bounds, self.sharers.held_by(wanted.tenant), need, tenants)
        return fits(need, self.held, left, self._holdings)

    def _holdings(self) -> list[Holding]:
        return [holding_of(need, max(0, request.tokens)) for request, (need, _) in self._needs.items()]


class Bounding(NamedTuple):
    """How the settings bound each upstream. ``kv_share``: what one process may reserve of a cache."""

    max_requests: int = 0
    sheds: bool = True
    kv_share: float = 1.0

    def bounds(self, occupancy: Occupancy, load: Load | None, now: float) -> Bounds:
        """What bounds this one now."""
        if not self.sheds:
            return bounds_of(self.max_requests, None, None) if self.max_requests else UNBOUND
        limit = occupancy.saturation.limit_at(now)
        capacity = occupancy.capacity_at(load, now) if self.kv_share > 0.0 else None
        if limit is None and capacity is None and not self.max_requests:
            return UNBOUND
        return bounds_of(self.max_requests, limit, capacity, self.kv_share)
