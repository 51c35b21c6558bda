"""The metrics of those who wait for room at an engine, and of engines that are given less.

What lives here: declarations, as in declarations.py, which takes them in. What must not: anything else.
"""

from __future__ import annotations

from typing import Final

from .metric import Look, Metric, Series, told

WHY_REFUSED: Final = {
    "full": "queue_full_total",
    "tenant": "queue_full_of_tenant_total",
    "deadline": "queue_expired_total",
}
"""Kinds of refusals, and what counts them."""


def _refused(at: Look) -> Series:
    return {(why,): getattr(at.counters, name) for why, name in WHY_REFUSED.items()}


QUEUE_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="longwire_queue_length",
        kind="gauge",
        help="Requests that wait for room at an engine now.",
        read=lambda at: at.now.queued,
    ),
    Metric(
        name="longwire_queued_total",
        kind="counter",
        help="Requests that had to wait for room at an engine, whatever became of them.",
        read=lambda at: at.counters.queued_total,
    ),
    Metric(
        name="longwire_queue_wait_seconds",
        kind="histogram",
        unit="seconds",
        help="How long those waited that were sent to an engine in the end.",
        low=10,
        high=26,
        read=lambda at: at.counters.queue_wait,
    ),
    Metric(
        name="longwire_queue_refused_total",
        kind="counter",
        help="Requests that were refused: the queue was full, the tenant had too many waiting, or the deadline was over.",
        labels=("why",),
        read=_refused,
    ),
    Metric(
        name="longwire_engine_limit",
        kind="gauge",
        help="Requests that an engine is given at most, as its saturation has taught; absent where nothing was learned.",
        labels=("engine",),
        read=lambda at: told({name: pool.limit for name, pool in at.now.pools.items()}),
    ),
    Metric(
        name="longwire_answers_clamped_total",
        kind="counter",
        help="Requests without max_tokens that were given a bound (clamp_answers).",
        read=lambda at: at.counters.answers_clamped_total,
    ),
)
