"""One request, from a client's words to an engine's first byte, on one screen.

What lives here: the sequence of stages that a request passes, and how an engine's ending becomes a stream's. What must
not: sockets, HTTP syntax, the inside of any stage. Everything here is synchronous: it decides, and what it started
acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .admission.limiter import Limiter
from .admission.tenants import Tenant
from .dialects.base import Ask
from .engines.base import Answer, Failure, Watch
from .engines.call import Call, CallShell, Order
from .engines.directory import Directory
from .engines.exchange import Expect
from .engines.openai import ChatWatch, RelayWatch, most_usage, usage_of_body, usage_of_event, words_of
from .engines.pool import Upstream
from .engines.request import with_model
from .engines.transport import UpstreamConnection
from .streams.arena import ArenaFull
from .streams.registry import Registry
from .streams.stream import BodyHead, EndingWords, Facts, Kind, Link, OnDisconnect, Refusal, Stream
from .wire.http1 import Headers
from .words.errors import ModelForbidden, Overloaded
from .words.reasons import CloseReason
from .words.settings import Settings
from .words.wishes import NO_WISHES

USAGE_LOOK_BACK = 4
"""Of a stream's last events, so many are searched for usage at its end, and none before: engines that count as they go say it
in each event, others in one of the last."""
USAGE_LOOK_BACK_BYTES = 8 * 1024
MAX_COUNTED_BODY_BYTES = 256 * 1024
"""A JSON answer that is larger is not parsed for its usage: that would hold up all streams (embeddings reach megabytes)."""


class Visit(NamedTuple):
    """A request as the server understood it. ``headers`` are those that go on to the engine."""

    tenant: Tenant
    route: str
    target: bytes
    headers: Headers
    request_id: str
    idempotency_key: bytes
    on_disconnect: OnDisconnect
    grace_s: float
    words: EndingWords
    asker: tuple[int, int] = (0, 0)
    """The connection that asks and the bytes written on it so far: which of its requests this is, for an adopter."""
    timeouts: Mapping[str, float] = NO_WISHES
    """What it wishes for the clocks of its generation, by the names of words.wishes."""


@dataclass(slots=True)
class Gateway:
    """Sequences the stages. Built by lifecycle, called by the server."""

    settings: Settings
    directory: Directory
    limiter: Limiter
    registry: Registry
    calls: CallShell
    is_draining: bool = False
    user_agent: bytes = b"longwire"

    def generate(self, ask: Ask, visit: Visit) -> Stream:
        """Start a generation, or find the one that this Idempotency-Key has started already.

        Raises:
            LongwireError: refused, and nothing was started; code and status say why.
        """
        if not visit.tenant.may_use(ask.model):
            raise ModelForbidden("This key may not use this model (or none was named).", param="model")
        key_hash, body_hash = self._idempotency(ask, visit)
        if key_hash and (started := self.registry.find_by_key(key_hash, body_hash)):
            self.calls.instruments.idempotent_hits_total += 1
            return started
        if (asked := self.registry.find_asked(visit.asker)) is not None:
            return asked
        if self.is_draining:
            raise Overloaded("This gateway is shutting down; try again.", retry_after_s=1)
        upstream = self.directory.choose(ask.model, visit.tenant.may_use, key=self._conversation(ask, visit))
        facts = self._facts(ask, visit, upstream)
        slot = self.limiter.admit(visit.tenant, facts.context_tokens)
        try:
            stream = self.registry.open(facts, visit.words)
        except BaseException:
            slot.release()
            slot.settle(0)
            raise
        stream.slot = slot
        stream.on_disconnect, stream.grace_s = visit.on_disconnect, visit.grace_s
        if key_hash:
            self.registry.pin_key(key_hash, body_hash, stream)
        self._call(upstream, ask, visit, stream)
        return stream

    def _call(self, upstream: Upstream, ask: Ask, visit: Visit, stream: Stream) -> None:
        """Ask the engine; its answer goes into the stream by itself from here on."""
        generation = Generation(stream, self.registry)
        call = Call(upstream, self._order(upstream, ask, visit), stream, generation, self.calls)
        stream.producer = call
        try:
            call.start()
            if stream.link.fd < 0:
                self.registry.store_row(stream)
        except ArenaFull as exc:
            stream.stop(CloseReason.ARENA_FULL, "")
            raise Overloaded("There is no room for another stream; try again shortly.", retry_after_s=2) from exc
        except BaseException:
            stream.stop(CloseReason.INTERNAL_ERROR, "")  # nobody reads it yet, so nothing else would ever end it
            raise

    def _idempotency(self, ask: Ask, visit: Visit) -> tuple[bytes, bytes]:
        """Keyed hashes of the key in its scope (tenant and route) and of the body; empty where no key came."""
        if not visit.idempotency_key:
            return b"", b""
        key_hash = self.hash_key(visit.tenant, visit.target, visit.idempotency_key)
        return key_hash, self.registry.hash(ask.plain_body or ask.body)

    def hash_key(self, tenant: Tenant, target: bytes, key: bytes) -> bytes:
        """An Idempotency-Key in its scope. The slot that keeps the key follows from it: all shards must hash alike."""
        return self.registry.hash(tenant.name.encode(), target, key)

    def _conversation(self, ask: Ask, visit: Visit) -> bytes:
        """The same for each turn of a conversation; empty where it has no beginning that could be told."""
        return self.registry.hash(visit.tenant.name.encode(), ask.beginning) if ask.beginning else b""

    def _facts(self, ask: Ask, visit: Visit, upstream: Upstream) -> Facts:
        return Facts(
            tenant=visit.tenant.name,
            tenant_index=visit.tenant.index,
            route=visit.route,
            model=ask.model,
            engine=upstream.name,
            request_id=visit.request_id,
            prompt_hash=self.registry.hash(ask.plain_body or ask.body),
            choices=ask.choices,
            hides_usage=ask.hides_usage,
            wants_stream=ask.wants_stream,
            asker=visit.asker,
            prompt_tokens=ask.prompt_tokens,
            context_tokens=ask.prompt_tokens + ask.answer_tokens,
        )

    def _order(self, upstream: Upstream, ask: Ask, visit: Visit) -> Order:
        headers: Headers = [
            (b"host", upstream.host_header),
            (b"user-agent", self.user_agent),
            (b"accept-encoding", b"identity"),
            *visit.headers,
        ]
        if upstream.engine.api_key:
            headers.append((b"authorization", b"Bearer " + upstream.engine.api_key.encode()))
        expect, make_watch = how_to_read(visit.route, ask.wants_stream, ask.choices, ask.hides_usage)
        own = upstream.own_name(ask.model)
        plain = with_model(ask.plain_body, ask.model, own) if ask.plain_body is not None else None
        return Order(visit.target, headers, with_model(ask.body, ask.model, own), expect, make_watch, plain)


def how_to_read(route: str, wants_stream: bool, choices: int, hides_usage: bool) -> tuple[Expect, Callable[[], Watch]]:
    """What answer is expected of an engine, and who watches it."""
    if route == "relay":
        return Expect.ANY, RelayWatch
    return Expect.EVENTS if wants_stream else Expect.JSON, lambda: ChatWatch(choices, hides_usage)


class Generation:
    """Carries what happens at the engine over to the stream: the one place where the two meet."""

    __slots__ = ("registry", "stream")

    def __init__(self, stream: Stream, registry: Registry) -> None:
        self.stream = stream
        self.registry = registry

    def sent(self, connection: UpstreamConnection) -> None:
        self.stream.link = Link(connection.fd, connection.read_bytes, connection.written_bytes)
        self.registry.store_row(self.stream)

    def answered(self, answer: Answer) -> None:
        self.stream.begin_body(BodyHead(answer.status, answer.headers, answer.content_length))

    def completed(self, call: Call, reason: CloseReason, message: str) -> None:
        self._count(call, is_whole=reason.is_success)
        self.stream.end(reason, message)

    def failed(self, call: Call, failure: Failure) -> None:
        self._count(call, is_whole=False)
        message = failure.message or f"The engine answered {failure.status}: {words_of(failure.body)}"
        self.stream.end(failure.reason, message, self._refusal(failure, message))

    def stopped(self, call: Call) -> None:
        self._count(call, is_whole=False)

    def _count(self, call: Call, *, is_whole: bool) -> None:
        facts = self.stream.facts
        log = self.stream.log
        if self.stream.kind is Kind.EVENTS:
            may_tell = (not is_whole or call.watch.usage is None) and self._speaks_of_usage()
            last = range(max(0, log.deliverable - USAGE_LOOK_BACK), log.deliverable) if may_tell else ()
            facts.usage = most_usage([call.watch.usage, *(usage_of_event(log.block(position)) for position in last)])
        elif log.bytes_held <= MAX_COUNTED_BODY_BYTES:
            facts.usage = usage_of_body(log.body())
        facts.tokens_estimated = max(0, len(log.entries) - len(log.silent) - call.watch.tokenless)

    def _speaks_of_usage(self) -> bool:
        """Whether the answer's last bytes do: to look at its events one by one costs something for each of them."""
        upstream = self.stream.log.upstream
        tail = min(upstream.end, USAGE_LOOK_BACK_BYTES)
        return b'"usage"' in upstream.read(upstream.end - tail, tail)

    def _refusal(self, failure: Failure, message: str) -> Refusal | None:
        """The engine's own error, faithfully: a 4xx as it is, a 5xx as 502 with the engine's words."""
        if failure.reason is CloseReason.UPSTREAM_REFUSED:
            return Refusal(failure.status, failure.body, failure.content_type or b"text/plain", failure.headers)
        if failure.reason is CloseReason.UPSTREAM_FAILED:
            body = self.stream.ending.error_body(failure.reason, message)
            status = 503 if failure.status == 503 else 502
            return Refusal(status, body, headers=failure.headers)
        if failure.status:
            body = self.stream.ending.error_body(failure.reason, message)
            return Refusal(failure.status if failure.status < 500 else 502, body)
        return None
