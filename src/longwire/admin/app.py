"""The admin HTTP API as an ASGI application.

What lives here: the routes of the admin port and the protocols through which they see the gateway.
What must not: sockets (server.py), the Host check (hosts.py), any knowledge of how streams are kept. No CORS, on purpose:
no foreign page has business here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from ..words.errors import Conflict, LocalError, LongwireError, MethodNotAllowed, NotFound, RefusedError, RemoteError
from .answers import encode_json, error_response, json_response
from .hosts import AllowedHosts, HostCheck

LIST_SLICE: Final = 100
"""Streams of a list that are encoded in one go (about a millisecond), so that a long list does not hold up the loop."""

PATHS: Final = (
    "/metrics, /healthz, /readyz, /v1/shards, /v1/overview, /v1/reload, /v1/drain, /v1/streams and /v1/streams/{id}"
)

_RULED_OUT: Final = frozenset({"q=0", "q=0.0", "q=0.00", "q=0.000"})
_logger = logging.getLogger("longwire.admin")

State = dict[str, object]
"""A stream's state as the API shows it."""


class AdminSource(Protocol):
    """What the admin port may ask of the gateway. Ids are as users write them (``lw_...``); an unknown one gives None."""

    def list_streams(self) -> Iterable[State]:
        """The state of every stream of every tenant. Taken piece by piece between other work, so it must survive changes."""

    async def show_stream(self, id: str, /) -> State | None:
        """One stream's state."""

    async def cancel_stream(self, id: str, /) -> State | None:
        """Stop the generation, at the engine too; the state after that."""

    def list_shards(self) -> Sequence[State]:
        """Every slot, and how its shard fares."""

    def overview(self) -> State:
        """One picture of all that is counted."""

    def ready(self) -> tuple[bool, str]:
        """Whether new requests would be served, and if not, why."""

    async def tail(self, id: str, after: str | None, /) -> AsyncIterator[bytes] | None:
        """The stream's SSE blocks from a cursor on, live ones too; None where nothing will ever follow the cursor.

        Errors of words.errors raised here get their HTTP status; raised by the iterator they come as an error event.
        """


class MetricsPage(Protocol):
    """Whatever can render the scrape page."""

    def render(self, accept: str = "", /) -> tuple[bytes, str]:
        """The page and its Content-Type."""


class Keeper(Protocol):
    """Whoever starts and ends processes."""

    async def reload(self) -> str:
        """Read the configuration anew and move to new processes; the problem, or an empty string."""

    def drain(self) -> None:
        """Let streams finish, and end."""


def admin_app(
    gateway: AdminSource,
    metrics: MetricsPage,
    keeper: Keeper | None = None,
    *,
    admin_host: str = "127.0.0.1",
    admin_names: Iterable[str] = (),
) -> Starlette:
    """The application. ``admin_host`` is the bound host; ``admin_names`` are more names that it may be called by."""
    routes = _Routes(gateway, metrics, keeper)
    app = Starlette(
        routes=[
            Route("/metrics", routes.metrics),
            Route("/healthz", routes.healthz),
            Route("/readyz", routes.readyz),
            Route("/v1/shards", routes.list_shards),
            Route("/v1/overview", routes.overview),
            Route("/v1/reload", routes.reload, methods=["POST"]),
            Route("/v1/drain", routes.drain, methods=["POST"]),
            Route("/v1/streams", routes.list_streams),
            Route("/v1/streams/{id}", routes.stream, methods=["GET", "DELETE"]),
        ],
        middleware=[Middleware(HostCheck, hosts=AllowedHosts(admin_host, admin_names))],
        exception_handlers={
            LongwireError: _answer_error,
            HTTPException: _answer_http_error,
            Exception: _answer_bug,
        },
    )
    app.router.redirect_slashes = False  # a redirect would name whatever host the client said
    return app


