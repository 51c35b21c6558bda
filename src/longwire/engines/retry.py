"""Whether another upstream may be asked: for which failures, and how often.

What lives here: the table of failures that another upstream may mend, and the retry budget of each tenant.
What must not: choosing the other upstream (directory.py), how much of an answer has reached a client (generation.py).

Without a budget retries multiply an outage: when every upstream fails, three attempts per request are three times the load, at
the worst moment. So a tenant's retries are a share of its requests, with a floor for tenants that ask little.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from ..words.reasons import CloseReason
from ..words.settings import Settings
from .base import Failure
from .breaker import BLAMELESS_STATUS, is_too_long

BUDGET_WINDOW_S = 60.0
PART_S = 5.0
"""Requests of so long are counted as one: the last minute is known to within five seconds, in a dozen entries."""
MAX_TENANTS = 10_000
"""Tenants that are remembered, those that asked last. Tenants are declared, so this is only a bound on a very long list."""

_ANOTHER_MAY_DO_IT = frozenset({
    CloseReason.UPSTREAM_UNREACHABLE, CloseReason.UPSTREAM_RESET, CloseReason.UPSTREAM_INCOMPLETE,
    CloseReason.UPSTREAM_PROTOCOL, CloseReason.UPSTREAM_TIMEOUT, CloseReason.CONNECT_TIMEOUT,
    CloseReason.FIRST_TOKEN_TIMEOUT, CloseReason.TOKEN_SILENCE,
})  # fmt: skip
_ANSWERED_WITH_AN_ERROR = frozenset({
    CloseReason.UPSTREAM_REFUSED, CloseReason.UPSTREAM_FAILED, CloseReason.UPSTREAM_ERROR_EVENT,
})  # fmt: skip
_FULL = 429


def is_retryable(failure: Failure) -> bool:
    """Whether another upstream may answer what this one did not.

    Not where the request itself is at fault, nor where a bound of ours was reached: it would be reached again. A 429 or 503
    says that this one is full, which another need not be; the same one must not be asked again for it.
    """
    if failure.reason in _ANOTHER_MAY_DO_IT:
        return True
    if failure.reason not in _ANSWERED_WITH_AN_ERROR or is_too_long(failure.body) or _says_too_long(failure.message):
        return False
    status = failure.status
    if failure.reason is CloseReason.UPSTREAM_ERROR_EVENT and status == 0:
        return True
    return status == _FULL or (500 <= status <= 599 and status not in BLAMELESS_STATUS)


def _says_too_long(message: str) -> bool:
    return is_too_long(message.encode("utf-8", "replace"))


class _Minute:
    """What one tenant did within the last minute: ``[since, requests, retries]``, oldest first."""

    __slots__ = ("_parts", "requests", "retries")

    def __init__(self) -> None:
        self._parts: deque[list[float]] = deque()
        self.requests = 0
        self.retries = 0

    def add(self, now: float, requests: int, retries: int) -> None:
        if not self._parts or now - self._parts[-1][0] >= PART_S:
            self._parts.append([now, 0, 0])
        self._parts[-1][1] += requests
        self._parts[-1][2] += retries
        self.requests += requests
        self.retries += retries

    def forget_old(self, now: float) -> None:
        """Drop what lies wholly more than a minute back. Retries are so kept a little longer rather than shorter."""
        while self._parts and self._parts[0][0] + PART_S + BUDGET_WINDOW_S <= now:
            _, requests, retries = self._parts.popleft()
            self.requests -= int(requests)
            self.retries -= int(retries)


class RetryBudget:
    """How many retries each tenant has left. One per shard, like the requests that it counts."""

    def __init__(self, settings: Settings) -> None:
        self._percent = settings.retry_budget_percent
        self._floor = settings.retry_budget_floor
        self._tenants: OrderedDict[str, _Minute] = OrderedDict()

    def __repr__(self) -> str:
        return f"<RetryBudget {self._percent:g} %, at least {self._floor}, {len(self._tenants)} tenants>"

    def note_request(self, tenant: str, now: float) -> None:
        """A request was admitted."""
        self._minute_of(tenant, now).add(now, 1, 0)

    def may_retry(self, tenant: str, now: float) -> bool:
        """Whether one of its requests may be sent once more; if so, that is taken from the budget."""
        minute = self._minute_of(tenant, now)
        if minute.retries >= max(self._floor, int(minute.requests * self._percent / 100)):
            return False
        minute.add(now, 0, 1)
        return True

    def statistics(self) -> dict[str, int]:
        """Tenants that are remembered."""
        return {"tenants": len(self._tenants)}

    def _minute_of(self, tenant: str, now: float) -> _Minute:
        minute = self._tenants.get(tenant)
        if minute is None:
            minute = self._tenants[tenant] = _Minute()
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
            minute.forget_old(now)
        return minute
