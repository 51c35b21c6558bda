"""What each public route does with a request.

What lives here: checks that the head allows, and one method per route.
What must not: bytes on the wire (connection.py, writer.py), how a generation runs (gateway.py).

Over 400 lines: it is the list of public routes, and one that is looked for elsewhere is missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING

from ..admission.tenants import Tenant, Tenants
from ..dialects.base import LARGE_BODY_BYTES, Ask, RelayWords, read_relayed
from ..dialects.openai_chat import OpenAiWords, read_request
from ..gateway import Gateway, Visit
from ..streams.describe import describe
from ..streams.doors import Door
from ..streams.stream import Kind, OnDisconnect, State, Stream
from ..wire.forwarded import client_address, parse_address
from ..wire.http1 import Headers, RequestHead
from ..words.errors import (
    BadHttp,
    LocalError,
    LongwireError,
    NotAcceptable,
    NotFound,
    Overloaded,
    RefusedError,
    RemoteError,
    WrongMediaType,
)
from ..words.reasons import CloseReason
from ..words.settings import Settings
from ..words.wishes import NO_WISHES
from . import cors
from .cursors import check_cursor, cursor_of
from .ownership import GENERATING, owner_of
from .respond import EVENT_STREAM, JSON, NO_BUFFERING, headers_to_engine, json_body, request_id_of, stream_headers
from .routes import Match, find_route, methods_of
from .timeouts import read_timeouts, write_timeouts

log = logging.getLogger("longwire.server")

if TYPE_CHECKING:
    from .connection import ClientConnection

MAX_IDEMPOTENCY_KEY_BYTES = 256
MAX_LISTED_STREAMS = 500
"""The latest; a list is made in one piece, and must not hold up everybody's events for longer than a few milliseconds."""
LIST_SLICE = 200
"""Rows of another shard that are looked at between two turns of the loop: about a millisecond."""
MAX_GRACE_DIGITS = 6
LOCAL_NAMES = ("", "localhost")
_OPEN_ROUTES = frozenset({"healthz", "readyz", "options", "openapi"})
_FOR_OPERATORS = frozenset({"stream_read", "stream_delete", "stream_list"})


@dataclass(slots=True)
class Pending:
    """A request whose head was found good."""

    match: Match
    head: RequestHead
    tenant: Tenant | None = None
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    grace_s: float = 0.0
    timeouts: Mapping[str, float] = field(default_factory=lambda: NO_WISHES)
    is_operator: bool = False

    @property
    def sees(self) -> str | None:
        """Whose streams it is about: the tenant's own, or None: everybody's, for the operator and for nobody else."""
        if self.is_operator:
            return None
        if self.tenant is None:
            raise LocalError("This request was not identified.")
        return self.tenant.name

    @property
    def route(self) -> str:
        return self.match.name


