"""The one tree of errors.

What lives here: every error that a client or an operator can see, with code, status and retryable.
What must not: sockets, HTTP framing, the reasons of a stream's end (reasons.py).

* :exc:`LongwireError`

  * :exc:`LocalError`: a fault of ours. Only this branch is a bug.
  * :exc:`RemoteError`: the client's request cannot be served as it is.
  * :exc:`RefusedError`: policy says no (identity, limits, capacity).
  * :exc:`UpstreamError`: the engine's fault.
  * :exc:`SettingsError`: the operator's configuration is wrong; the process exits with 2.

Each class carries ``code`` (stable, machine-readable), ``status`` (HTTP), ``type`` (OpenAI's coarse class) and
``retryable``. Text is rendered only in ``__str__`` and :meth:`LongwireError.body`. No message may hold a key, a prompt or
another tenant's id.
"""

from __future__ import annotations

from typing import ClassVar


class LongwireError(Exception):
    """Base of everything raised on purpose. ``message`` is one sentence that says what to do."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, object]:
        """The OpenAI-shaped error object: ``{"error": {message, type, param, code}}``."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Extra response headers of this error (``Retry-After``, ``Allow``)."""
        if self.retry_after_s is None:
            return []
        return [(b"retry-after", b"%d" % max(1, round(self.retry_after_s)))]


# Ours.


class LocalError(LongwireError):
    """A bug in the gateway; reaching a client it says nothing about the inside."""

    code = "internal_error"
    retryable = True


# The client's.


class RemoteError(LongwireError):
    """The request is at fault."""

    code = "invalid_request"
    status = 400
    type = "invalid_request_error"


class BadHttp(RemoteError):
    """Malformed or ambiguous HTTP (RFC 9112): answered and closed, because what follows cannot be trusted."""

    code = "bad_http"


class BadJson(RemoteError):
    """The body is not one strict JSON object."""

    code = "bad_json"


class BadCursor(RemoteError):
    """A cursor that is malformed or points beyond the end."""

    code = "bad_cursor"


class NotAcceptable(RemoteError):
    """What was asked for exists, but not in a form that the client accepts."""

    code = "not_acceptable"
    status = 406


class RequestTimeout(RemoteError):
    """Header or body did not arrive within its wall-clock time."""

    code = "request_timeout"
    status = 408
    retryable = True


class BodyTooLarge(RemoteError):
    """The body is larger than max_body_bytes."""

    code = "body_too_large"
    status = 413


class WrongMediaType(RemoteError):
    """The request's Content-Type is not the route's."""

    code = "unsupported_media_type"
    status = 415


class KeyReused(RemoteError):
    """An Idempotency-Key came again with another body."""

    code = "idempotency_key_reused"
    status = 422


class Conflict(RemoteError):
    """What was asked for cannot be done as things stand; nothing was changed."""

    code = "conflict"
    status = 409


class ContextTooLarge(RemoteError):
    """Prompt and max_tokens together need more tokens than the tenant's slots or its limit per minute could ever give."""

    code = "context_too_large"


class HeadersTooLarge(RemoteError):
    """The request's head is larger than max_head_bytes."""

    code = "headers_too_large"
    status = 431


class NotFound(RemoteError):
    """Unknown path, or a stream that is unknown or another tenant's: the two look alike (410 is for the owner)."""

    code = "not_found"
    status = 404


class UnknownModel(RemoteError):
    """No engine serves this model."""

    code = "model_not_found"
    status = 404


class Gone(RemoteError):
    """The tenant's own stream was here and has been evicted."""

    code = "stream_evicted"
    status = 410


class MethodNotAllowed(RemoteError):
    """The path exists, the method does not."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, *, allow: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", ", ".join(self.allow).encode())]


# Policy.


class RefusedError(LongwireError):
    """A rule of the operator's says no."""

    code = "refused"
    status = 403
    type = "permission_error"


class Unauthenticated(RefusedError):
    """No key, or a key that no tenant has."""

    code = "invalid_api_key"
    status = 401
    type = "authentication_error"

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b'Bearer realm="longwire"')]


class ModelForbidden(RefusedError):
    """The tenant may not use this model."""

    code = "model_forbidden"


class TooManyStreams(RefusedError):
    """The tenant has as many streams as it may (detached ones count)."""

    code = "too_many_streams"
    status = 429
    type = "rate_limit_error"
    retryable = True


class TooManyRequests(RefusedError):
    """The tenant has made as many requests within a minute as it may."""

    code = "too_many_requests"
    status = 429
    type = "rate_limit_error"
    retryable = True


class TooManyTokens(RefusedError):
    """The tenant has used as many tokens within a minute as it may."""

    code = "too_many_tokens"
    status = 429
    type = "rate_limit_error"
    retryable = True


class TooManyWaiting(RefusedError):
    """The tenant has more requests waiting for an engine than its share; this one found no place or waited in vain."""

    code = "too_many_waiting"
    status = 429
    type = "rate_limit_error"
    retryable = True


class WaitedInVain(RefusedError):
    """No engine had room for the request until its deadline."""

    code = "waited_in_vain"
    status = 503
    type = "api_error"
    retryable = True


class Overloaded(RefusedError):
    """No room for a new stream: the arena or a table is full, what is left is kept for others, or the gateway drains."""

    code = "overloaded"
    status = 503
    type = "api_error"
    retryable = True


class Misdirected(RefusedError):
    """The stream is kept by another shard, where this connection cannot go (TLS of our own): another one may reach it."""

    code = "misdirected"
    status = 421
    type = "api_error"
    retryable = True


# The engine's.


class UpstreamError(LongwireError):
    """The engine failed before anything was sent to the client."""

    code = "upstream_error"
    status = 502
    retryable = True


class NoEngine(UpstreamError):
    """Engines are configured, and none is up yet."""

    code = "no_engine_ready"
    status = 503


# The operator's.


class SettingsError(LongwireError):
    """A setting is unknown or out of bounds; ``where`` names file and line. No HTTP answer: the process exits with 2."""

    code = "bad_setting"
    status = 500

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message
