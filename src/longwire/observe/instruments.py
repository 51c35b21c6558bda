"""The gateway's counters: plain attributes that any room may bump.

What lives here: ints and power-of-two histograms, and nothing that takes longer than adding one.
What must not: names, help texts and rendering (metrics.py), locks (a counter has one writing thread), any other room.

The hot path passes here tens of thousands of times a second, so callers bump attributes directly
(``instruments.events_total += count``), once per read and not once per event wherever they can.
"""

from __future__ import annotations

from typing import Final

from ..words.reasons import CloseReason

BUCKETS: Final = 40
"""Bucket k counts what lies in [2^(k-1), 2^k) microseconds. The last reaches 6 days; all above falls into it too."""

_LAST: Final = BUCKETS - 1
_US_PER_S: Final = 1_000_000

OTHER_ROUTE: Final = "other"
"""Where a request goes whose path is no route of ours: a label must not grow with what strangers ask for."""

ROUTES: Final = frozenset(
    {
        "chat_completions",
        "completions",
        "relay",
        "models",
        "stream_read",
        "openapi",
        "stream_list",
        "stream_continue",
        "stream_delete",
        "healthz",
        "readyz",
        "options",
        OTHER_ROUTE,
    }
)
"""Every value that the label ``route`` can have."""

MAX_REQUEST_SERIES: Final = 256
"""Pairs of route and status that are told apart: twenty statuses for each route. An engine that answers with all 500 that there
are must not make a shard's row in shared memory overflow; what comes beyond is counted under status 0."""


class Histogram:
    """Durations counted in power-of-two buckets of integer microseconds: one list increment each.

    A batch of equal values may be added without a call: ``h.buckets[0] += n`` counts n events with no gap between them.
    """

    __slots__ = ("buckets", "sum_us")

    def __init__(self) -> None:
        self.buckets: list[int] = [0] * BUCKETS
        self.sum_us = 0

    def observe_us(self, us: int) -> None:
        """Count one duration. Below zero (two clocks, one late) counts as zero: a sum must never fall."""
        if us < 0:
            self.buckets[0] += 1
            return
        index = us.bit_length()
        self.buckets[index if index < BUCKETS else _LAST] += 1
        self.sum_us += us

    def observe_s(self, seconds: float) -> None:
        """Count one duration given in seconds, as clocks give it."""
        self.observe_us(int(seconds * _US_PER_S))

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.buckets)

    def quantile_us(self, share: float) -> int:
        """An upper bound (within a factor of two) of the duration that ``share`` of all stay under; 0 when empty."""
        wanted = share * self.count
        seen = 0
        for index, held in enumerate(self.buckets):
            seen += held
            if held and seen >= wanted:
                return (1 << index) - 1
        return 0

    def statistics(self) -> dict[str, int]:
        """Count, sum and rough median and tail."""
        return {
            "count": self.count,
            "sum_us": self.sum_us,
            "p50_us": self.quantile_us(0.5),
            "p99_us": self.quantile_us(0.99),
        }

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum_us={self.sum_us} p99_us<={self.quantile_us(0.99)}>"


class Instruments:
    """All counters of one process. Rooms bump the attributes; metrics.py gives them names."""

    __slots__ = (
        "accept_pauses_total",
        "accepts_refused_total",
        "answers_clamped_total",
        "adoption_pause",
        "body_bytes_total",
        "breakers_opened_total",
        "busy_silences_total",
        "clock_connect_total",
        "clock_first_byte_total",
        "clock_first_token_total",
        "clock_rate_total",
        "clock_silence_total",
        "clock_total_total",
        "connections_adopted_total",
        "connections_passed_total",
        "continuations_total",
        "event_gap",
        "events_total",
        "failovers_total",
        "gc_runs_total",
        "heartbeats_total",
        "idempotent_hits_total",
        "loop_lag",
        "poisoned_total",
        "queue_expired_total",
        "queue_full_of_tenant_total",
        "queue_full_total",
        "queue_wait",
        "queued_total",
        "readers_ended",
        "requests",
        "reserve_misses_total",
        "resumes_total",
        "retries_refused_total",
        "retries_total",
        "silence_warnings_total",
        "stream_duration",
        "streams_adopted_total",
        "streams_ended",
        "streams_started_total",
        "tokens_completion_total",
        "tokens_estimated_total",
        "tokens_prompt_total",
        "ttfb",
        "ttft",
        "upstream_bytes_total",
    )

    def __init__(self) -> None:
        self.accepts_refused_total = 0
        self.events_total = 0
        self.body_bytes_total = 0
        self.upstream_bytes_total = 0
        self.heartbeats_total = 0
        self.streams_started_total = 0
        self.streams_ended: dict[CloseReason, int] = dict.fromkeys(CloseReason, 0)
        # A reader that got to the end has its stream's reason, any other its own (client_left, slow_reader, ...).
        # A CloseReason equals its word, so both find the cell.
        self.readers_ended: dict[str, int] = dict.fromkeys(CloseReason, 0)
        self.resumes_total = 0
        self.idempotent_hits_total = 0
        self.reserve_misses_total = 0
        self.retries_total = 0
        self.retries_refused_total = 0
        self.failovers_total = 0
        self.continuations_total = 0
        self.breakers_opened_total = 0
        self.silence_warnings_total = 0
        self.busy_silences_total = 0
        self.clock_connect_total = 0
        self.clock_first_byte_total = 0
        self.clock_first_token_total = 0
        self.clock_silence_total = 0
        self.clock_rate_total = 0
        self.clock_total_total = 0
        self.requests: dict[tuple[str, int], int] = {}
        self.tokens_prompt_total = 0
        self.tokens_completion_total = 0
        self.tokens_estimated_total = 0
        self.gc_runs_total = 0
        self.streams_adopted_total = 0
        self.connections_adopted_total = 0
        self.connections_passed_total = 0
        self.poisoned_total = 0
        self.accept_pauses_total = 0
        self.queued_total = 0
        self.queue_full_total = 0
        self.queue_full_of_tenant_total = 0
        self.queue_expired_total = 0
        self.answers_clamped_total = 0
        self.ttfb = Histogram()
        self.ttft = Histogram()
        self.event_gap = Histogram()
        self.loop_lag = Histogram()
        self.stream_duration = Histogram()
        self.adoption_pause = Histogram()
        self.queue_wait = Histogram()

    def count_request(self, route: str, status: int) -> None:
        """Count one answered request; bounded whatever comes, for an engine picks the status."""
        key = (route if route in ROUTES else OTHER_ROUTE, status if 100 <= status <= 599 else 0)
        if key not in self.requests and len(self.requests) >= MAX_REQUEST_SERIES:
            key = (key[0], 0)
        self.requests[key] = self.requests.get(key, 0) + 1

    def statistics(self) -> dict[str, object]:
        """Every counter by its name."""
        shown: dict[str, object] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            shown[name] = value.statistics() if isinstance(value, Histogram) else value
        return shown

    def __repr__(self) -> str:
        ended = sum(self.streams_ended.values())
        return f"<Instruments streams={self.streams_started_total} ended={ended} events={self.events_total}>"
