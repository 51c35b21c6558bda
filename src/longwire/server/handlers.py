"""What each public route does with a request.

What lives here: checks that the head allows, one method per route, and how a cursor arrives.
What must not: bytes on the wire (connection.py, writer.py), how a generation runs (gateway.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from ..admission.tenants import Tenant, Tenants
from ..dialects.base import LARGE_BODY_BYTES, Ask, RelayWords
from ..dialects.openai_chat import OpenAiWords, read_request
from ..gateway import Gateway, Visit
from ..streams.describe import describe
from ..streams.doors import Door
from ..streams.stream import Kind, OnDisconnect, State, Stream
from ..wire.http1 import Headers, RequestHead
from ..words.errors import (
    BadCursor,
    BadHttp,
    LongwireError,
    NotAcceptable,
    Overloaded,
    RefusedError,
    RemoteError,
    WrongMediaType,
)
from ..words.ids import Cursor, parse_cursor
from ..words.reasons import CloseReason
from . import cors
from .respond import EVENT_STREAM, JSON, NO_BUFFERING, headers_to_engine, json_body, request_id_of
from .routes import Match, find_route, methods_of

if TYPE_CHECKING:
    from .connection import ClientConnection

CURSOR_NAMES = ("after", "last_event_id", "lastEventId", "lastEventID", "Last-Event-ID", "starting_after")
"""Spellings that clients in the field use: our own, Mercure's two generations, event-source-polyfill, OpenAI's."""

MAX_IDEMPOTENCY_KEY_BYTES = 256
_OPEN_ROUTES = frozenset({"healthz", "readyz", "options", "openapi"})
_GENERATING = frozenset({"chat_completions", "completions", "relay"})


@dataclass(slots=True)
class Pending:
    """A request whose head was found good. ``headers`` go into its response whatever that is."""

    match: Match
    head: RequestHead
    request_id: str
    headers: Headers
    tenant: Tenant | None = None
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    grace_s: float = 0.0

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
        self._openai_words = OpenAiWords()
        self._relay_words = RelayWords()

    # What the head alone decides.

    def prepare(self, head: RequestHead, connection: ClientConnection) -> Pending:
        """Check everything that needs no body.

        Raises:
            LongwireError: answer it; the body, if any, is not wanted.
        """
        match = find_route(head.method, head.target)
        request_id = request_id_of(head)
        headers = [(b"x-request-id", request_id.encode()), *cors.response_headers(head, self.settings.cors_origins)]
        pending = Pending(match, head, request_id, headers)
        if match.name in _OPEN_ROUTES:
            return pending
        if connection.surplus and not self._is_event_read(pending):
            raise Overloaded("This gateway has as many connections as it may; try again.", retry_after_s=2)
        pending.tenant = self._identify(head)
        if match.name in _GENERATING:
            self._check_media_type(match.name, head)
            pending.on_disconnect, pending.grace_s = self._policy(head, pending.tenant)
        return pending

    def _identify(self, head: RequestHead) -> Tenant:
        authorization, api_key = head.get_all(b"authorization"), head.get_all(b"x-api-key")
        if len(authorization) > 1 or len(api_key) > 1:
            raise BadHttp("A credential was sent twice.")
        return self.tenants.identify(authorization[0] if authorization else None, api_key[0] if api_key else None)

    @staticmethod
    def _check_media_type(route: str, head: RequestHead) -> None:
        types = head.get_all(b"content-type")
        if len(types) > 1:
            raise BadHttp("Content-Type was sent twice.")
        if head.get(b"content-encoding") not in (None, b"identity"):
            raise WrongMediaType("Compressed request bodies are not accepted.")
        if route == "relay":
            return
        media_type, _, parameters = (types[0] if types else b"").partition(b";")
        if media_type.strip().lower() != b"application/json":
            raise WrongMediaType("The body must be application/json.")
        if b"charset" in parameters.lower() and b"utf-8" not in parameters.lower().replace(b'"', b""):
            raise WrongMediaType("The body must be UTF-8.")

    def _policy(self, head: RequestHead, tenant: Tenant) -> tuple[OnDisconnect, float]:
        """What happens when the last reader leaves: by header, else by whether the client can come back at all."""
        given = (head.get(b"longwire-on-disconnect") or b"").strip().decode("latin-1")
        may = tenant.settings
        if not given:
            grace = head.get(b"idempotency-key") is not None and may.may_run_detached
            return (
                (OnDisconnect.GRACE, min(self.settings.grace_s, may.max_grace_s))
                if grace
                else (OnDisconnect.CANCEL, 0.0)
            )
        if given == "cancel":
            return OnDisconnect.CANCEL, 0.0
        if not may.may_run_detached:
            raise RefusedError(
                "This key may not keep streams running after a disconnect.", param="Longwire-On-Disconnect"
            )
        if given == "run":
            return OnDisconnect.RUN, 0.0
        seconds = given.removeprefix("grace=")
        if seconds == given or not seconds.isascii() or not seconds.isdigit() or len(seconds) > 6:
            raise RemoteError("It must be cancel, run or grace=SECONDS.", param="Longwire-On-Disconnect")
        if int(seconds) > may.max_grace_s:
            raise RefusedError(f"The longest grace is {may.max_grace_s:g} s.", param="Longwire-On-Disconnect")
        return OnDisconnect.GRACE, float(seconds)

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
        model = ""
        if len(body) < LARGE_BODY_BYTES and (pending.head.get(b"content-type") or b"").startswith(b"application/json"):
            model = read_request(body).model
        self._generate(pending, Ask(model, False, 1, body, None, False), connection)

    async def _wait_large(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        try:
            ask = await asyncio.get_running_loop().run_in_executor(self._executor, read_request, body)
            self._generate(pending, ask, connection)
        except LongwireError as exc:
            connection.refuse(exc)

    def _generate(self, pending: Pending, ask: Ask, connection: ClientConnection) -> None:
        head = pending.head
        assert pending.tenant is not None
        key = head.get(b"idempotency-key") or b""
        if len(key) > MAX_IDEMPOTENCY_KEY_BYTES:
            raise RemoteError(f"The key is over {MAX_IDEMPOTENCY_KEY_BYTES} bytes.", param="Idempotency-Key")
        visit = Visit(
            tenant=pending.tenant,
            route=pending.route,
            target=head.target,
            headers=headers_to_engine(head, pending.request_id),
            request_id=pending.request_id,
            idempotency_key=key,
            on_disconnect=pending.on_disconnect,
            grace_s=pending.grace_s,
            words=self._relay_words if pending.route == "relay" else self._openai_words,
        )
        stream = self.gateway.generate(ask, visit)
        connection.attach(stream, Door.FRAMED if head.minor else Door.BARE, 0)

    # Streams.

    def _stream_read(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        assert pending.tenant is not None
        if not self._is_event_read(pending):
            stream = self.gateway.registry.find(pending.match.argument, pending.tenant.name)
            self._respond_json(connection, describe(stream))
            return
        if self.gateway.is_draining or connection.surplus:
            self._ask_to_retry(connection)
            return
        stream = self.gateway.registry.find(pending.match.argument, pending.tenant.name)
        if pending.head.method == "HEAD":
            connection.respond(200, [(b"content-type", EVENT_STREAM)], b"")
            return
        self._resume(stream, pending, connection)

    def _resume(self, stream: Stream, pending: Pending, connection: ClientConnection) -> None:
        if stream.kind is not Kind.EVENTS:
            raise NotAcceptable("This answer was no event stream; ask for application/json.")
        cursor = cursor_of(pending)
        check_cursor(stream, cursor)
        if cursor.seq >= 0:
            stream.facts.resumes_total += 1
            self.gateway.calls.instruments.resumes_total += 1
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
        assert pending.tenant is not None
        own = [describe(stream) for stream in self.gateway.registry.list(pending.tenant.name)]
        self._respond_json(connection, {"object": "list", "data": own})

    def _stream_delete(self, pending: Pending, body: bytes, connection: ClientConnection) -> None:
        assert pending.tenant is not None
        stream = self.gateway.registry.find(pending.match.argument, pending.tenant.name)
        stream.stop(CloseReason.CANCELLED, "")
        self._respond_json(connection, describe(stream))

    @staticmethod
    def _is_event_read(pending: Pending) -> bool:
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


def cursor_of(pending: Pending) -> Cursor:
    """The reader's cursor: the header that an EventSource sends when it reconnects wins over what stands in its URL.

    Raises:
        BadCursor: malformed, or given twice.
    """
    headers = pending.head.get_all(b"last-event-id")
    if len(headers) > 1:
        raise BadCursor("Last-Event-ID was sent twice.", param="Last-Event-ID")
    if headers:
        return parse_cursor(headers[0].decode("latin-1"))
    given = [value for name, value in pending.match.query if name in CURSOR_NAMES]
    if len(given) > 1:
        raise BadCursor("The cursor was given twice.", param="after")
    return parse_cursor(given[0] if given else "")


def check_cursor(stream: Stream, cursor: Cursor) -> None:
    """A cursor from the future is an error: waiting for it in silence would hide that something was lost.

    Raises:
        BadCursor: beyond the last event, or of an epoch that this stream has not had.
    """
    last = stream.log.last_seq
    if cursor.seq > last:
        raise BadCursor(
            f"The cursor is beyond the end: the last event so far is {stream.log.epoch}-{last}.", param="after"
        )
    if cursor.epoch > stream.log.epoch:
        raise BadCursor(
            f"The stream is in epoch {stream.log.epoch}; it has had no epoch {cursor.epoch}.", param="after"
        )
