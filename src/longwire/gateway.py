"""One request, from a client's words to an engine's first byte, on one screen.

What lives here: the sequence of stages that a request passes. What must not: sockets, HTTP syntax, the inside of any
stage, what becomes of a stream whose engine fails (generation.py). Everything here is synchronous: it decides, and what it
started acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

from .admission.limiter import Limiter
from .admission.ratelimits import rate_headers
from .admission.tenants import Tenant
from .dialects.base import Ask
from .engines.call import Call, Order
from .engines.directory import Directory
from .engines.kinds import Continues
from .engines.occupancy import Wanted
from .engines.pool import Upstream
from .engines.reading import how_to_read
from .engines.request import with_bound, with_model
from .engines.room import clamp_header, find_clamp
from .engines.said import CannotContinue
from .generation import Generation, GenerationShell
from .secondpart import Beginning
from .streams.arena import ArenaFull
from .streams.registry import Registry
from .streams.stream import EndingWords, Facts, OnDisconnect, State, Stream
from .streams.terms import TOO_LARGE, why_no_part
from .waiting import wanted_of
from .wire.http1 import Headers
from .words.errors import Conflict, ModelForbidden, Overloaded
from .words.reasons import CloseReason
from .words.settings import Settings
from .words.wishes import NO_WISHES

BOUNDED_ROUTES = frozenset({"chat_completions", "completions"})
"""Where max_tokens has a meaning that is known."""


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
    generations: GenerationShell
    is_draining: bool = False
    user_agent: bytes = b"longwire"

    def generate(self, ask: Ask, visit: Visit) -> Stream:
        """Start a generation, or find the one that this Idempotency-Key has started already.

        Raises:
            LongwireError: refused, and nothing was started; code and status say why.
        """
        if not visit.tenant.may_use(ask.model):
            raise ModelForbidden("This key may not use this model (or none was named).", param="model")
        key_hash, body_hash = self._idempotency(ask.plain_body or ask.body, visit)
        if (started := self._find_started(key_hash, body_hash, visit)) is not None:
            return started
        if self.is_draining:
            raise Overloaded("This gateway is shutting down; try again.", retry_after_s=1)
        conversation = self._conversation(ask, visit)
        upstream = self._choose(ask, visit, conversation)
        facts = self._facts(ask, visit, upstream)
        ask = self._clamped(ask, facts, upstream)
        waits = not self.generations.waiting.has_room(upstream, facts.model, wanted_of(facts))
        stream = self._open(facts, visit, waits=waits)
        if key_hash:
            self.registry.pin_key(key_hash, body_hash, stream)
        order = self._order(upstream, ask, visit, stream)
        self._begin(stream, order, upstream, conversation if waits else None)
        return stream

    def go_on(self, other: Stream, visit: Visit) -> Stream:
        """Start a stream with the rest of an answer that has ended before it was whole. Its text begins where that has ended.

        Raises:
            LongwireError: refused, and nothing was started; code and status say why.
        """
        key_hash, body_hash = self._idempotency(b"", visit)
        if (started := self._find_started(key_hash, body_hash, visit)) is not None:
            return started
        if not visit.tenant.may_use(other.facts.model):
            raise ModelForbidden("This key may not use this model any more.", param="model")
        if self.is_draining:
            raise Overloaded("This gateway is shutting down; try again.", retry_after_s=1)
        if other.state is not State.ENDED:
            raise Conflict("This stream has not ended; read it instead.")
        if other.request is None:
            assert other.reason is not None
            raise Conflict(why_no_part(other.facts, other.kind, other.reason) or TOO_LARGE)
        facts = replace(
            other.facts,
            request_id=visit.request_id,
            asker=visit.asker,
            timeouts=visit.timeouts,
            key_hash=b"",
            body_hash=b"",
            usage=None,
            tokens_estimated=0,
            first_byte_at=None,
            first_token_at=None,
            readers_total=0,
            resumes_total=0,
            attempts=1,
            continues=True,
        )
        try:
            beginning = Beginning(other)
        except CannotContinue as exc:
            raise Conflict(exc.why) from exc
        with ExitStack() as refused:
            refused.callback(beginning.drop)
            stream = self._open(facts, visit)
            refused.pop_all()
        if key_hash:
            self.registry.pin_key(key_hash, body_hash, stream)
        Generation(stream, self.generations).go_on_with(beginning)
        return stream

    @staticmethod
    def notes_on(stream: Stream) -> Headers:
        """What its client is told of a change to its request."""
        return clamp_header(stream.facts.clamped_tokens or None)

    def clocks_on(self, stream: Stream) -> Mapping[str, float]:
        """The clocks of a stream's engines, by the names that a request has for them."""
        return self.generations.clocks_of(stream.facts).by_wish()

    def limits_of(self, tenant: Tenant) -> Headers:
        """What a tenant is told of its limits per minute; nothing where it has none."""
        settings = tenant.settings
        if not settings.max_requests_per_min and not settings.max_tokens_per_min:
            return []
        return rate_headers(settings, *self.limiter.windows(tenant))

    def _choose(self, ask: Ask, visit: Visit, conversation: bytes) -> Upstream:
        """The engine for a request: one that has room for it, if there is any."""
        wanted = Wanted(ask.prompt_tokens, ask.answer_tokens, ask.choices, visit.tenant.name)
        waiting = self.generations.waiting

        def fits(upstream: Upstream) -> bool:
            return waiting.has_room(upstream, ask.model, wanted)

        return self.directory.choose(ask.model, visit.tenant.may_use, key=conversation, fits=fits)

    def _clamped(self, ask: Ask, facts: Facts, upstream: Upstream) -> Ask:
        """The request with a bound to its answer, where it has none and its engine is saturated."""
        occupancy = upstream.occupancy
        if ask.answer_tokens or not self.settings.clamp_answers or not occupancy.saturation.is_hot:
            return ask
        if facts.route not in BOUNDED_ROUTES:
            return ask
        clamp = find_clamp(0, occupancy.answers, self.directory.bounds(upstream), may_clamp=True)
        if clamp is None:
            return ask
        self.generations.calls.instruments.answers_clamped_total += 1
        facts.clamped_tokens = clamp
        facts.context_tokens = ask.prompt_tokens + clamp * ask.choices
        plain = with_bound(ask.plain_body, clamp) if ask.plain_body is not None else None
        return ask._replace(body=with_bound(ask.body, clamp), plain_body=plain, answer_tokens=clamp * ask.choices)

    def _open(self, facts: Facts, visit: Visit, *, waits: bool = False) -> Stream:
        """A stream in the tenant's name. ``waits``: only if it may."""
        slot = self.limiter.admit(visit.tenant, facts.context_tokens)
        self.generations.budget.note_request(facts.tenant, self.generations.calls.clock.now())
        try:
            if waits:
                self.generations.waiting.check(facts.tenant)
            stream = self.registry.open(facts, visit.words)
        except BaseException:
            slot.release()
            slot.settle(0)
            raise
        stream.slot = slot
        stream.on_disconnect, stream.grace_s = visit.on_disconnect, visit.grace_s
        return stream

    def _begin(self, stream: Stream, order: Order, upstream: Upstream, waits: bytes | None) -> None:
        """Ask the engine, or wait until it has room (``waits``: the conversation); the answer goes into the stream by itself
        from here on."""
        generation = Generation(stream, self.generations)
        try:
            if waits is not None:
                generation.wait(order.encode(upstream), waits)
            else:
                call = stream.producer = Call(upstream, order, stream, generation, self.generations.calls)
                call.start()
            if stream.link.fd < 0:
                self.registry.store_row(stream)
        except ArenaFull as exc:
            stream.stop(CloseReason.ARENA_FULL, "")
            raise Overloaded("There is no room for another stream; try again shortly.", retry_after_s=2) from exc
        except BaseException:
            stream.stop(CloseReason.INTERNAL_ERROR, "")  # nobody reads it yet, so nothing else would ever end it
            raise

    def _find_started(self, key_hash: bytes, body_hash: bytes, visit: Visit) -> Stream | None:
        """The stream that this very request has started already: by its key, or before its process has died."""
        if key_hash and (started := self.registry.find_by_key(key_hash, body_hash)) is not None:
            self.generations.calls.instruments.idempotent_hits_total += 1
            return started
        return self.registry.find_asked(visit.asker)

    def _idempotency(self, body: bytes, visit: Visit) -> tuple[bytes, bytes]:
        """Keyed hashes of the key in its scope (tenant and route) and of the body; empty where no key came."""
        if not visit.idempotency_key:
            return b"", b""
        key_hash = self.hash_key(visit.tenant, visit.target, visit.idempotency_key)
        return key_hash, self.registry.hash(body)

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
            can_be_continued=visit.route != "relay" and upstream.abilities.continues is not Continues.NEVER,
            timeouts=visit.timeouts,
        )

    def _order(self, upstream: Upstream, ask: Ask, visit: Visit, stream: Stream) -> Order:
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
        clocks = self.generations.clocks_of(stream.facts)
        body = with_model(ask.body, ask.model, own)
        wanted = wanted_of(stream.facts)
        return Order(
            visit.target, headers, body, expect, make_watch, clocks, plain, ask.model, stream.created_at, wanted
        )
