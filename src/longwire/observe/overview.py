"""One picture of the gateway for whoever looks on: shards, streams, tenants, engines, arena.

What lives here: the JSON object of ``GET /v1/overview``.
What must not: rates (whoever looks twice knows them), ids of streams, anything that is not counted already.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from .declarations import Look
from .snapshot import STREAM_STATES

MAX_TENANTS_SHOWN: Final = 50
"""The busiest: a screen has no room for more."""

BREAKER_STATES: Final = ("closed", "half_open", "open")
"""By the number that the gauge has."""

TOTALS: Final = (
    "streams_started_total",
    "events_total",
    "upstream_bytes_total",
    "body_bytes_total",
    "tokens_completion_total",
    "resumes_total",
    "streams_adopted_total",
)
"""The counters whose differences make the rates."""


def overview(look: Look, shards: Sequence[Mapping[str, object]], limits: Mapping[str, int]) -> dict[str, object]:
    """``limits`` are the most streams that each tenant may have."""
    counters, now = look
    tenants = sorted({*limits, *now.tenant_streams}, key=lambda name: (-now.tenant_streams.get(name, 0), name))
    return {
        "object": "overview",
        "version": now.version,
        "at_s": time.monotonic(),
        "ready": now.is_ready,
        "problem": now.problem,
        "shards": list(shards),
        "streams": {state: now.streams.get(state, 0) for state in STREAM_STATES},
        "readers": now.subscribers,
        "connections": now.connections,
        "queued": now.queued,
        "totals": {name: getattr(counters, name) for name in TOTALS}
        | {
            "requests_total": sum(counters.requests.values()),
            "streams_ended_total": sum(counters.streams_ended.values()),
        },
        "ttft_ms": {name: counters.ttft.quantile_us(share) / 1000 for name, share in (("p50", 0.5), ("p99", 0.99))},
        "tenants": [
            {"name": name, "streams": now.tenant_streams.get(name, 0), "limit": limits.get(name)}
            for name in tenants[:MAX_TENANTS_SHOWN]
        ],
        "engines": [
            {
                "name": name,
                "up": pool.up,
                "idle": pool.idle,
                "busy": pool.busy,
                "connecting": pool.connecting,
                "in_flight": pool.in_flight,
                "breaker": BREAKER_STATES[min(pool.breaker, len(BREAKER_STATES) - 1)],
                "kv_used": pool.kv_used,
                "waiting": pool.waiting,
                "limit": pool.limit,
                "problem": pool.problem,
            }
            for name, pool in now.pools.items()
        ],
        "arena": {
            "bytes": now.arena_bytes,
            "blocks": now.arena_blocks,
            "free": now.arena_blocks_free,
            "used": dict(now.arena_blocks_used),
        },
    }
