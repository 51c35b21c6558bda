"""One request through the gateway: what is refused, what is found again, what an engine is asked, how its endings come back.

The engine is a connection whose transport only remembers; directory and limiter say what a test wants.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from contextlib import closing
from typing import Any, cast

import pytest

from longwire.admission.tenants import Tenant
from longwire.dialects.base import Ask
from longwire.dialects.openai_chat import OpenAiWords, read_request
from longwire.engines.pool import Upstream
from longwire.engines.transport import UpstreamConnection
from longwire.gateway import Gateway, Visit
from longwire.generation import GenerationShell
from longwire.streams.arena import PAUSE_BLOCKS, RESERVE_BLOCKS, Use
from longwire.streams.doors import LAST_CHUNK, Door
from longwire.streams.stream import Kind, OnDisconnect, State, Stream
from longwire.words.errors import KeyReused, LongwireError, ModelForbidden, NoEngine, Overloaded, TooManyStreams
from longwire.words.reasons import CloseReason
from longwire.words.settings import EngineSettings, TenantSettings

from .streams.world import Hoard, World, framed

CHAT = b"/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LONG_AFTER_S = 100_000.0
"""Deadlines that were called off are forgotten when they would have been due."""
DONE = b"data: [DONE]\n\n"


def delta(content: str | None = None, finish: str | None = None, **more: object) -> bytes:
    inner = {} if content is None else {"content": content}
    frame = {"choices": [{"index": 0, "delta": inner, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(frame, separators=(",", ":")).encode() + b"\n\n"


WHOLE = (delta("a"), delta("b"), delta(finish="stop"), DONE)


class FakeTransport:
    """Takes every byte at once."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


class Line:
    """One connection to the engine, from the engine's side."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.transport = FakeTransport()
        self.connection = UpstreamConnection(upstream)
        self.connection.connection_made(cast(Any, self.transport))

    def say(self, data: bytes) -> Line:
        """The engine's bytes arrive, a read at a time."""
        while data:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]
        return self

    def answer(self, *blocks: bytes) -> Line:
        """A whole event stream, an event a read."""
        self.say(HEAD)
        for block in blocks:
            self.say(framed(block))
        return self.say(b"0\r\n\r\n")

    def close(self, error: Exception | None = None) -> None:
        self.connection.connection_lost(error)

    @property
    def asked(self) -> tuple[bytes, dict[bytes, bytes], bytes]:
        """The last request: target, header fields, body."""
        head, _, body = bytes(self.transport.written[self.transport.written.rindex(b"POST ") :]).partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        headers = [field.partition(b": ")[::2] for field in fields]
        assert len(dict(headers)) == len(headers), "no field is sent twice"
        return line.split(b" ")[1], dict(headers), body


class FakeUpstream(Upstream):
    """An engine whose connections are made without a socket."""

    def __init__(self, world: World, **engine: Any) -> None:
        settings = EngineSettings(**{"name": "fake", "url": "http://engine:8000/v1", **engine})
        super().__init__(settings, world.settings, world.clock)
        self.is_up = True
        self.lines: list[Line] = []

    def take_idle(self) -> UpstreamConnection:
        found = super().take_idle()
        return found if found is not None else self._connect()

    async def wait_connection(self) -> UpstreamConnection:
        return self._connect()

    wait_new = wait_connection

    def _connect(self) -> UpstreamConnection:
        line = Line(self)
        self.lines.append(line)
        self._busy.add(line.connection)
        return line.connection

    @property
    def line(self) -> Line:
        return self.lines[-1]


