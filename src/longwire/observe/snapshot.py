"""What stands at one moment: the gauges' values.

What lives here: the frozen picture that lifecycle takes of its rooms when someone scrapes.
What must not: counters (instruments.py keeps those as they happen), ids of streams or clients, any library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

STREAM_STATES: Final = ("opening", "live", "ended")
"""Every state that a stream can be in."""

ARENA_USES: Final = ("log", "request", "records", "input")
"""What a block can be used for: a stream's log, an encoded upstream request, gateway records, bytes from a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """One slot and the process that serves it."""

    index: int
    state: str
    restarts: int = 0
    silent_s: float = 0.0
    """How long its loop has not been heard of."""


MAX_POOL_PROBLEM_CHARS: Final = 200
"""Of what is wrong with an upstream: the kinds of faults that opened its breaker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """One upstream: its connections, whether it answers its probe, how much it has to do, and whether it is trusted."""

    up: bool = False
    idle: int = 0
    busy: int = 0
    connecting: int = 0
    models: tuple[str, ...] = ()
    """What it said it has: for a successor, that must not refuse what its predecessor would have served."""
    in_flight: int = 0
    """Requests under way."""
    breaker: int = 0
    """0 closed, 1 half-open, 2 open."""
    kv_used: float | None = None
    """Share of its KV cache, by its own account; None where it is not known."""
    waiting: float | None = None
    """Requests that wait there, by its own account."""
    problem: str = ""
    """Why it is not up, or not trusted."""
    reserve: int = 0
    """Connections that are to stand ready."""
    limit: float | None = None
    """How many requests it is given at most, as was learned of its saturation; None: nothing was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The gauges of one process, or of several added up; whatever is not given counts as none."""

    version: str = ""
    is_ready: bool = False
    """Whether new requests make sense here."""
    problem: str = ""
    """Why not."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """How many streams are in each of STREAM_STATES."""
    subscribers: int = 0
    connections: int = 0
    queued: int = 0
    """Requests that wait for room at an engine."""
    arena_blocks: int = 0
    arena_blocks_free: int = 0
    arena_blocks_used: Mapping[str, int] = field(default_factory=dict)
    """How many blocks serve each of ARENA_USES."""
    arena_bytes: int = 0
    pools: Mapping[str, PoolSnapshot] = field(default_factory=dict)
    """By the upstream's name."""
    tenant_streams: Mapping[str, int] = field(default_factory=dict)
    """Streams that count against the limit of each tenant, by its name: over all shards, as are the two below."""
    tenant_held_tokens: Mapping[str, int] = field(default_factory=dict)
    tenant_reserved_tokens: Mapping[str, int] = field(default_factory=dict)
    shards: Sequence[ShardSnapshot] = ()
    """Every slot; known to whoever sees them all."""
