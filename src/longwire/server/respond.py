"""Response heads and small whole responses, as bytes.

What lives here: which header fields each kind of response has.
What must not: connections, streams' inside, routes.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import Final

from ..wire.http1 import Headers, RequestHead, encode_response_head
from ..words.errors import LongwireError

EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"
JSON: Final = b"application/json"

_NOT_PASSED_BACK: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"content-length", b"date", b"server", b"set-cookie", b"x-request-id", b"x-stream-id", b"location", b"alt-svc",
    b"strict-transport-security", b"x-accel-buffering",
})  # fmt: skip
"""Of an engine's response: hop-by-hop fields, those that are ours to say, and cookies, which would tie strangers together."""

_NOT_PASSED_ON: Final = frozenset({
    b"host", b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"content-length", b"expect", b"accept-encoding", b"user-agent", b"authorization", b"x-api-key", b"api-key",
    b"cookie", b"idempotency-key", b"last-event-id", b"forwarded", b"x-real-ip", b"origin", b"referer", b"x-request-id", b"via",
})  # fmt: skip
"""Of a client's request: hop-by-hop fields, credentials (a client's key is never sent on), addresses, and what is for us."""

_NOT_PASSED_ON_PREFIXES: Final = (b"longwire-", b"x-forwarded-", b"sec-", b"access-control-", b"cf-")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")


def request_id_of(head: RequestHead) -> str:
    """The client's X-Request-Id where it is harmless, else a fresh one."""
    given = head.get(b"x-request-id")
    if given and _REQUEST_ID.match(given):
        return given.decode("ascii")
    return "req_" + secrets.token_hex(12)


def headers_to_engine(head: RequestHead, request_id: str) -> Headers:
    """What of the client's fields goes on to the engine; never what its Connection field names (RFC 9110 7.6.1)."""
    hop_by_hop = _named_by_connection(head.headers)
    kept = [
        (name, value)
        for name, value in head.headers
        if name not in _NOT_PASSED_ON and name not in hop_by_hop and not name.startswith(_NOT_PASSED_ON_PREFIXES)
    ]
    return [*kept, (b"x-request-id", request_id.encode())]


def headers_from_engine(headers: Iterable[tuple[bytes, bytes]], ours: Iterable[tuple[bytes, bytes]] = ()) -> Headers:
    """What of an engine's fields goes back to the client: none that we say ourselves, as of the limits that hold here, and
    never what its Connection field names (RFC 9110 7.6.1)."""
    given = list(headers)
    not_back = _NOT_PASSED_BACK | _named_by_connection(given) | {name for name, _ in ours}
    return [(k, v) for k, v in given if k not in not_back and not k.startswith(b"access-control-")]


def _named_by_connection(headers: Headers) -> set[bytes]:
    """The fields that belong to one connection only, because its Connection field says so."""
    return {name.strip().lower() for k, v in headers if k == b"connection" for name in v.split(b",")}


def stream_headers(public_id: str) -> Headers:
    """How a client finds the stream again."""
    name = public_id.encode()
    return [(b"x-stream-id", name), (b"location", b"/v1/streams/" + name)]


NO_BUFFERING: Final[Headers] = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
"""What keeps proxies from holding events back or changing them (nginx, CDNs)."""


def json_body(value: object) -> bytes:
    """Compact JSON with a line end, so that a terminal shows it well."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def error_parts(error: LongwireError) -> tuple[int, Headers, bytes]:
    """``(status, headers, body)`` of an error."""
    return error.status, [(b"content-type", JSON), *error.headers()], json_body(error.body())


def whole_response(status: int, headers: Headers, body: bytes, *, send_body: bool = True) -> bytes:
    """A response with its body; ``send_body`` False for HEAD."""
    length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
    head = encode_response_head(status, [*headers, *length])
    return head + body if send_body and status != 204 else head
