"""A shard's counters as one row of shared memory, and the sum over all shards.

What lives here: packing what one process has counted, reading it, and adding it up.
What must not: tables (streams), how often a row is written (lifecycle), names and help texts (declarations.py).

A row outlives its shard: the successor in the slot adds it to its own counters and counts on, so that no sum ever falls. It
is read by processes of other versions too: what it does not have counts as none, and what is strange is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from ..words.reasons import CloseReason
from ..words.shards import MAX_COUNTS_BYTES
from .declarations import OTHERS
from .instruments import BUCKETS, Histogram, Instruments
from .snapshot import MAX_POOL_PROBLEM_CHARS, PoolSnapshot, Snapshot

MAX_TENANTS_TOLD: Final = 400
"""Tenants with live streams that one row names; a name has 64 characters at most. The others' streams are told in one sum."""

MAX_PROBLEM_CHARS: Final = 500
"""Of the reason why a shard is not ready: a few engines and what is wrong with each."""

MAX_COUNT: Final = 1 << 60
"""Nothing that is counted gets there: a number beyond it is no count."""

_HISTOGRAMS: Final = tuple(
    sorted(name for name in Instruments.__slots__ if isinstance(getattr(Instruments(), name), Histogram))
)
_NUMBERS: Final = tuple(sorted(name for name in Instruments.__slots__ if isinstance(getattr(Instruments(), name), int)))
_GAUGES: Final = ("subscribers", "connections", "queued", "arena_blocks", "arena_blocks_free", "arena_bytes")
_REASONS: Final = {reason.value: reason for reason in CloseReason}

Counted = tuple[Instruments, Snapshot]
Key = TypeVar("Key")


class BadCounts(ValueError):
    """A row holds no counters, or those of a version that this one does not understand."""


# Packing.


def pack_counts(instruments: Instruments, snapshot: Snapshot) -> bytes:
    """Both as JSON, of MAX_COUNTS_BYTES at most: where all is too much, gauges by name are left out before any counter is."""
    told = _counters(instruments) | {"now": _gauges(snapshot)}
    payload = _encode(told)
    for name in ("models", "loads", "reserves", "tenants", "pools"):
        if len(payload) > MAX_COUNTS_BYTES:
            told["now"][name] = {}
            payload = _encode(told)
    return payload