class _Routes:
    """The handlers; bound methods, so that nothing is kept in globals or in the application's state.

    They are all ``async`` though some never wait: Starlette runs plain functions in threads, and the rooms have no locks.
    """

    def __init__(self, gateway: AdminSource, metrics: MetricsPage, keeper: Keeper | None) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._keeper = keeper

    async def metrics(self, request: Request) -> Response:
        page, content_type = self._metrics.render(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def reload(self, request: Request) -> Response:
        """Answered when all is moved, or with the reason why nothing was."""
        if problem := await self._keeper_for(request).reload():
            raise Conflict(f"Nothing was changed: {problem}")
        return json_response({"status": "reloaded"})

    async def drain(self, request: Request) -> Response:
        self._keeper_for(request).drain()
        return json_response({"status": "draining"}, 202)

    def _keeper_for(self, request: Request) -> Keeper:
        """A page in an operator's browser can post here without being asked first (CORS knows it as a simple request): what
        comes from a page says so."""
        if request.headers.get("origin") is not None:
            raise RefusedError("No page may do this.", param="Origin")
        if self._keeper is None:
            raise NotFound("This gateway is one process without a keeper.")
        return self._keeper

    async def healthz(self, request: Request) -> Response:
        """The process answers; that is all."""
        return json_response({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        ready, reason = self._gateway.ready()
        if ready:
            return json_response({"status": "ready"})
        return json_response({"status": "not_ready", "reason": reason}, 503)

    async def list_shards(self, request: Request) -> Response:
        return json_response(self._gateway.list_shards())

    async def overview(self, request: Request) -> Response:
        return json_response(self._gateway.overview())

    async def list_streams(self, request: Request) -> Response:
        return StreamingResponse(_encode_list(self._gateway.list_streams()), media_type="application/json")

    async def stream(self, request: Request) -> Response:
        id = request.path_params["id"]
        if request.method == "DELETE":
            return _state(await self._gateway.cancel_stream(id))
        if request.method == "GET" and wants_events(request.headers.get("accept", "")):
            return await self._tail(id, request)
        return _state(await self._gateway.show_stream(id))

    async def _tail(self, id: str, request: Request) -> Response:
        # The header is newer: an EventSource that reconnects repeats its first URL and adds the header.
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        blocks = await self._gateway.tail(id, after)
        return Response(status_code=204) if blocks is None else TailResponse(blocks)


class TailResponse(StreamingResponse):
    """A stream's blocks as they come. However it ends (end of stream, reader gone, shutdown) the iterator is closed."""

    def __init__(self, blocks: AsyncIterator[bytes]) -> None:
        self._blocks = _with_errors(blocks)
        super().__init__(self._blocks, headers={"content-type": "text/event-stream", "x-accel-buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self._blocks.aclose()


async def _with_errors(blocks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The blocks; an error in mid-stream becomes a last block that tells it (the status has long been sent)."""
    try:
        async for block in blocks:
            yield block
    except LongwireError as error:
        yield b"data: " + encode_json(error.body()) + b"\n\n"
    finally:
        if isinstance(blocks, AsyncGenerator):
            await blocks.aclose()


async def _encode_list(states: Iterable[State]) -> AsyncIterator[bytes]:
    """``{"object": "list", "data": [...]}`` in slices, with a turn of the loop after each."""
    rest = iter(states)
    before = b'{"object":"list","data":['
    while taken := list(islice(rest, LIST_SLICE)):
        yield before + b",".join(map(encode_json, taken))
        before = b","
        await asyncio.sleep(0)
    yield b"]}" if before == b"," else before + b"]}"


def wants_events(accept: str) -> bool:
    """Whether an Accept header names text/event-stream (and does not rule it out)."""
    for range in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in range.split(";"))
        if kind == "text/event-stream":
            return not any(parameter in _RULED_OUT for parameter in parameters)
    return False


def _state(state: State | None) -> Response:
    if state is None:
        raise NotFound("No such stream: it is unknown, or was evicted after its retention time.")
    return json_response(state)


# Errors, all in the one shape.


def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, LongwireError)
    if isinstance(error, LocalError):
        _logger.error("admin_error", exc_info=error)
    return error_response(error)


def _answer_http_error(_request: Request, error: Exception) -> Response:
    """What the router refuses, in our shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == NotFound.status:
        return error_response(NotFound(f"No such path; the admin port has {PATHS}."))
    if error.status_code == MethodNotAllowed.status:
        allow = (error.headers or {}).get("Allow", "GET")
        return error_response(MethodNotAllowed(f"This path allows {allow}.", allow=tuple(allow.split(", "))))
    return error_response(RemoteError(error.detail))


def _answer_bug(_request: Request, _error: Exception) -> Response:
    """Named boundary: whatever a handler did not expect. Starlette raises it again after this answer, and uvicorn logs it."""
    return error_response(LocalError("The gateway failed to answer; its log says more."))
