"""What a client is told of its limits and of when to come back: figures in, headers out.

What lives here: the ``x-ratelimit-*`` fields as OpenAI's clients read them, and how long a refused client is asked to wait.
What must not: who is refused (limiter.py, the gateway), the counts (matrix.py).
"""

from __future__ import annotations

from math import ceil, isfinite
from typing import NamedTuple

from longwire.words.errors import LongwireError, Overloaded, TooManyWaiting, WaitedInVain
from longwire.words.settings import TenantSettings

from .fairqueue import Full
from .limiter import RETRY_AFTER_S, RETRY_SPREAD, seconds_until_free
from .matrix import in_window

LONGEST_RETRY_S = 60.0
"""Whoever is told to wait longer asks elsewhere, and what is known now will not hold for so long."""


class Allowance(NamedTuple):
    """One limit per minute and what is left of it. ``reset_s`` is when all of it will be there again, if nothing is used."""

    limit: int
    remaining: int
    reset_s: float


def allowance(limit: int, before: int, current: int, now: float) -> Allowance:
    """Of what was counted in the minute before and in this one."""
    used = ceil(in_window(before, current, now))
    return Allowance(limit, max(0, limit - used), seconds_until_free(before, current, 0, now))


def rate_headers(
    settings: TenantSettings, requests: tuple[int, int], tokens: tuple[int, int], now: float
) -> list[tuple[bytes, bytes]]:
    """The fields for the limits that a tenant has; ``requests`` and ``tokens`` are what the matrix' windows hold."""
    counted = (
        (b"requests", settings.max_requests_per_min, requests),
        (b"tokens", settings.max_tokens_per_min, tokens),
    )
    fields: list[tuple[bytes, bytes]] = []
    for name, limit, (before, current) in counted:
        if limit:
            left = allowance(limit, before, current, now)
            fields.append((b"x-ratelimit-limit-" + name, b"%d" % left.limit))
            fields.append((b"x-ratelimit-remaining-" + name, b"%d" % left.remaining))
            fields.append((b"x-ratelimit-reset-" + name, spell(left.reset_s)))
    return fields


def spell(seconds: float) -> bytes:
    """A time as OpenAI spells it: ``120ms``, ``6s``, ``1m30s``; rounded up, since who comes too early is refused again."""
    milliseconds = ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest = divmod(ceil(milliseconds / 1000), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest


def retry_after_s(waiting: int, served_per_s: float, refused_before: int) -> float:
    """How long to ask a client to wait that found the queue full, or waited in vain: until those who wait are served, at the
    rate at which they are. ``refused_before`` spreads those who are refused together, else they come back together."""
    is_known = isfinite(served_per_s) and served_per_s > 0
    wait_s = waiting / served_per_s if is_known else RETRY_AFTER_S
    return ceil(min(LONGEST_RETRY_S, max(RETRY_AFTER_S, wait_s))) + refused_before % RETRY_SPREAD


def is_own_doing(own_waiting: int, waiting: int, tenants: int) -> bool:
    """Whether a tenant that waited in vain has itself to blame: it has more waiting than its equal share, or waits alone with
    more than one request. ``tenants`` are those that wait."""
    return own_waiting > 1 and (tenants == 1 or own_waiting * tenants > waiting)


def refusal(full: Full | None, wait_s: float, *, own_doing: bool) -> LongwireError:
    """What a request is told that may not wait (``full`` says why), or has waited in vain (None)."""
    if full is Full.TENANT or (full is None and own_doing):
        return TooManyWaiting(
            "You have more requests waiting than your share; send fewer at once.", retry_after_s=wait_s
        )
    if full is Full.QUEUE:
        return Overloaded("Too many requests wait for an engine; try again.", retry_after_s=wait_s)
    return WaitedInVain("No engine had room for this request in time; try again.", retry_after_s=wait_s)
