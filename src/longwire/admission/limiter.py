"""How many streams may live at once, per tenant and in all.

What lives here: handing out slots and taking them back.
What must not: waiting for a slot (a queue's matter), what a stream is, when it ends.

A slot is held from admission until the stream is sealed. A stream whose readers have all left keeps its slot, because it
keeps the engine: else a client could run any number of generations by hanging up on each.
"""

from __future__ import annotations

from longwire.words.errors import Overloaded, TooManyStreams

from .tenants import Tenant

RETRY_AFTER_S = 1.0
"""Least wait asked of a refused client: a slot of a busy tenant comes free within seconds."""

RETRY_SPREAD = 4
"""Refused clients are told 1, 2, 3 or 4 seconds in turn. All with the same answer would come back as one wave."""


class Slot:
    """The right to one live stream. Whoever holds it releases it; a second release does nothing."""

    __slots__ = ("_limiter", "tenant")

    def __init__(self, limiter: Limiter, tenant: Tenant) -> None:
        self._limiter: Limiter | None = limiter
        self.tenant = tenant

    @property
    def is_held(self) -> bool:
        return self._limiter is not None

    def release(self) -> None:
        """Give the slot back. Idempotent, so that every path out of a stream may call it without asking who was first."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter._take_back(self.tenant)

    def __repr__(self) -> str:
        return f"<Slot {self.tenant.name!r} {'held' if self.is_held else 'released'}>"


class Limiter:
    """Counts live streams; the only writer of ``Tenant.live_streams``."""

    __slots__ = ("_admitted", "_refused_overloaded", "_refused_too_many", "live_streams", "max_total")

    def __init__(self, max_total: int) -> None:
        self.max_total = max_total
        self.live_streams = 0
        self._admitted = 0
        self._refused_too_many = 0
        self._refused_overloaded = 0

    def admit(self, tenant: Tenant) -> Slot:
        """A slot for one stream of this tenant, now.

        Raises:
            TooManyStreams: the tenant has as many as it may. Asked first, for it is what the tenant itself can mend.
            Overloaded: the gateway has as many as it can hold.
        """
        limit = tenant.settings.max_streams
        if tenant.live_streams >= limit:
            self._refused_too_many += 1
            raise TooManyStreams(
                f"You have {tenant.live_streams} streams of at most {limit} (detached ones count); end one or wait.",
                retry_after_s=self._next_retry_s(),
            )
        if self.live_streams >= self.max_total:
            self._refused_overloaded += 1
            raise Overloaded(
                "The gateway has no room for another stream; try again.", retry_after_s=self._next_retry_s()
            )
        self.live_streams += 1
        tenant.live_streams += 1
        self._admitted += 1
        return Slot(self, tenant)

    def _take_back(self, tenant: Tenant) -> None:
        self.live_streams -= 1
        tenant.live_streams -= 1

    def _next_retry_s(self) -> float:
        return RETRY_AFTER_S + (self._refused_too_many + self._refused_overloaded - 1) % RETRY_SPREAD

    def statistics(self) -> dict[str, int]:
        return {
            "live_streams": self.live_streams,
            "max_total": self.max_total,
            "admitted": self._admitted,
            "refused_too_many": self._refused_too_many,
            "refused_overloaded": self._refused_overloaded,
        }

    def __repr__(self) -> str:
        return f"<Limiter streams={self.live_streams}/{self.max_total} admitted={self._admitted}>"
