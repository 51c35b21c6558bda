"""Every metric, declared once.

What lives here: name, kind, help, unit and labels of each metric, beside the one line that reads its value.
What must not: counting (instruments.py), rendering (metrics.py), ids or anything else that a stranger chooses as a label.

Label values are the close reasons, our routes, HTTP statuses, or names that the operator has set (engines, tenants), with the
addresses of an engine's other endpoints; so the number of series has a bound that no request can move.

Over 400 lines: the file is one table, which grows by one entry per metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..words.reasons import CloseReason
from ..words.shards import SHARD_STATES
from .instruments import Instruments
from .metric import Look, Metric, Reading, Series, told
from .queue_declarations import QUEUE_METRICS
from .snapshot import ARENA_USES, STREAM_STATES, Snapshot

__all__ = ["CLOCKS", "MAX_LABELLED", "METRICS", "OTHERS", "Look", "Metric", "Reading"]

MAX_LABELLED: Final = 1000
"""Most tenants that get a series of their own (engines are few). A label with more values strains a Prometheus; what lies
beyond is added up under OTHERS, so that sums stay true."""

OTHERS: Final = "(others)"

CLOCKS: Final = ("connect", "first_byte", "first_token", "silence", "rate", "total")
"""The clocks that run while an engine answers; each has a counter ``clock_<name>_total``."""


def _by_word(counts: Mapping[CloseReason, int] | Mapping[str, int]) -> Series:
    return {(str(word),): count for word, count in counts.items()}


def _every(words: tuple[str, ...], counts: Mapping[str, int]) -> Series:
    """One series for each word, whether it occurs or not: an absent series is not a zero to an alert."""
    return {(word,): counts.get(word, 0) for word in words}


def _bounded(counts: Mapping[str, int]) -> Series:
    names = sorted(counts)
    series: dict[tuple[str, ...], float] = {(name,): counts[name] for name in names[:MAX_LABELLED]}
    if len(names) > MAX_LABELLED:
        series[(OTHERS,)] = series.get((OTHERS,), 0) + sum(counts[name] for name in names[MAX_LABELLED:])
    return series


def _requests(instruments: Instruments) -> Series:
    return {(route, str(status)): count for (route, status), count in instruments.requests.items()}


def _shards_by_state(snapshot: Snapshot) -> Series:
    states = [shard.state for shard in snapshot.shards]
    return {(state,): states.count(state) for state in SHARD_STATES}


def _pool_connections(snapshot: Snapshot) -> Series:
    series: dict[tuple[str, ...], float] = {}
    for engine, pool in snapshot.pools.items():
        series[(engine, "idle")] = pool.idle
        series[(engine, "busy")] = pool.busy
        series[(engine, "connecting")] = pool.connecting
    return series


METRICS: Final[tuple[Metric, ...]] = (
    # Streams, from their start to their end.
    Metric(
        name="longwire_streams_started_total",
        kind="counter",
        help="Streams that were opened.",
        read=lambda at: at.counters.streams_started_total,
    ),
    Metric(
        name="longwire_streams_ended_total",
        kind="counter",
        help="Streams that ended, by the one reason why.",
        labels=("close_reason",),
        read=lambda at: _by_word(at.counters.streams_ended),
    ),
    Metric(
        name="longwire_streams",
        kind="gauge",
        help="Streams that the log holds now, by state.",
        labels=("state",),
        read=lambda at: _every(STREAM_STATES, at.now.streams),
    ),
    Metric(
        name="longwire_tenant_streams",
        kind="gauge",
        help="Streams that count against a tenant's limit now, detached ones included.",
        labels=("tenant",),
        read=lambda at: _bounded(at.now.tenant_streams),
    ),
    Metric(
        name="longwire_tenant_held_tokens",
        kind="gauge",
        unit="tokens",
        help="Tokens that a tenant's live streams may need for their contexts, as estimated from their requests.",
        labels=("tenant",),
        read=lambda at: _bounded(at.now.tenant_held_tokens),
    ),
    Metric(
        name="longwire_tenant_reserved_tokens",
        kind="gauge",
        unit="tokens",
        help="Tokens that are reserved for the contexts of a tenant's reserved slots (reserved_slots x slot_tokens).",
        labels=("tenant",),
        read=lambda at: _bounded(at.now.tenant_reserved_tokens),
    ),
    Metric(
        name="longwire_events_total",
        kind="counter",
        help=(
            "Events that engines sent into logs; each once, however many readers it has. What has just come may be missing: of"
            " each stream at most a block (16 KiB), and of all the last second."
        ),
        read=lambda at: at.counters.events_total,
    ),
    Metric(
        name="longwire_upstream_bytes_total",
        kind="counter",
        unit="bytes",
        help="Bytes received from engines. What has just come may be missing, as of the events.",
        read=lambda at: at.counters.upstream_bytes_total,
    ),
    Metric(
        name="longwire_stream_duration_seconds",
        kind="histogram",
        unit="seconds",
        help="Time from a stream's opening to its end.",
        low=14,
        high=32,
        read=lambda at: at.counters.stream_duration,
    ),
    # What users wait for.
    Metric(
        name="longwire_ttfb_seconds",
        kind="histogram",
        unit="seconds",
        help="Time from the request to the engine's first byte.",
        low=10,
        high=30,
        read=lambda at: at.counters.ttfb,
    ),
    Metric(
        name="longwire_ttft_seconds",
        kind="histogram",
        unit="seconds",
        help="Time from the request to the engine's first event with content.",
        low=10,
        high=30,
        read=lambda at: at.counters.ttft,
    ),
    Metric(
        name="longwire_event_gap_seconds",
        kind="histogram",
        unit="seconds",
        help="Time between two events of a stream as they came from the engine; one stream in 32 is measured.",
        low=8,
        high=26,
        read=lambda at: at.counters.event_gap,
    ),
    # Tokens.
    Metric(
        name="longwire_prompt_tokens_total",
        kind="counter",
        unit="tokens",
        help="Prompt tokens, as engines reported them.",
        read=lambda at: at.counters.tokens_prompt_total,
    ),
    Metric(
        name="longwire_completion_tokens_total",
        kind="counter",
        unit="tokens",
        help="Generated tokens, as engines reported them or else as estimated.",
        read=lambda at: at.counters.tokens_completion_total,
    ),
    Metric(
        name="longwire_estimated_tokens_total",
        kind="counter",
        unit="tokens",
        help="The part of the tokens that no engine reported and that was counted from events.",
        read=lambda at: at.counters.tokens_estimated_total,
    ),
    # Readers.
    Metric(
        name="longwire_subscribers",
        kind="gauge",
        help="Readers that are attached to a stream now.",
        read=lambda at: at.now.subscribers,
    ),
    Metric(
        name="longwire_readers_ended_total",
        kind="counter",
        help="Readers that ended: those that got to the end under their stream's reason, any other under its own.",
        labels=("close_reason",),
        read=lambda at: _by_word(at.counters.readers_ended),
    ),
    Metric(
        name="longwire_body_bytes_total",
        kind="counter",
        unit="bytes",
        help="Bytes of stream bodies given to readers.",
        read=lambda at: at.counters.body_bytes_total,
    ),
    Metric(
        name="longwire_heartbeats_total",
        kind="counter",
        help="Comment lines sent into a silence.",
        read=lambda at: at.counters.heartbeats_total,
    ),
    Metric(
        name="longwire_resumes_total",
        kind="counter",
        help="Reads of a stream that began at a cursor.",
        read=lambda at: at.counters.resumes_total,
    ),
    # Requests.
    Metric(
        name="longwire_requests_total",
        kind="counter",
        help=(
            "Requests that were answered, by route and HTTP status; status 0 is one that HTTP does not have, or one of more"
            " than anybody uses."
        ),
        labels=("route", "status"),
        read=lambda at: _requests(at.counters),
    ),
    Metric(
        name="longwire_idempotent_hits_total",
        kind="counter",
        help="Requests whose Idempotency-Key found the stream that it had started.",
        read=lambda at: at.counters.idempotent_hits_total,
    ),
    Metric(
        name="longwire_connections",
        kind="gauge",
        help="Client connections that are open now.",
        read=lambda at: at.now.connections,
    ),
    # Engines.
    Metric(
        name="longwire_engine_up",
        kind="gauge",
        help="1 if the engine answered its last probe, else 0.",
        labels=("engine",),
        read=lambda at: {(name,): int(pool.up) for name, pool in at.now.pools.items()},
    ),
    Metric(
        name="longwire_engine_connections",
        kind="gauge",
        help="Connections to an engine now: idle, busy or connecting.",
        labels=("engine", "state"),
        read=lambda at: _pool_connections(at.now),
    ),
    Metric(
        name="longwire_engine_reserve_connections",
        kind="gauge",
        help="Connections to an engine that are to stand ready now, besides those in use; of all shards.",
        labels=("engine",),
        read=lambda at: {(name,): pool.reserve for name, pool in at.now.pools.items()},
    ),
    Metric(
        name="longwire_reserve_misses_total",
        kind="counter",
        help="Requests that found no connection ready and had to wait for one.",
        read=lambda at: at.counters.reserve_misses_total,
    ),
    Metric(
        name="longwire_engine_in_flight",
        kind="gauge",
        help="Requests that an engine is answering now.",
        labels=("engine",),
        read=lambda at: {(name,): pool.in_flight for name, pool in at.now.pools.items()},
    ),
    Metric(
        name="longwire_engine_breaker",
        kind="gauge",
        help="Whether an engine is trusted: 0 closed, 1 half-open (one request may try), 2 open; the worst of any shard.",
        labels=("engine",),
        read=lambda at: {(name,): pool.breaker for name, pool in at.now.pools.items()},
    ),
    Metric(
        name="longwire_engine_kv_used_ratio",
        kind="gauge",
        unit="ratio",
        help="Share of an engine's KV cache in use, by its own account; absent where it is not known.",
        labels=("engine",),
        read=lambda at: told({name: pool.kv_used for name, pool in at.now.pools.items()}),
    ),
    Metric(
        name="longwire_engine_waiting",
        kind="gauge",
        help="Requests that wait in an engine, of whomever, by its own account; absent where it is not known.",
        labels=("engine",),
        read=lambda at: told({name: pool.waiting for name, pool in at.now.pools.items()}),
    ),
    *QUEUE_METRICS,
    Metric(
        name="longwire_breakers_opened_total",
        kind="counter",
        help="Times that an upstream was given a rest because of its faults; each shard has its own view.",
        read=lambda at: at.counters.breakers_opened_total,
    ),
    Metric(
        name="longwire_failovers_total",
        kind="counter",
        help="Requests that another upstream was asked after one had failed, before any content had reached a client.",
        read=lambda at: at.counters.failovers_total,
    ),
    Metric(
        name="longwire_continuations_total",
        kind="counter",
        help="Answers that broke and were gone on with by another request to an engine that does so exactly.",
        read=lambda at: at.counters.continuations_total,
    ),
    Metric(
        name="longwire_retries_refused_total",
        kind="counter",
        help="Failures that were not tried again because the tenant had used up its budget of retries.",
        read=lambda at: at.counters.retries_refused_total,
    ),
    Metric(
        name="longwire_clock_fired_total",
        kind="counter",
        help="Times that an engine was given up because one of its clocks had run out, whatever came of the stream.",
        labels=("clock",),
        read=lambda at: {(clock,): getattr(at.counters, f"clock_{clock}_total") for clock in CLOCKS},
    ),
    Metric(
        name="longwire_silence_warnings_total",
        kind="counter",
        help="Times that an engine was silent in mid-answer for token_silence_s, once or twice in a row.",
        read=lambda at: at.counters.silence_warnings_total,
    ),
    Metric(
        name="longwire_busy_silences_total",
        kind="counter",
        help="Silences that would have been acted on, but the engine's own counter showed that it was busy with others.",
        read=lambda at: at.counters.busy_silences_total,
    ),
    Metric(
        name="longwire_retries_total",
        kind="counter",
        help="Requests sent again because a reused connection to an engine died without one byte of answer.",
        read=lambda at: at.counters.retries_total,
    ),
    # The arena.
    Metric(
        name="longwire_arena_bytes",
        kind="gauge",
        unit="bytes",
        help="Size of the arena.",
        read=lambda at: at.now.arena_bytes,
    ),
    Metric(
        name="longwire_arena_blocks",
        kind="gauge",
        help="Blocks of the arena, used and free.",
        read=lambda at: at.now.arena_blocks,
    ),
    Metric(
        name="longwire_arena_free_blocks",
        kind="gauge",
        help="Blocks of the arena that nothing holds. At 0 reading from engines pauses and new streams are refused.",
        read=lambda at: at.now.arena_blocks_free,
    ),
    Metric(
        name="longwire_arena_used_blocks",
        kind="gauge",
        help="Blocks of the arena in use, by what for.",
        labels=("use",),
        read=lambda at: _every(ARENA_USES, at.now.arena_blocks_used),
    ),
    # The processes.
    Metric(
        name="longwire_shards",
        kind="gauge",
        help="Shards by what they are doing; hung is one whose loop has not been heard of for seconds.",
        labels=("state",),
        read=lambda at: _shards_by_state(at.now),
    ),
    Metric(
        name="longwire_shard_restarts_total",
        kind="counter",
        help="Shards that were started in the place of one that had died or was replaced.",
        read=lambda at: sum(shard.restarts for shard in at.now.shards),
    ),
    Metric(
        name="longwire_shard_silence_seconds",
        kind="gauge",
        unit="seconds",
        help="How long a shard's loop has not been heard of; it beats four times a second.",
        labels=("shard",),
        read=lambda at: {(str(shard.index),): shard.silent_s for shard in at.now.shards},
    ),
    Metric(
        name="longwire_streams_adopted_total",
        kind="counter",
        help="Streams that were taken over from a shard that had ended, live or kept after their end.",
        read=lambda at: at.counters.streams_adopted_total,
    ),
    Metric(
        name="longwire_connections_adopted_total",
        kind="counter",
        help="Client connections that were taken over from a shard that had ended.",
        read=lambda at: at.counters.connections_adopted_total,
    ),
    Metric(
        name="longwire_adoption_pause_seconds",
        kind="histogram",
        unit="seconds",
        help="How long streams stood still between the end of their shard and their adoption.",
        low=10,
        high=26,
        read=lambda at: at.counters.adoption_pause,
    ),
    Metric(
        name="longwire_poisoned_total",
        kind="counter",
        help="Streams that were sealed because adopting them had ended shards.",
        read=lambda at: at.counters.poisoned_total,
    ),
    Metric(
        name="longwire_connections_passed_total",
        kind="counter",
        help="Client connections that were passed to the shard that their request belongs to.",
        read=lambda at: at.counters.connections_passed_total,
    ),
    Metric(
        name="longwire_accepts_refused_total",
        kind="counter",
        help="Connections that were answered 503 at once, because the limit of open files was near.",
        read=lambda at: at.counters.accepts_refused_total,
    ),
    Metric(
        name="longwire_accept_pauses_total",
        kind="counter",
        help="Times that connections were not accepted for a while, because descriptors ran short.",
        read=lambda at: at.counters.accept_pauses_total,
    ),
    Metric(
        name="longwire_loop_lag_seconds",
        kind="histogram",
        unit="seconds",
        help="How late the event loop called what had asked to be called at a certain time.",
        low=6,
        high=23,
        read=lambda at: at.counters.loop_lag,
    ),
    Metric(
        name="longwire_gc_runs_total",
        kind="counter",
        help="Runs of the garbage collector that the gateway's clock asked for.",
        read=lambda at: at.counters.gc_runs_total,
    ),
    Metric(
        name="longwire_build_info",
        kind="gauge",
        help="Always 1; the label tells the version that runs.",
        labels=("version",),
        read=lambda at: {(at.now.version,): 1},
    ),
)
