"""What an operator sees of a running gateway: the admin port's source, the gauges, and the log line at a stream's end.

What lives here: views of the rooms that lifecycle built.
What must not: building rooms (lifecycle.py), HTTP (admin), prompts or keys.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from .admission.limiter import Limiter
from .admission.tenants import Tenants
from .engines.directory import Directory, problem_of
from .engines.pool import Upstream
from .observe.counts import pack_counts
from .observe.declarations import Look
from .observe.instruments import Instruments
from .observe.overview import overview
from .observe.snapshot import PoolSnapshot, Snapshot
from .observe.streamlog import StreamEnd, StreamLog
from .server.cursors import check_cursor
from .streams.arena import BLOCK_BYTES
from .streams.describe import describe
from .streams.doors import Buffers, Door
from .streams.registry import Registry
from .streams.stream import State, Stream
from .streams.subscriber import Subscriber
from .streams.tables import Table
from .words.errors import Gone, NotFound, UpstreamError
from .words.ids import parse_cursor
from .words.reasons import CloseReason


class _Tail:
    """An outlet in memory, one step long: the subscriber is paused until what it wrote was taken."""

    def __init__(self) -> None:
        self.subscriber: Subscriber | None = None
        self.refusal: bytes | None = None
        self._bytes = bytearray()
        self._is_over = False
        self._ready = asyncio.Event()

    def begin(self, stream: Stream) -> bool:
        if stream.refusal is not None:
            self.refusal = stream.refusal.body
            self._is_over = True
            self._ready.set()
        return stream.refusal is None

    def send(self, buffers: Buffers, count: int) -> None:
        for buffer in buffers:
            self._bytes += buffer
        if self.subscriber is not None:
            self.subscriber.pause()
        self._ready.set()

    def flush(self) -> None:
        """There is no head to be kept back."""

    def splice(self) -> None:
        """An operator's look takes the long way."""

    def spliced(self, size: int, position: int) -> None:
        raise AssertionError("nothing was spliced")

    def checkpoint(self, position: int) -> None:
        """Nobody adopts an operator's look."""

    def finish(self, reason: CloseReason) -> None:
        self._is_over = True
        self._ready.set()

    cut = finish

    def call_soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    async def blocks(self, registry: Registry, id: str, position: int) -> AsyncIterator[bytes]:
        """What is read of the stream from an index position on, as it comes.

        Reading begins here and not before: a generator that is never begun is never finished either, and a reader that
        nobody takes away would keep the generation running. So the stream is looked for anew; it may be gone by now.
        """
        stream = registry.find(id, None)
        subscriber = self.subscriber = Subscriber(stream, self, Door.BARE_IDS, position)
        try:
            stream.attach(subscriber)
            while True:
                await self._ready.wait()
                self._ready.clear()
                taken, self._bytes = bytes(self._bytes), bytearray()
                if taken:
                    yield taken
                if self.refusal is not None:
                    raise UpstreamError(self.refusal.decode("utf-8", "replace")[:2000])
                if self._is_over and not self._bytes:
                    return
                subscriber.resume()
        finally:
            subscriber.detach()
            subscriber.flushed()


@dataclass(frozen=True, slots=True)
class Operation:
    """The admin port's source in one process: every tenant's streams, by the same objects that tenants see of their own."""

    registry: Registry
    gauges: Gauges

    def list_streams(self) -> Iterable[dict[str, object]]:
        return (describe(stream) for stream in self.registry.list(None))

    async def show_stream(self, id: str) -> dict[str, object] | None:
        stream = self._find(id)
        return None if stream is None else describe(stream)

    async def cancel_stream(self, id: str) -> dict[str, object] | None:
        stream = self._find(id)
        if stream is None:
            return None
        stream.stop(CloseReason.CANCELLED, "An operator stopped the generation.")
        return describe(stream)

    def ready(self) -> tuple[bool, str]:
        return self.gauges.is_ready()

    def list_shards(self) -> list[dict[str, object]]:
        """The one process as the one shard that it is."""
        is_ready, problem = self.gauges.is_ready()
        return [
            {
                "index": 0,
                "pid": os.getpid(),
                "state": "serving" if is_ready or problem != DRAINING else "draining",
                "streams": self.registry.live_count,
                "started": None,
                "restarts": 0,
                "loop_lag_ms": None,
                "connections": self.gauges.connections(),
                "silent_s": 0.0,
            }
        ]

    def overview(self) -> dict[str, object]:
        limits = {tenant.name: tenant.settings.max_streams for tenant in self.gauges.tenants}
        return overview(self.gauges.look(), self.list_shards(), limits)

    async def tail(self, id: str, after: str | None) -> AsyncIterator[bytes] | None:
        """The stream with ids from a cursor on; None where nothing is left to read.

        Raises:
            LongwireError: unknown stream or bad cursor.
        """
        stream = self.registry.find(id, None)
        cursor = parse_cursor(after or "")
        check_cursor(stream, cursor)
        if stream.state is State.ENDED and stream.refusal is None and cursor.seq == stream.log.last_seq:
            return None
        return _Tail().blocks(self.registry, id, stream.log.position_after(cursor.seq))

    def _find(self, id: str) -> Stream | None:
        try:
            return self.registry.find(id, None)
        except (NotFound, Gone):
            return None


