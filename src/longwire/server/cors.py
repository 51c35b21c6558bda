"""Cross-origin access for browsers (WHATWG Fetch), off unless origins are configured.

What lives here: the response fields.
What must not: anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..wire.http1 import Headers, RequestHead

EXPOSED = (
    b"X-Stream-Id, Location, X-Request-Id, Retry-After, Longwire-On-Disconnect, Longwire-Timeouts, "
    b"Longwire-Max-Tokens, "
    b"X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    b"X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens"
)
ALLOWED = (
    b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Longwire-On-Disconnect, Longwire-Timeouts, X-Request-Id, "
    b"X-Api-Key, Cache-Control"
)
MAX_AGE_S = b"600"
MAX_ASKED_HEADERS = 64
_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}\Z")


def response_headers(head: RequestHead, origins: Sequence[str]) -> Headers:
    """Fields of an ordinary response. No credentials mode: keys come in headers, never in cookies."""
    if not origins:
        return []
    origin = head.get(b"origin")
    if origin is None or ("*" not in origins and origin.decode("latin-1") not in origins):
        return [(b"vary", b"Origin")]
    allowed = b"*" if "*" in origins else origin
    return [
        (b"access-control-allow-origin", allowed),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"Origin"),
    ]


def preflight_headers(head: RequestHead, origins: Sequence[str], methods: Sequence[str]) -> Headers:
    """Fields of the answer to OPTIONS; the allowing ones are in :func:`response_headers` or here, only for allowed origins."""
    names = ", ".join(methods).encode()
    if not any(name == b"access-control-allow-origin" for name, _ in response_headers(head, origins)):
        return [(b"allow", names)]
    return [
        (b"allow", names),
        (b"access-control-allow-methods", names),
        (b"access-control-allow-headers", allowed_headers(head)),
        (b"access-control-max-age", MAX_AGE_S),
    ]


def allowed_headers(head: RequestHead) -> bytes:
    """Ours, and whatever else the page asks for: SDKs in browsers send a dozen of their own (``X-Stainless-Os``), and an origin
    that may send a key may send those. ``*`` would not do: it never covers Authorization."""
    asked = (head.get(b"access-control-request-headers") or b"").split(b",", MAX_ASKED_HEADERS)[:MAX_ASKED_HEADERS]
    known = {name.strip() for name in ALLOWED.lower().split(b",")}
    more = [name for name in map(bytes.strip, asked) if _TOKEN.match(name) and name.lower() not in known]
    return b", ".join([ALLOWED, *more])
