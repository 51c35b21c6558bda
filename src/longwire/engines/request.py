"""A request as one upstream gets it.

What lives here: the model under the engine's own name, a bound to its answer, and a stored request taken apart and put
together for another upstream.
What must not: sockets, what else a request means.
"""

from __future__ import annotations

import json

from ..wire.http1 import Headers


def with_model(body: bytes, offered: str, own: str) -> bytes:
    """The body for an engine that has the model under another name. A body that names no model is left as it is."""
    if offered == own:
        return body
    fields = json.loads(body)
    if not isinstance(fields, dict) or "model" not in fields:
        return body
    return encode_body({**fields, "model": own})


def with_bound(body: bytes, tokens: int) -> bytes:
    """The body with a bound to each of its answers."""
    fields = json.loads(body)
    return encode_body({**fields, "max_tokens": tokens}) if isinstance(fields, dict) else body


def without_usage(body: bytes) -> bytes:
    """The body without ``stream_options``, which the gateway may have added and some engines refuse."""
    fields = json.loads(body)
    if not isinstance(fields, dict) or "stream_options" not in fields:
        return body
    del fields["stream_options"]
    return encode_body(fields)


def take_apart(request: bytes) -> tuple[bytes, Headers, bytes]:
    """Target as it was sent, fields and body of a request that ``wire.http1.encode_request_head`` has begun.

    Raises:
        ValueError: it is none of ours, or not whole.
    """
    head, end, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if not end or len(words) != 3:
        raise ValueError("The stored request has no whole head.")
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(b": ")
        if not colon:
            raise ValueError("A field of the stored request has no value.")
        headers.append((name, value))
    length = dict(headers).get(b"content-length")
    if length is not None and length != b"%d" % len(body):
        raise ValueError("The stored request is not whole.")
    return words[1], headers, body


def headers_for(headers: Headers, host: bytes, api_key: str) -> Headers:
    """The fields of a stored request for another upstream: its own host, its own key or none, and no length yet."""
    own: dict[bytes, bytes | None] = {
        b"host": host,
        b"authorization": b"Bearer " + api_key.encode() if api_key else None,
        b"content-length": None,
    }
    kept = [(name, own.get(name, value)) for name, value in headers]
    named = {name for name, _ in headers}
    added = [(name, value) for name, value in own.items() if name not in named]
    return [(name, value) for name, value in kept + added if value is not None]


def encode_body(fields: dict[str, object]) -> bytes:
    """A body as the gateway sends all of them: compact, in UTF-8, the order kept."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