DRAINING = "draining"
"""Why a shard is not ready that finishes its streams and takes no new ones."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Takes the picture that a scrape shows. It looks at no stream: it is taken every second, of however many there are."""

    registry: Registry
    instruments: Instruments
    directory: Directory
    tenants: Tenants
    limiter: Limiter
    connections: Callable[[], int]
    version: str
    is_ready: Callable[[], tuple[bool, str]] = lambda: (True, "")
    queued: Callable[[], int] = lambda: 0

    def look(self) -> Look:
        """What has been counted, and what stands now."""
        return Look(self.instruments, self.snapshot())

    def snapshot(self) -> Snapshot:
        registry = self.registry
        is_ready, problem = self.is_ready()
        arena = registry.arena.statistics()
        streams = registry.statistics()
        pools = {upstream.name: pool_of(upstream) for upstream in self.directory.upstreams}
        uses = {tenant.name: self.limiter.use(tenant) for tenant in self.tenants}
        return Snapshot(
            version=self.version,
            is_ready=is_ready,
            problem=problem,
            streams={state.name.lower(): streams[state.name.lower()] for state in State},
            subscribers=streams["subscribers"],
            connections=self.connections(),
            queued=self.queued(),
            arena_blocks=arena["blocks"],
            arena_blocks_free=arena["free"],
            arena_blocks_used={use: arena[use] for use in ("log", "records", "request", "input")},
            arena_bytes=arena["blocks"] * BLOCK_BYTES,
            pools=pools,
            tenant_streams={name: use.live_streams for name, use in uses.items()},
            tenant_held_tokens={name: use.held_tokens for name, use in uses.items()},
            tenant_reserved_tokens={name: use.reserved_tokens for name, use in uses.items()},
        )


def pool_of(upstream: Upstream) -> PoolSnapshot:
    """What is to be seen of one upstream. Its load is shown however old it is: a scrape knows its own time."""
    load = upstream.load
    return PoolSnapshot(
        up=upstream.is_up,
        models=upstream.models,
        in_flight=upstream.in_flight,
        breaker=int(upstream.breaker.state),
        kv_used=load.kv_used if load is not None else None,
        waiting=load.waiting if load is not None else None,
        problem=problem_of(upstream),
        reserve=upstream.warming.wanted,
        limit=upstream.occupancy.saturation.limit_at(upstream.now()),
        **upstream.statistics(),
    )


def write_counts(gauges: Gauges, counts: Table, slot: int) -> None:
    """Let others see what this shard has counted: about once a second, and for the last time when it ends."""
    look = gauges.look()
    counts.write(slot, pack_counts(look.counters, look.now))


def count_end(instruments: Instruments, stream: Stream) -> None:
    """What is counted of a stream when it has ended; also against its tenant's tokens per minute."""
    prompt, completion = _tokens(stream)
    if stream.slot is not None:
        # An engine that reports no usage has still read the prompt, if it answered anything.
        is_told = stream.facts.usage is not None or not completion
        stream.slot.settle(completion + (prompt if is_told else stream.facts.prompt_tokens))
    instruments.stream_duration.observe_s((stream.ended_at or stream.created_at) - stream.created_at)
    instruments.tokens_prompt_total += prompt
    if stream.facts.usage is None:
        instruments.tokens_estimated_total += completion
    else:
        instruments.tokens_completion_total += completion


def _tokens(stream: Stream) -> tuple[int, int]:
    """``(prompt, completion)`` as the engine counted them, else what was seen of the answer."""
    usage = stream.facts.usage or {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    completion = usage.get("completion_tokens", usage.get("output_tokens", stream.facts.tokens_estimated))
    return (prompt if isinstance(prompt, int) else 0), (completion if isinstance(completion, int) else 0)


def write_end(streamlog: StreamLog, stream: Stream) -> None:
    """The one line that is logged of a stream."""
    facts = stream.facts

    def since(at: float | None) -> float | None:
        return None if at is None else (at - stream.created_at) * 1000

    prompt_tokens, completion_tokens = _tokens(stream)
    streamlog.write(
        StreamEnd(
            stream_id=stream.id,
            tenant=facts.tenant,
            model=facts.model,
            engine=facts.engine,
            close_reason=stream.reason or CloseReason.INTERNAL_ERROR,
            status=stream.refusal.status if stream.refusal is not None else 200,
            events=stream.log.event_count,
            bytes=stream.log.bytes_held,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            tokens_estimated=facts.usage is None,
            ttfb_ms=since(facts.first_byte_at),
            ttft_ms=since(facts.first_token_at),
            total_ms=since(stream.ended_at) or 0.0,
            readers=facts.readers_total,
            resumes=facts.resumes_total,
            prompt_hash=facts.prompt_hash.hex(),
            request_id=facts.request_id,
        )
    )