class FakeDirectory:
    """Knows one upstream, or says why not."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.upstream = upstream
        self.refuses: LongwireError | None = None
        self.keys: list[bytes] = []
        self.upstreams, self.retired = [upstream], list[Upstream]()

    def choose_other(self, *_: object, **__: object) -> None:
        """There is no second one."""

    def has_room(self, *_: object) -> bool:
        return True

    def choose(self, model: str, *_: object, key: bytes = b"", fits: object = None) -> Upstream:
        self.keys.append(key)
        if self.refuses is not None:
            raise self.refuses
        return self.upstream


class FakeLimiter:
    """Counts slots, and refuses when told to."""

    def __init__(self) -> None:
        self.held = 0
        self.refuses: LongwireError | None = None
        self.context_tokens = 0
        self.settled_tokens = -1

    def admit(self, tenant: Tenant, context_tokens: int = 0) -> FakeLimiter:
        if self.refuses is not None:
            raise self.refuses
        self.held += 1
        self.context_tokens = context_tokens
        return self

    def settle(self, tokens: int) -> None:
        self.settled_tokens = tokens

    def release(self) -> None:
        self.held -= 1
        assert self.held >= 0, "a slot is given back once"


class Stage(World):
    """A gateway with nothing around it."""

    def __init__(self, arena_bytes: int = 4 << 20, *, engine: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(arena_bytes, **settings)
        self.upstream = FakeUpstream(self, **(engine or {}))
        self.directory = FakeDirectory(self.upstream)
        self.limiter = FakeLimiter()
        directory = cast(Any, self.directory)
        shell = GenerationShell.make(self.settings, directory, self.registry, self.clock, self.instruments)
        self.gateway = Gateway(
            self.settings, directory, cast(Any, self.limiter), self.registry, shell, user_agent=b"gw/1"
        )

    def close(self) -> None:
        self.registry.close()
        self.upstream.close()
        while self.upstream.lines:
            self.upstream.lines.pop().close()
        self.clock.advance(LONG_AFTER_S)
        super().close()
        assert self.limiter.held == 0
        assert self.upstream.statistics() == {"idle": 0, "busy": 0, "connecting": 0}

    def post(self, ask: Ask | None = None, tenant: Tenant | None = None, **visit: Any) -> Stream:
        found = ask or asking()
        return self.gateway.generate(found, visiting(tenant or ACME, **visit))

    @property
    def line(self) -> Line:
        return self.upstream.line


def tenant_named(name: str, **settings: Any) -> Tenant:
    return Tenant(TenantSettings(name=name, **settings), 0)


ACME, OTHER = tenant_named("acme"), tenant_named("other")


def asking(**fields: Any) -> Ask:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_request(json.dumps(body).encode())


def visiting(tenant: Tenant, **fields: Any) -> Visit:
    usual: dict[str, Any] = {
        "route": "chat_completions",
        "target": CHAT,
        "headers": [(b"content-type", b"application/json"), (b"x-request-id", b"req_1")],
        "request_id": "req_1",
        "idempotency_key": b"",
        "on_disconnect": OnDisconnect.CANCEL,
        "grace_s": 0.0,
        "words": OpenAiWords(),
    }
    return Visit(tenant=tenant, **{**usual, **fields})


# What the engine is asked.


def test_an_alias_is_the_clients_word_and_the_engine_is_told_its_own() -> None:
    with closing(Stage(engine={"aliases": ["m=llama-3-8b"]})) as stage:
        stream = stage.post()
        head, _, body = bytes(stage.line.transport.written).partition(b"\r\n\r\n")
        assert json.loads(body)["model"] == "llama-3-8b" and b"content-length: %d" % len(body) in head
        assert stream.facts.model == "m"


def test_the_turns_of_a_conversation_have_one_key_and_others_have_others() -> None:
    with closing(Stage()) as stage:
        first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        later = [*first, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "and now?"}]
        for messages in (first, later, [first[0], {"role": "user", "content": "hi!"}], []):
            stage.post(asking(messages=messages))
        stage.post(asking(messages=first), OTHER)
        one, same, else_, none, others = stage.directory.keys
        assert one == same and none == b"" and len({one, else_, others}) == 3


def test_a_request_goes_to_the_engine_and_its_answer_into_the_stream() -> None:
    with Stage() as stage:
        stream = stage.post()
        client = stage.client().attach(stream, Door.BARE)
        target, headers, body = stage.line.asked
        assert target == CHAT
        assert headers == {
            b"host": b"engine:8000",
            b"user-agent": b"gw/1",
            b"accept-encoding": b"identity",
            b"content-type": b"application/json",
            b"x-request-id": b"req_1",
            b"content-length": b"%d" % len(body),
        }
        assert json.loads(body)["stream_options"] == {"include_usage": True}
        stage.line.answer(*WHOLE)
        stage.settle()
        assert client.body == b"".join(WHOLE)
        assert stream.reason is CloseReason.COMPLETED
        assert stage.limiter.held == 0


def test_an_engine_gets_its_own_key_and_its_own_path() -> None:
    with Stage(engine={"url": "https://user@engine.test/proxy/v1", "api_key": "sk-engine"}) as stage:
        stage.post()
        target, headers, _ = stage.line.asked
        assert target == b"/proxy" + CHAT
        assert headers[b"authorization"] == b"Bearer sk-engine"
        assert headers[b"host"] == b"engine.test"


def test_the_stream_knows_whose_it_is_and_what_was_asked() -> None:
    with Stage() as stage:
        stream = stage.post(asking(n=2), on_disconnect=OnDisconnect.GRACE, grace_s=12.0)
        facts = stream.facts
        assert (facts.tenant, facts.route, facts.model, facts.engine) == ("acme", "chat_completions", "m", "fake")
        assert (facts.choices, facts.wants_stream, facts.hides_usage, facts.request_id) == (2, True, True, "req_1")
        assert (stream.on_disconnect, stream.grace_s) == (OnDisconnect.GRACE, 12.0)
        assert len(facts.prompt_hash) == 16


def test_the_request_stays_in_counted_blocks_until_the_stream_has_ended() -> None:
    with Stage() as stage:
        stream = stage.post()
        assert stage.arena.used[Use.REQUEST] == 1
        assert b"".join(stream.request_views()) == bytes(stage.line.transport.written)
        stage.line.answer(*WHOLE)
        assert stage.arena.used[Use.REQUEST] == 0


def test_a_relayed_request_goes_on_as_it_is() -> None:
    with Stage() as stage:
        body = b'{"input": [1,  2]}'
        stream = stage.post(Ask("m", False, 1, body, None, False), route="relay", target=b"/v1/embeddings?x=1")
        target, _, sent = stage.line.asked
        assert (target, sent) == (b"/v1/embeddings?x=1", body)
        stage.line.say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        assert (stream.kind, stream.log.body(), stream.reason) == (Kind.BODY, b"{}", CloseReason.COMPLETED)


# Refusals: nothing is started, and nothing is held.

REFUSALS = [
    ModelForbidden("no"),
    NoEngine("none"),
    TooManyStreams("many", retry_after_s=1),
    Overloaded("full", retry_after_s=2),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_refused_request_leaves_nothing_behind(error: LongwireError) -> None:
    with Stage(arena_bytes=(RESERVE_BLOCKS + 8) << 14) as stage:
        tenant = ACME
        hoard = None
        if isinstance(error, ModelForbidden):
            tenant = tenant_named("acme", models=["another"])
        elif isinstance(error, NoEngine):
            stage.directory.refuses = error
        elif isinstance(error, TooManyStreams):
            stage.limiter.refuses = error
        else:
            hoard = Hoard(stage.arena, RESERVE_BLOCKS)
        used = stage.blocks_used()
        with pytest.raises(type(error)):
            stage.post(tenant=tenant, idempotency_key=b"key")
        assert stage.limiter.held == 0
        assert stage.blocks_used() == used
        assert stage.registry.statistics()["keys"] == 0
        assert not stage.upstream.lines
        if hoard is not None:
            hoard.give()
        stage.directory.refuses = stage.limiter.refuses = None
        assert stage.post(idempotency_key=b"key").state is State.OPENING


def test_a_tenant_with_a_list_of_models_must_name_one() -> None:
    with Stage() as stage, pytest.raises(ModelForbidden):
        stage.post(asking(model=""), tenant_named("acme", models=["m"]))


def test_while_draining_nothing_new_begins_but_what_runs_is_found() -> None:
    with Stage() as stage:
        stream = stage.post(idempotency_key=b"key")
        stage.gateway.is_draining = True
        assert stage.post(idempotency_key=b"key") is stream
        with pytest.raises(Overloaded):
            stage.post(idempotency_key=b"other")
        with pytest.raises(Overloaded):
            stage.post()


def test_a_request_for_which_the_arena_has_no_room_is_refused_with_all_that_it_took() -> None:
    with Stage() as stage:
        hoard = Hoard(stage.arena, RESERVE_BLOCKS + 1)
        with pytest.raises(Overloaded) as caught:
            stage.post(asking(messages=["x" * (60 << 14)]), idempotency_key=b"key")
        assert caught.value.retry_after_s
        assert stage.limiter.held == 0
        assert stage.registry.statistics()["keys"] == 0
        assert stage.arena.used[Use.REQUEST] == 0
        assert stage.arena.free_blocks > PAUSE_BLOCKS
        hoard.give()


# Idempotency keys.


def asked(stage: Stage) -> int:
    """How many generations were started."""
    return stage.instruments.streams_started_total


def test_a_key_finds_the_stream_that_it_started_whatever_became_of_it() -> None:
    with Stage() as stage:
        stream = stage.post(idempotency_key=b"key")
        assert stage.post(idempotency_key=b"key") is stream, "two at the same moment start one"
        stage.line.say(HEAD + framed(WHOLE[0]))
        assert stage.post(idempotency_key=b"key") is stream
        for block in WHOLE[1:]:
            stage.line.say(framed(block))
        again = stage.post(idempotency_key=b"key")
        assert again is stream
        assert again.state is State.ENDED
        client = stage.client().attach(again, Door.BARE)
        stage.settle()
        assert client.body == b"".join(WHOLE)
        assert (asked(stage), stage.instruments.idempotent_hits_total) == (1, 3)
        assert stage.limiter.held == 0, "who finds a stream takes no slot"


def test_no_key_is_no_key() -> None:
    with Stage() as stage:
        assert stage.post() is not stage.post()
        assert stage.registry.statistics()["keys"] == 0


@pytest.mark.parametrize(
    "other",
    [{"tenant": OTHER}, {"target": b"/v1/completions"}, {"idempotency_key": b"key2"}],
    ids=["tenant", "route", "key"],
)
def test_a_key_is_its_tenants_and_its_routes(other: dict[str, Any]) -> None:
    with Stage() as stage:
        stream = stage.post(idempotency_key=b"key")
        assert stage.post(**{"idempotency_key": b"key", **other}) is not stream
        assert stage.post(idempotency_key=b"key") is stream


def test_the_same_key_with_another_body_is_refused() -> None:
    with Stage() as stage:
        stage.post(asking(temperature=0.5), idempotency_key=b"key")
        with pytest.raises(KeyReused) as caught:
            stage.post(asking(temperature=0.6), idempotency_key=b"key")
        assert caught.value.status == 422
        assert asked(stage) == 1


def test_the_same_body_in_another_spelling_is_the_same() -> None:
    with Stage() as stage:
        stream = stage.post(read_request(b'{"model":"m","stream":true}'), idempotency_key=b"key")
        again = read_request(b' {"model" : "\\u006d",\n "stream": true }')
        assert stage.post(again, idempotency_key=b"key") is stream


def test_what_the_gateway_adds_is_not_the_clients_body() -> None:
    with Stage() as stage:
        stage.post(asking(), idempotency_key=b"key")
        with pytest.raises(KeyReused):
            stage.post(asking(stream_options={"include_usage": True}), idempotency_key=b"key")


def test_a_key_expires() -> None:
    with Stage(idempotency_ttl_s=60.0) as stage:
        stream = stage.post(idempotency_key=b"key")
        stage.line.answer(*WHOLE)
        stage.clock.advance(59)
        assert stage.post(idempotency_key=b"key") is stream
        stage.clock.advance(1)
        fresh = stage.post(asking(temperature=1), idempotency_key=b"key")
        assert fresh is not stream
        assert asked(stage) == 2


def test_a_key_goes_with_its_evicted_stream() -> None:
    with Stage(retention_s=10.0) as stage:
        stage.post(idempotency_key=b"key")
        stage.line.answer(*WHOLE)
        stage.tick(12)
        stage.post(idempotency_key=b"key")
        assert asked(stage) == 2


def refuse(line: Line) -> None:
    line.say(b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno")


def close_at_once(line: Line) -> None:
    line.close()


def close_after_the_role(line: Line) -> None:
    line.say(HEAD + framed(b'data: {"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n'))
    line.close()


@pytest.mark.parametrize("fail", [refuse, close_at_once, close_after_the_role])
def test_a_stream_that_failed_before_its_first_content_does_not_pin_its_key(fail: Any) -> None:
    with Stage() as stage:
        stream = stage.post(idempotency_key=b"key")
        fail(stage.line)
        assert stream.state is State.ENDED
        again = stage.post(idempotency_key=b"key")
        assert again is not stream
        stage.line.answer(*WHOLE)
        assert again.reason is CloseReason.COMPLETED


def test_nor_does_one_whose_status_was_committed_by_a_heartbeat() -> None:
    with Stage(commit_after_ms=1000) as stage:
        stream = stage.post(idempotency_key=b"key", on_disconnect=OnDisconnect.RUN)
        client = stage.client().attach(stream)
        stage.tick(2)
        assert stream.state is State.LIVE
        refuse(stage.line)
        stage.settle()
        assert b'"code":"upstream_failed"' in client.body
        assert b"503" in client.body, "the engine's status and words come in-band"
        assert stage.post(idempotency_key=b"key") is not stream


def test_one_that_failed_after_it_is_replayed_with_its_error() -> None:
    with Stage() as stage:
        stream = stage.post(idempotency_key=b"key")
        stage.line.say(HEAD + framed(delta("a")))
        stage.line.close(ConnectionResetError())
        again = stage.post(idempotency_key=b"key")
        assert again is stream
        client = stage.client().attach(again, Door.BARE)
        stage.settle()
        assert client.body.startswith(delta("a") + b'data: {"error":')


# Endings.


@pytest.mark.parametrize(
    ("status", "passed_on"),
    [(400, 400), (404, 404), (422, 422), (429, 429), (500, 502), (502, 502), (503, 503), (504, 502)],
)
def test_an_engines_refusal_keeps_its_words(status: int, passed_on: int) -> None:
    with Stage() as stage:
        stream = stage.post()
        words = b'{"error":{"message":"too long"}}'
        stage.line.say(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(words), words)
        )
        assert stream.refusal is not None
        assert stream.refusal.status == passed_on
        assert b"too long" in stream.refusal.body
        assert (stream.refusal.body == words) == (status < 500), "a 4xx is the client's to read, byte for byte"
        assert (b"retry-after", b"7") in stream.refusal.headers


def test_usage_that_was_asked_for_behind_the_clients_back_is_counted_and_kept_back() -> None:
    with Stage() as stage:
        stream = stage.post()
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        hidden = b'data: {"choices":[],"usage":' + json.dumps(usage).encode() + b"}\n\n"
        stage.line.answer(*WHOLE[:3], hidden, DONE)
        assert stream.facts.usage == usage
        assert stream.log.body() == b"".join(WHOLE)
        assert stream.log.last_seq == 3


@pytest.mark.parametrize("at_once", [False, True])
def test_usage_counts_however_late_it_comes_and_together_with_what(at_once: bool) -> None:
    with Stage() as stage:
        stream = stage.post(asking(stream_options={"include_usage": True}))
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        stage.line.say(HEAD + framed(delta("a")))
        rest = [*map(framed, (delta("b", usage=usage), delta(finish="stop"), DONE)), b"0\r\n\r\n"]
        for each in [b"".join(rest)] if at_once else rest:
            stage.line.say(each)
        assert stream.facts.usage == usage


def test_readers_have_the_end_whatever_fails_in_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    said: list[str] = []
    monkeypatch.setattr("longwire.engines.transport.log.exception", said.append)
    with Stage() as stage:
        stream = stage.post()
        client = stage.client().attach(stream, Door.FRAMED)
        monkeypatch.setattr("longwire.generation.count_usage", fail)
        monkeypatch.setattr(stage.registry, "_report_end", fail)
        stage.line.say(HEAD + framed(delta("a")))
        stage.line.say(b"".join(map(framed, (delta("b"), delta(finish="stop"), DONE))) + b"0\r\n\r\n")
        stage.settle()
        assert stream.state is State.ENDED and stream.reason is CloseReason.COMPLETED
        assert client.body.endswith(framed(DONE) + LAST_CHUNK) and client.finished is CloseReason.COMPLETED
        assert said == ["exchange_fault"]


def test_without_usage_tokens_are_estimated_from_events() -> None:
    with Stage() as stage:
        stream = stage.post()
        stage.line.answer(*WHOLE)
        assert (stream.facts.usage, stream.facts.tokens_estimated) == (None, 2)


def test_a_cancel_reaches_the_engine() -> None:
    with Stage() as stage:
        stream = stage.post()
        stage.line.say(HEAD + framed(delta("a")))
        stream.stop(CloseReason.CANCELLED, "")
        assert stage.line.transport.is_aborted
        assert stage.limiter.held == 0


def test_a_client_that_leaves_stops_the_engine_even_before_it_has_answered() -> None:
    with Stage() as stage:
        stream = stage.post()
        stage.client().attach(stream).leave()
        assert stage.line.transport.is_aborted
        assert stream.reason is CloseReason.CLIENT_LEFT


def test_a_connection_is_used_again() -> None:
    with Stage() as stage:
        for _ in range(3):
            stage.post()
            stage.line.answer(*WHOLE)
        assert len(stage.upstream.lines) == 1


async def test_a_pooled_connection_that_died_is_replaced_under_a_waiting_reader() -> None:
    with Stage() as stage:
        stage.post()
        stage.line.answer(*WHOLE)
        stream = stage.post()
        client = stage.client().attach(stream, Door.BARE)
        stage.line.close()
        assert stream.state is State.OPENING
        await next(iter(stage.gateway.generations.calls.tasks))
        assert len(stage.upstream.lines) == 2
        stage.line.answer(*WHOLE)
        stage.settle()
        assert client.body == b"".join(WHOLE)
        assert stage.instruments.retries_total == 1


async def test_what_was_added_is_left_out_for_an_engine_that_refuses_it() -> None:
    with Stage() as stage:
        stream = stage.post()
        stage.client().attach(stream)
        words = b'{"error":"unknown field stream_options"}'
        stage.line.say(b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%b" % (len(words), words))
        await next(iter(stage.gateway.generations.calls.tasks))
        assert "stream_options" not in json.loads(stage.line.asked[2])
        stage.line.answer(*WHOLE)
        assert stream.reason is CloseReason.COMPLETED
        stage.post()
        assert "stream_options" not in json.loads(stage.line.asked[2]), "it is remembered"


# Nothing is left to the collector.


def complete(stage: Stage, stream: Stream) -> None:
    stage.line.answer(*WHOLE)


def answer_whole(stage: Stage, stream: Stream) -> None:
    stage.line.say(b"HTTP/1.1 400 X\r\ncontent-length: 2\r\n\r\nno")


def reset(stage: Stage, stream: Stream) -> None:
    stage.line.say(HEAD + framed(delta("a")))
    stage.line.close(ConnectionResetError())


def cancel(stage: Stage, stream: Stream) -> None:
    stage.line.say(HEAD + framed(delta("a")))
    stream.stop(CloseReason.CANCELLED, "")


@pytest.mark.parametrize("end", [complete, answer_whole, reset, cancel])
def test_no_generation_leaves_garbage(end: Any) -> None:
    with Stage() as stage:
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(20):
                stream = stage.post(idempotency_key=b"%d" % number)
                stage.client().attach(stream)
                end(stage, stream)
                stage.settle()
                stage.registry.evict(stream)
                stage.ended.clear()
                del stream
            stage.clients.clear()
            del stage.upstream.lines[:-1]
            stage.clock.advance(LONG_AFTER_S)
            gc.collect()
            found = Counter(
                type(thing).__qualname__ for thing in gc.garbage if type(thing).__module__.startswith("longwire")
            )
            assert not found
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


# Tokens.


def test_a_request_is_admitted_with_what_it_may_need() -> None:
    with Stage() as stage:
        ask = asking(max_tokens=500)
        stream = stage.post(ask)
        assert ask.plain_body is not None
        assert stage.limiter.context_tokens == -(-len(ask.plain_body) // 4) + 500 == stream.facts.context_tokens
        assert stream.facts.prompt_tokens == stream.facts.context_tokens - 500
        stage.line.answer(*WHOLE)


def test_a_request_that_finds_no_room_behind_its_slot_counts_no_tokens() -> None:
    with Stage() as stage:
        hoard = Hoard(stage.arena, RESERVE_BLOCKS)
        with pytest.raises(Overloaded):
            stage.post()
        assert (stage.limiter.held, stage.limiter.settled_tokens) == (0, 0)
        hoard.give()