def _encode(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode("ascii")


def _counters(instruments: Instruments) -> dict[str, Any]:
    histograms = {name: getattr(instruments, name) for name in _HISTOGRAMS}
    return {
        "n": {name: getattr(instruments, name) for name in _NUMBERS},
        "h": {name: [histogram.sum_us, *histogram.buckets] for name, histogram in histograms.items()},
        "streams_ended": {str(reason): count for reason, count in instruments.streams_ended.items()},
        "readers_ended": {str(word): count for word, count in instruments.readers_ended.items()},
        "requests": [[route, status, count] for (route, status), count in instruments.requests.items()],
    }


def _gauges(snapshot: Snapshot) -> dict[str, Any]:
    busy = sorted((name, count) for name, count in snapshot.tenant_streams.items() if count)
    tenants = dict(busy[:MAX_TENANTS_TOLD])
    if len(busy) > MAX_TENANTS_TOLD:
        tenants[OTHERS] = tenants.get(OTHERS, 0) + sum(count for _, count in busy[MAX_TENANTS_TOLD:])
    return {
        "version": snapshot.version,
        "ready": snapshot.is_ready,
        "problem": snapshot.problem[:MAX_PROBLEM_CHARS],
        **{name: getattr(snapshot, name) for name in _GAUGES},
        "streams": dict(snapshot.streams),
        "used": dict(snapshot.arena_blocks_used),
        "pools": {name: [int(p.up), p.idle, p.busy, p.connecting] for name, p in snapshot.pools.items()},
        "loads": {name: _load_of(pool) for name, pool in snapshot.pools.items()},
        "reserves": {name: pool.reserve for name, pool in snapshot.pools.items() if pool.reserve},
        "models": {name: list(pool.models) for name, pool in snapshot.pools.items() if pool.models},
        "tenants": tenants,
    }


def _load_of(pool: PoolSnapshot) -> list[Any]:
    """Apart from a pool's connections, of which older versions expect four numbers and no more."""
    return [pool.in_flight, pool.breaker, pool.kv_used, pool.waiting, pool.problem[:MAX_POOL_PROBLEM_CHARS], pool.limit]


# Reading.


def unpack_counts(payload: bytes) -> Counted:
    """What :func:`pack_counts` has packed.

    Raises:
        BadCounts: it is something else.
    """
    try:
        told = json.loads(payload)
        return _read_counters(told), _read_gauges(told["now"])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise BadCounts("these bytes are no shard's counters") from error


def _read_counters(told: Mapping[str, Any]) -> Instruments:
    instruments = Instruments()
    for name in _NUMBERS:
        setattr(instruments, name, _count(told["n"].get(name, 0)))
    for name in _HISTOGRAMS:
        values = [_count(value) for value in told["h"].get(name, [0] * (BUCKETS + 1))]
        histogram: Histogram = getattr(instruments, name)
        histogram.sum_us, histogram.buckets = values[0], _as_buckets(values[1:])
    for word, count in told["streams_ended"].items():
        if word in _REASONS:
            instruments.streams_ended[_REASONS[word]] = _count(count)
    for word, count in told["readers_ended"].items():
        if word in _REASONS:
            instruments.readers_ended[_REASONS[word]] = _count(count)
    for route, status, count in told["requests"]:
        instruments.requests[str(route), int(status)] = _count(count)
    return instruments


def _read_gauges(told: Mapping[str, Any]) -> Snapshot:
    models = {name: tuple(map(str, names)) for name, names in told.get("models", {}).items()}
    loads = told.get("loads", {})
    pools = {
        name: PoolSnapshot(
            up=bool(_count(up)),
            idle=_count(idle),
            busy=_count(busy),
            connecting=_count(connecting),
            models=models.get(name, ()),
            reserve=_count(told.get("reserves", {}).get(name, 0)),
            **(_read_load(loads[name]) if name in loads else {}),
        )
        for name, (up, idle, busy, connecting) in told["pools"].items()
    }
    return Snapshot(
        version=str(told["version"]),
        is_ready=bool(told["ready"]),
        problem=str(told["problem"]),
        streams=_counts(told["streams"]),
        subscribers=_count(told["subscribers"]),
        connections=_count(told["connections"]),
        queued=_count(told.get("queued", 0)),
        arena_blocks=_count(told["arena_blocks"]),
        arena_blocks_free=_count(told["arena_blocks_free"]),
        arena_blocks_used=_counts(told["used"]),
        arena_bytes=_count(told["arena_bytes"]),
        pools=pools,
        tenant_streams=_counts(told["tenants"]),
    )


def _read_load(told: Sequence[Any]) -> dict[str, Any]:
    in_flight, breaker, kv_used, waiting, problem = told[:5]
    return {
        "in_flight": _count(in_flight),
        "breaker": _count(breaker),
        "kv_used": _amount(kv_used),
        "waiting": _amount(waiting),
        "problem": str(problem)[:MAX_POOL_PROBLEM_CHARS],
        "limit": _amount(told[5]) if len(told) > 5 else None,
    }


def _amount(value: object) -> float | None:
    """What an engine said of itself, if it did."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_COUNT:
        raise BadCounts(f"{value!r:.40} is no amount")
    return float(value)


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise BadCounts(f"{value!r:.40} is no count")
    return int(value)


def _counts(told: Mapping[str, Any]) -> dict[str, int]:
    return {name: _count(value) for name, value in told.items()}


def _as_buckets(values: list[int]) -> list[int]:
    if len(values) != BUCKETS:
        raise BadCounts(f"a histogram has {BUCKETS} buckets, not {len(values)}")
    return values


# Adding.


def add_counters(to: Instruments, more: Instruments) -> None:
    """Count on from ``more``: a successor does so with its predecessor's, a scrape with every shard's."""
    for name in _NUMBERS:
        setattr(to, name, getattr(to, name) + getattr(more, name))
    for name in _HISTOGRAMS:
        sum_of: Histogram = getattr(to, name)
        other: Histogram = getattr(more, name)
        sum_of.sum_us += other.sum_us
        for index, held in enumerate(other.buckets):
            sum_of.buckets[index] += held
    _add(to.streams_ended, more.streams_ended)
    _add(to.readers_ended, more.readers_ended)
    _add(to.requests, more.requests)


def restore_counters(instruments: Instruments, payload: bytes | None) -> bool:
    """Load what a slot's former shard has counted; False where its row holds nothing that can be read."""
    try:
        former, _ = unpack_counts(payload or b"")
    except BadCounts:
        return False
    add_counters(instruments, former)
    return True


def read_models(payload: bytes | None) -> dict[str, tuple[str, ...]]:
    """The models of each engine that a slot's former shard knew to be up."""
    try:
        _, now = unpack_counts(payload or b"")
    except BadCounts:
        return {}
    return {name: pool.models for name, pool in now.pools.items() if pool.up}


def merge(parts: Iterable[Counted]) -> Counted:
    """Several shards as one. It is ready if any of them is, and an engine is up if any of them reaches it."""
    instruments = Instruments()
    snapshots: list[Snapshot] = []
    for counters, snapshot in parts:
        add_counters(instruments, counters)
        snapshots.append(snapshot)
    return instruments, _add_snapshots(snapshots)


def _add_snapshots(snapshots: Sequence[Snapshot]) -> Snapshot:
    streams: dict[str, int] = {}
    used: dict[str, int] = {}
    tenants: dict[str, int] = {}
    pools: dict[str, PoolSnapshot] = {}
    numbers = dict.fromkeys(_GAUGES, 0)
    for snapshot in snapshots:
        _add(streams, snapshot.streams)
        _add(used, snapshot.arena_blocks_used)
        _add(tenants, snapshot.tenant_streams)
        for name, pool in snapshot.pools.items():
            pools[name] = _add_pools(pools.get(name), pool)
        for name in _GAUGES:
            numbers[name] += getattr(snapshot, name)
    is_ready = any(snapshot.is_ready for snapshot in snapshots)
    problems = dict.fromkeys(snapshot.problem for snapshot in snapshots if snapshot.problem)
    return Snapshot(
        version=next((snapshot.version for snapshot in reversed(snapshots) if snapshot.version), ""),
        is_ready=is_ready,
        problem="" if is_ready else "; ".join(problems),
        streams=streams,
        arena_blocks_used=used,
        tenant_streams=tenants,
        pools=pools,
        subscribers=numbers["subscribers"],
        connections=numbers["connections"],
        queued=numbers["queued"],
        arena_blocks=numbers["arena_blocks"],
        arena_blocks_free=numbers["arena_blocks_free"],
        arena_bytes=numbers["arena_bytes"],
    )


def _add_pools(pool: PoolSnapshot | None, more: PoolSnapshot) -> PoolSnapshot:
    if pool is None:
        return replace(more)
    return PoolSnapshot(
        up=pool.up or more.up,
        idle=pool.idle + more.idle,
        busy=pool.busy + more.busy,
        connecting=pool.connecting + more.connecting,
        models=pool.models or more.models,
        in_flight=pool.in_flight + more.in_flight,
        reserve=pool.reserve + more.reserve,
        breaker=max(pool.breaker, more.breaker),
        kv_used=pool.kv_used if more.kv_used is None else more.kv_used,
        waiting=pool.waiting if more.waiting is None else more.waiting,
        problem=more.problem if more.breaker > pool.breaker else pool.problem or more.problem,
        limit=_sum_of_limits(pool.limit, more.limit),
    )


def _sum_of_limits(limit: float | None, more: float | None) -> float | None:
    """Each shard learns for its own requests: one that has learned nothing has no part in it."""
    return more if limit is None else limit if more is None else limit + more


def _add(to: dict[Key, int], more: Mapping[Key, int]) -> None:
    for key, count in more.items():
        to[key] = to.get(key, 0) + count
