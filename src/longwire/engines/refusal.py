"""What an engine's refusal means: an error status, an error object inside a 200, or an answer that cannot be one.

What lives here: the pure reading of a head and a body as a failure. What must not: bytes as they come (exchange.py).
"""

from __future__ import annotations

from ..wire.http1 import ResponseHead
from ..words.reasons import CloseReason
from .base import Failure, Watch

BROKE_IN_THE_MIDDLE = "The engine's connection broke in the middle of its answer."
_KEPT_HEADERS = (b"retry-after", b"www-authenticate")
"""What a client can act upon. All else of an engine's head is the engine's own business."""


def failure_of(head: ResponseHead, body: bytes, watch: Watch, is_cut: bool) -> Failure:
    """The failure that ``head`` and ``body`` (as much of it as came) stand for; ``is_cut``: the body broke off."""
    content_type = head.get(b"content-type") or b""
    if head.status >= 400:
        reason = CloseReason.UPSTREAM_REFUSED if head.status < 500 else CloseReason.UPSTREAM_FAILED
        keep = [(k, v) for k, v in head.headers if k in _KEPT_HEADERS]
        return Failure(reason, "", head.status, body, content_type, keep)
    if watch.reads_error(body):
        return Failure(CloseReason.UPSTREAM_ERROR_EVENT, watch.error_message, watch.error_status, body)
    if is_cut:
        return Failure(CloseReason.UPSTREAM_RESET, BROKE_IN_THE_MIDDLE)
    shown = content_type.decode("latin-1") or "no content type"
    message = f"The engine answered {head.status} with {shown} where that cannot be its answer."
    return Failure(CloseReason.UPSTREAM_PROTOCOL, message, body=body, content_type=content_type)
