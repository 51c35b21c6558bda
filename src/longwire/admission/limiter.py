"""How much a tenant may use: streams at once, requests and tokens per minute, over all shards; and how many live here.

What lives here: handing out slots and taking them back, refusals and how long to wait, what is kept for tenants at home.
What must not: waiting for a slot (a queue's matter), what a stream is, when it ends, how counts lie in memory (matrix.py).

A slot is held from admission until the stream is sealed. A stream whose readers have all left keeps its slot, because it
keeps the engine: else a client could run any number of generations by hanging up on each.

No limit takes a lock: a shard reads the sum over all shards, and if there is room adds 1 to its own cell. A tenant can
therefore get more than its limit, but at most by the number of shards less one. For take the check that was begun last
among those that passed: every other shard may have passed one check before it and add 1 after its cell was read, but not
2, because it would have to begin another check for the second. So what the sum did not show is at most 1 per other shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from longwire.words.clock import Clock
from longwire.words.errors import (
    ContextTooLarge,
    LongwireError,
    Overloaded,
    TooManyRequests,
    TooManyStreams,
    TooManyTokens,
)

from .matrix import HELD, LIVE, MAX_COUNT, MINUTE_S, REQUESTS, RESERVED, TOKENS, Matrix, Use, in_window, minute_of
from .tenants import Tenant, home_of

RETRY_AFTER_S = 1.0
"""Least wait asked of a refused client: a slot of a busy tenant comes free within seconds."""

RETRY_SPREAD = 4
"""Refused clients are told 1, 2, 3 or 4 seconds in turn. All with the same answer would come back as one wave."""

ROUNDING = 1e-6
"""Of a request. Parts of a minute are fractions: whoever comes when it was told to is not refused for the last digit."""

NO_MINUTE = -1


class Slot:
    """The right to one live stream. Whoever holds it releases it; a second release does nothing."""

    __slots__ = ("_is_settled", "_limiter", "_minute", "context_tokens", "is_held", "tenant")

    def __init__(self, limiter: Limiter, tenant: Tenant, context_tokens: int, minute: int) -> None:
        self._limiter = limiter
        self._minute = minute
        self._is_settled = False
        self.is_held = True
        self.tenant = tenant
        self.context_tokens = context_tokens

    def release(self) -> None:
        """Give the slot back. Idempotent, so that every path out of a stream may call it without asking who was first."""
        if self.is_held:
            self.is_held = False
            self._limiter._take_back(self.tenant, self.context_tokens)

    def settle(self, tokens: int) -> None:
        """Put what was really used in the place of what was counted at admission, once; before or after the release."""
        if not self._is_settled:
            self._is_settled = True
            self._limiter._settle(self.tenant, self._minute, self.context_tokens, min(max(0, tokens), MAX_COUNT))

    def __repr__(self) -> str:
        return f"<Slot {self.tenant.name!r} {'held' if self.is_held else 'released'}>"


class Limiter:
    """One shard's limiter: reads the sums over all slots, and is the only writer of its own slot's cells.

    ``max_total`` bounds the streams of this shard. ``tenants`` are all there are: some may have slots reserved here.
    """

    __slots__ = (
        "_admitted", "_floor", "_held", "_home", "_kept", "_live", "_matrix", "_now", "_refused_minute",
        "_refused_overloaded", "_refused_too_large", "_refused_too_many", "_slot", "_words", "max_total",
    )  # fmt: skip

    def __init__(self, matrix: Matrix, slot: int, clock: Clock, max_total: int, tenants: Iterable[Tenant] = ()) -> None:
        self.max_total = max_total
        self._matrix = matrix
        self._slot = slot
        self._words = matrix.words
        self._now = clock.now
        rows = matrix.tenants + 1
        self._live = [0] * rows
        self._held = [0] * rows
        self._floor: dict[int, int] = {}
        self._home: dict[int, int] = {}
        self._admitted = self._refused_too_many = self._refused_overloaded = 0
        self._refused_minute = self._refused_too_large = 0
        for tenant in tenants:
            self._reserve(tenant)
        self._kept = sum(self._home.values())

    def _reserve(self, tenant: Tenant) -> None:
        settings = tenant.settings
        is_home = home_of(tenant, self._matrix.slots) == self._slot
        if is_home and settings.reserved_slots:
            self._home[tenant.index] = settings.reserved_slots
        reserved = settings.reserved_slots * settings.slot_tokens if is_home else 0
        self._words[self._matrix.index(tenant.index, self._slot) + RESERVED] = reserved

    @property
    def live_streams(self) -> int:
        """Streams of this shard."""
        return self._live[self._matrix.gateway_row]

    def live_here(self, tenant: Tenant) -> int:
        """This shard's streams of a tenant."""
        return self._live[tenant.index]

    def use(self, tenant: Tenant) -> Use:
        """What the tenant uses now, over all shards."""
        return self._matrix.use(tenant.index, self._now())

    def windows(self, tenant: Tenant) -> tuple[tuple[int, int], tuple[int, int], float]:
        """Requests and tokens of the minute before and of this one, and the time for which they hold."""
        now = self._now()
        minute = minute_of(now)
        requests, tokens = (self._matrix.window(tenant.index, cell, minute) for cell in (REQUESTS, TOKENS))
        return requests, tokens, now

    # Coming in.

    def admit(self, tenant: Tenant, context_tokens: int = 0) -> Slot:
        """A slot for one stream of this tenant, now. ``context_tokens`` is what the request may need: prompt and answer.

        Raises:
            ContextTooLarge: the request needs more than the tenant's slots or limits could ever give it.
            TooManyStreams, TooManyRequests, TooManyTokens: the tenant has as many as it may. Asked first, for it is what
                the tenant itself can mend.
            Overloaded: the shard has as many as it can hold, or the rest of them is kept for others.
        """
        context_tokens = min(context_tokens, MAX_COUNT)
        now = self._now()
        self._check_context(tenant, context_tokens)
        self._check_streams(tenant)
        self._check_minute(tenant, context_tokens, now)
        self._check_room(tenant)
        minute = minute_of(now)
        start = self._matrix.index(tenant.index, self._slot)
        self._matrix.count(start, REQUESTS, minute, 1)
        self._matrix.count(start, TOKENS, minute, context_tokens)
        self._change(tenant.index, 1, context_tokens)
        self._admitted += 1
        return Slot(self, tenant, context_tokens, minute)

    def readmit(self, tenant: Tenant, context_tokens: int = 0) -> Slot:
        """A slot for a stream that was taken over: it lives already, so it is counted and not asked about.

        Its request and its tokens were counted by who admitted it.
        """
        context_tokens = min(context_tokens, MAX_COUNT)
        self._change(tenant.index, 1, context_tokens)
        return Slot(self, tenant, context_tokens, NO_MINUTE)

    def begin_recount(self) -> None:
        """Before streams of a dead shard of this same slot are taken over, one by one.

        Until :meth:`end_recount` the slot shows what it did, or more: were it seen empty meanwhile, the other shards would let
        in a second set of streams.
        """
        for row in range(len(self._live)):
            start = self._matrix.index(row, self._slot)
            self._floor |= {index: self._words[index] for index in (start + LIVE, start + HELD) if self._words[index]}

    def end_recount(self) -> None:
        """All streams were taken over: from now on the slot shows those and no others."""
        self._floor = {}
        for row in range(len(self._live)):
            self._change(row, 0, 0)

    def _check_context(self, tenant: Tenant, wanted: int) -> None:
        for setting in ("slot_tokens", "max_tokens_per_min"):
            limit: int = getattr(tenant.settings, setting)
            if limit and wanted > limit:
                self._refused_too_large += 1
                raise ContextTooLarge(
                    f"This request may need {wanted} tokens (a quarter of its bytes, and max_tokens), and the setting "
                    f"{setting} allows {limit}; shorten the prompt or lower max_tokens.",
                    param="max_tokens",
                )

    def _check_streams(self, tenant: Tenant) -> None:
        limit = tenant.settings.max_streams
        if (live := self._matrix.total(tenant.index, LIVE)) >= limit:
            self._refused_too_many += 1
            raise TooManyStreams(
                f"You have {live} streams of at most {limit} (detached ones count); end one or wait.",
                retry_after_s=self._next_retry_s(),
            )

    def _check_minute(self, tenant: Tenant, wanted_tokens: int, now: float) -> None:
        settings = tenant.settings
        if limit := settings.max_requests_per_min:
            self._check_window(tenant, REQUESTS, (1, limit), now, TooManyRequests)
        if limit := settings.max_tokens_per_min:
            self._check_window(tenant, TOKENS, (wanted_tokens, limit), now, TooManyTokens)

    def _check_window(
        self, tenant: Tenant, cell: int, wish: tuple[int, int], now: float, error: type[LongwireError]
    ) -> None:
        wanted, limit = wish
        before, current = self._matrix.window(tenant.index, cell, minute_of(now))
        used = in_window(before, current, now)
        if used + wanted <= limit + ROUNDING:
            return
        self._refused_minute += 1
        what = "requests" if cell == REQUESTS else "tokens"
        raise error(
            f"You have used {ceil(used)} of {limit} {what} per minute, and this request counts {wanted}; wait.",
            retry_after_s=float(ceil(seconds_until_free(before, current, limit - wanted, now))),
        )

    def _check_room(self, tenant: Tenant) -> None:
        """Whether this shard can hold one more, besides what is kept for other tenants than this one."""
        index = self._matrix.index(self._matrix.gateway_row, self._slot) + LIVE
        kept_for_others = self._kept - self._unused(tenant.index)
        if self._words[index] + kept_for_others >= self.max_total:
            self._refused_overloaded += 1
            raise Overloaded(
                "The gateway has no room for another stream; try again.", retry_after_s=self._next_retry_s()
            )

    def _unused(self, row: int) -> int:
        """Slots that are kept for a tenant and that it does not use."""
        return max(0, self._home.get(row, 0) - self._live[row])

    # Going out.

    def _take_back(self, tenant: Tenant, context_tokens: int) -> None:
        self._change(tenant.index, -1, -context_tokens)

    def _settle(self, tenant: Tenant, minute: int, counted: int, used: int) -> None:
        """What was counted too much goes off the minute in which it was; what was used on top of it is used now."""
        start = self._matrix.index(tenant.index, self._slot)
        if used > counted:
            self._matrix.count(start, TOKENS, minute_of(self._now()), used - counted)
        elif minute != NO_MINUTE:
            self._matrix.take_off(start, TOKENS, minute, counted - used)

    def _change(self, row: int, streams: int, tokens: int) -> None:
        """Count streams and their tokens, for the tenant and for the gateway as a whole."""
        kept = self._unused(row)
        for each in (row, self._matrix.gateway_row) if streams else (row,):
            self._live[each] += streams
            self._held[each] += tokens
            start = self._matrix.index(each, self._slot)
            self._store(start + LIVE, self._live[each])
            self._store(start + HELD, self._held[each])
        self._kept += self._unused(row) - kept

    def _store(self, index: int, count: int) -> None:
        self._words[index] = max(count, self._floor.get(index, 0))

    def _next_retry_s(self) -> float:
        return RETRY_AFTER_S + (self._refused_too_many + self._refused_overloaded - 1) % RETRY_SPREAD

    def statistics(self) -> dict[str, int]:
        """What this shard has admitted and refused, and what lives here."""
        return {
            "live_streams": self.live_streams,
            "max_total": self.max_total,
            "kept_slots": self._kept,
            "admitted": self._admitted,
            "refused_too_many": self._refused_too_many,
            "refused_minute": self._refused_minute,
            "refused_too_large": self._refused_too_large,
            "refused_overloaded": self._refused_overloaded,
        }

    def __repr__(self) -> str:
        return f"<Limiter slot={self._slot} streams={self.live_streams}/{self.max_total} admitted={self._admitted}>"


def seconds_until_free(before: int, current: int, room: int, now: float) -> float:
    """How long until the last 60 seconds hold at most ``room`` (0 or more), if nothing is added meanwhile."""
    passed_s = now % MINUTE_S
    if current <= room:
        # Within this minute: as much of the minute before must have gone out of sight.
        return max(0.0, MINUTE_S * (1.0 - (room - current) / before) - passed_s) if before else 0.0
    return MINUTE_S - passed_s + MINUTE_S * (1.0 - room / current)