class Handlers:
    """The public routes over one gateway. ``executor`` reads bodies that are too large for the loop."""

    def __init__(
        self, gateway: Gateway, tenants: Tenants, executor: Executor, is_ready: Callable[[], tuple[bool, str]]
    ) -> None:
        self.gateway = gateway
        self.tenants = tenants
        self.settings = gateway.settings
        self._executor = executor
        self._is_ready = is_ready
        self.home_of: Callable[[Tenant], int | None] = lambda _: None
        """The slot that a tenant is pinned to; lifecycle says which."""
        self.list_others: Callable[[str | None], Iterable[dict[str, object] | None]] = lambda _: ()
        """The state objects of other slots' streams, of one tenant or (None) of all; lifecycle says how to find them."""
        self._openai_words = OpenAiWords()
        self._relay_words = RelayWords()

    # What the head alone decides.

    def greet(self, head: RequestHead) -> Headers:
        """What every response to this request carries, errors too."""
        request_id = request_id_of(head).encode()
        return [(b"x-request-id", request_id), *cors.response_headers(head, self.settings.cors_origins)]

    def prepare(self, head: RequestHead, connection: ClientConnection) -> Pending:
        """Check everything that needs no body.

        Raises:
            LongwireError: answer it; the body, if any, is not wanted.
        """
        match = find_route(head.method, head.target)
        pending = Pending(match, head)
        if connection.is_operator:
            pending.is_operator = True
            check_is_for_operators(match.name)
            return pending
        if match.name in _OPEN_ROUTES:
            return pending
        if self.tenants.is_open:
            check_is_local(head, self.settings)
        if connection.surplus and not self.is_event_read(pending):
            raise Overloaded("This gateway has as many connections as it may; try again.", retry_after_s=2)
        pending.tenant = self._identify(head, connection)
        if match.name in GENERATING:
            self._check_media_type(match.name, head)
            pending.on_disconnect, pending.grace_s = self._policy(head, pending.tenant)
            pending.timeouts = read_timeouts(head, self.settings)
        return pending

    @staticmethod
    def recall(head: RequestHead) -> Pending | None:
        """A request whose answer another process has begun, as far as that still matters; None where there is no such route."""
        try:
            return Pending(find_route(head.method, head.target), head)
        except LongwireError:
            return None

    def greet_again(self, pending: Pending, stream: Stream) -> Headers:
        """What a response carries that another process was about to begin."""
        headers = self.greet(pending.head)
        if pending.route in GENERATING:
            headers[0] = (b"x-request-id", stream.facts.request_id.encode())  # as the engine was told
            headers += self._granted(pending.head, stream)
        return headers

    def owner_of(self, pending: Pending) -> int:
        """The slot whose shard must answer this."""
        return owner_of(pending, self.gateway.registry.place, self.home_of, self.gateway.hash_key)

    def decline(self, connection: ClientConnection) -> None:
        """Answer a request that can be served by another shard only, and could not be passed there."""
        if connection.pending is not None and self.is_event_read(connection.pending):
            self._ask_to_retry(connection)
        else:
            error = Overloaded("The shard that must answer this is not to be reached; try again.", retry_after_s=1)
            connection.refuse(error, close=True)

    def _identify(self, head: RequestHead, connection: ClientConnection) -> Tenant:
        authorization, api_key = head.get_all(b"authorization"), head.get_all(b"x-api-key")
        if len(authorization) > 1 or len(api_key) > 1:
            raise BadHttp("A credential was sent twice.")
        try:
            return self.tenants.identify(authorization[0] if authorization else None, api_key[0] if api_key else None)
        except RefusedError:
            address = client_address(connection.peer, head.get_all(b"x-forwarded-for"), connection.listener.trusted)
            log.warning("unauthenticated", extra={"fields": {"client": address}})
            raise

    @staticmethod
    def _check_media_type(route: str, head: RequestHead) -> None:
        types = head.get_all(b"content-type")
        if len(types) > 1:
            raise BadHttp("Content-Type was sent twice.")
        if head.get(b"content-encoding") not in (None, b"identity"):
            raise WrongMediaType("Compressed request bodies are not accepted.")
        if route in ("relay", "stream_continue"):
            return
        media_type, _, parameters = (types[0] if types else b"").partition(b";")
        if media_type.strip().lower() != b"application/json":
            raise WrongMediaType("The body must be application/json.")
        if b"charset" in parameters.lower() and b"utf-8" not in parameters.lower().replace(b'"', b""):
            raise WrongMediaType("The body must be UTF-8.")

    def _policy(self, head: RequestHead, tenant: Tenant) -> tuple[OnDisconnect, float]:
        """What happens when the last reader leaves: by header, else by whether the client can come back at all.

        What goes beyond the tenant's limits is cut down to them, and the response says what was granted.
        """
        given = (head.get(b"longwire-on-disconnect") or b"").strip().decode("latin-1")
        may = tenant.settings
        if not given:
            given = f"grace={self.settings.grace_s:.0f}" if head.get(b"idempotency-key") else "cancel"
        if given in ("cancel", "run"):
            wish, grace_s = OnDisconnect[given.upper()], 0.0
        else:
            wish, grace_s = OnDisconnect.GRACE, _grace_of(given)
        if not may.may_run_detached:
            return OnDisconnect.CANCEL, 0.0
        return wish, min(grace_s, may.max_grace_s)

    # Serving.

    def serve(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        """Answer a whole request, or start what will.

        Raises:
            LongwireError: to be answered.
        """
        getattr(self, "_" + pending.route)(pending, body, connection)

    def _chat_completions(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        if len(body) >= LARGE_BODY_BYTES:
            connection.start(self._wait_large(pending, body, connection))
        else:
            self._generate(pending, read_request(body), connection)

    _completions = _chat_completions

    def _relay(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        """Any other POST: the body goes on as it is, so nothing of it is known here but the model, if it is JSON."""
        if not (pending.head.get(b"content-type") or b"").lower().startswith(b"application/json"):
            self._generate(pending, Ask("", False, 1, body, None, False), connection)
        elif len(body) >= LARGE_BODY_BYTES:
            connection.start(self._wait_large(pending, body, connection))
        else:
            self._generate(pending, read_relayed(body), connection)

    async def _wait_large(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        read = read_relayed if pending.route == "relay" else read_request
        try:
            try:
                ask = await asyncio.get_running_loop().run_in_executor(self._executor, read, body)
            except BrokenExecutor:  # there is no other process: better late, here, than never
                ask = read(body)
            self._generate(pending, ask, connection)
        except LongwireError as exc:
            connection.refuse(exc)

    def _generate(self, pending: Pending, ask: Ask, connection: ClientConnection) -> None:
        visit = self._visit(pending, connection)
        try:
            stream = self.gateway.generate(ask, visit)
        finally:  # who is refused needs to know most of all
            connection.extra_headers += self.gateway.limits_of(visit.tenant)
        connection.extra_headers += self.gateway.notes_on(stream)
        self._answer(stream, pending, connection)

    def _stream_continue(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        """The rest of an answer that was cut; a body is not looked at."""
        other = self._find(pending)
        self._answer(self.gateway.go_on(other, self._visit(pending, connection)), pending, connection)

    def _visit(self, pending: Pending, connection: ClientConnection) -> Visit:
        head = pending.head
        assert pending.tenant is not None
        key = head.get(b"idempotency-key") or b""
        if len(key) > MAX_IDEMPOTENCY_KEY_BYTES:
            raise RemoteError(f"The key is over {MAX_IDEMPOTENCY_KEY_BYTES} bytes.", param="Idempotency-Key")
        request_id = connection.extra_headers[0][1].decode()
        return Visit(
            tenant=pending.tenant,
            route=pending.route,
            target=head.target,
            headers=headers_to_engine(head, request_id),
            request_id=request_id,
            idempotency_key=key,
            on_disconnect=pending.on_disconnect,
            grace_s=pending.grace_s,
            timeouts=pending.timeouts,
            asker=(connection.serial, connection.written_bytes),
            words=self._relay_words if pending.route == "relay" else self._openai_words,
        )

    def _granted(self, head: RequestHead, stream: Stream) -> Headers:
        """What holds of that for which the request had a wish: it may be less, or another's by its Idempotency-Key."""
        headers: Headers = []
        if head.get(b"longwire-on-disconnect"):
            headers.append((b"longwire-on-disconnect", granted(stream).encode()))
        if head.get(b"longwire-timeouts"):
            headers.append((b"longwire-timeouts", write_timeouts(self.gateway.clocks_on(stream))))
        return headers

    def _answer(self, stream: Stream, pending: Pending, connection: ClientConnection) -> None:
        head = pending.head
        connection.extra_headers += self._granted(head, stream)
        connection.attach(stream, Door.FRAMED if head.minor else Door.BARE, 0)

    # Streams.

    def _stream_read(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        if not self.is_event_read(pending):
            self._respond_json(connection, describe(self._find(pending)))
            return
        if (self.gateway.is_draining and not pending.is_operator) or connection.surplus:
            self._ask_to_retry(connection)
            return
        if self.gateway.registry.is_incomplete and not self.gateway.registry.knows(pending.match.argument):
            self._ask_to_retry(connection)
            return
        stream = self._find(pending)
        if pending.head.method == "HEAD":
            connection.respond(200, [(b"content-type", EVENT_STREAM), *stream_headers(stream.public_id)], b"")
            return
        self._resume(stream, pending, connection)

    def _find(self, pending: Pending) -> Stream:
        return self.gateway.registry.find(pending.match.argument, pending.sees)

    def _resume(self, stream: Stream, pending: Pending, connection: ClientConnection) -> None:
        if stream.kind is not Kind.EVENTS:
            raise NotAcceptable("This answer was no event stream; ask for application/json.")
        cursor = cursor_of(pending)
        check_cursor(stream, cursor)
        if cursor.seq >= 0 and not pending.is_operator:
            stream.facts.resumes_total += 1
            self.gateway.generations.calls.instruments.resumes_total += 1
        position = stream.log.position_after(cursor.seq)
        if stream.state is State.ENDED and stream.refusal is None and cursor.seq == stream.log.last_seq:
            connection.respond(204, [], b"")
            return
        connection.attach(stream, Door.FRAMED_IDS if pending.head.minor else Door.BARE_IDS, position)

    def _ask_to_retry(self, connection: ClientConnection) -> None:
        """An EventSource gives up for good on a 5xx or 429: it is told in its own words to come back a little later."""
        least = self.settings.resume_retry_ms
        wait_ms = random.randint(least, 2 * least)
        connection.keep_alive = False
        connection.respond(200, [(b"content-type", EVENT_STREAM), *NO_BUFFERING], b"retry: %d\n\n" % wait_ms)

    def _stream_list(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        """Answered by any shard: its own streams as they are, the others' as their rows have them."""
        own = deque(self.gateway.registry.list(pending.sees), maxlen=MAX_LISTED_STREAMS)
        connection.start(self._wait_list([describe(stream) for stream in own], pending.sees, connection))

    async def _wait_list(self, own: list[dict[str, object]], sees: str | None, connection: ClientConnection) -> None:
        """Look through the others' rows, with a turn of the loop after each slice: there may be tens of thousands."""
        data, rows = own, iter(self.list_others(sees))
        while slice := list(islice(rows, LIST_SLICE)):
            found = [state for state in slice if state is not None]
            if found:
                data = sorted(data + found, key=lambda state: _number(state["created_at"]))[-MAX_LISTED_STREAMS:]
            await asyncio.sleep(0)
        self._respond_json(connection, {"object": "list", "data": data})

    def _stream_delete(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        stream = self._find(pending)
        stream.stop(CloseReason.CANCELLED, "")
        self._respond_json(connection, describe(stream))

    @staticmethod
    def is_event_read(pending: Pending) -> bool:
        """Whether a stream's events are asked for, and not its state."""
        accepts = b",".join(pending.head.get_all(b"accept")).lower()
        return pending.route == "stream_read" and b"text/event-stream" in accepts

    # The rest.

    def _models(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        assert pending.tenant is not None
        models = self.gateway.directory.models(pending.tenant.may_use)
        data = [{"id": model, "object": "model", "created": 0, "owned_by": engine} for model, engine in models]
        self._respond_json(connection, {"object": "list", "data": data})

    def _healthz(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        self._respond_json(connection, {"status": "ok"})

    def _readyz(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        ready, why = self._is_ready()
        connection.respond(200 if ready else 503, [(b"content-type", JSON)], json_body({"ready": ready, "reason": why}))

    def _openapi(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        connection.respond(
            200, [(b"content-type", JSON)], files("longwire.server").joinpath("openapi.json").read_bytes()
        )

    def _options(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        methods = methods_of(pending.head.target)
        connection.respond(204, cors.preflight_headers(pending.head, self.settings.cors_origins, methods), b"")

    @staticmethod
    def _respond_json(connection: ClientConnection, value: object) -> None:
        connection.respond(200, [(b"content-type", JSON), (b"cache-control", b"no-store")], json_body(value))


def check_is_for_operators(route: str) -> None:
    """An operator's connection sees and cancels streams, and does nothing else in anybody's name.

    Raises:
        NotFound: anything else.
    """
    if route not in _FOR_OPERATORS:
        raise NotFound("There is nothing here for operators.")


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0


def _grace_of(text: str) -> float:
    """The seconds of ``grace=SECONDS``.

    Raises:
        RemoteError: it is nothing of the kind.
    """
    seconds = text.removeprefix("grace=")
    if seconds == text or not (seconds.isascii() and seconds.isdigit() and len(seconds) <= MAX_GRACE_DIGITS):
        raise RemoteError("It must be cancel, run or grace=SECONDS.", param="Longwire-On-Disconnect")
    return float(seconds)


def granted(stream: Stream) -> str:
    """The policy that a stream has, in the words of the request header."""
    if stream.on_disconnect is OnDisconnect.GRACE:
        return f"grace={stream.grace_s:g}"
    return stream.on_disconnect.name.lower()


def check_is_local(head: RequestHead, settings: Settings) -> None:
    """Where anyone may come in, a web page must not come in through its visitor's browser.

    A page that rebinds its name to loopback shows itself by its Host, one that posts across origins by its Origin.

    Raises:
        RefusedError: one of the two.
    """
    host = (head.get(b"host") or b"").decode("latin-1").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    # As an address, not by its first letters: 127.example.com is anybody's.
    address = parse_address(name)
    is_local = name in LOCAL_NAMES if address is None else address.is_loopback
    if not settings.allow_anonymous and not is_local and name != settings.host:
        raise RefusedError("Without tenants this gateway answers to loopback names only.", param="Host")
    origin = head.get(b"origin")
    if origin is None or "*" in settings.cors_origins or origin.decode("latin-1") in settings.cors_origins:
        return
    if origin.decode("latin-1").lower().partition("://")[2] != host:
        raise RefusedError("This origin is not among cors_origins.", param="Origin")
