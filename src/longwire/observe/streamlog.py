"""The one log line that a stream leaves behind.

What lives here: what the line holds, and the keyed hashes that stand in it for a stream's id and its prompt.
What must not: a prompt, a key or a raw id in any form that could be turned back; how lines are written (jsonlog.py).

The hashes are keyed BLAKE2b. With the default, a fresh random key per process, the same prompt has the same hash within
one process, and nobody can confirm a guess from the log. An operator who wants to compare across processes sets the key.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from typing import Final, NamedTuple

from ..words.reasons import CloseReason
from .jsonlog import OUR_LOGGER, configure_logging

__all__ = ["StreamEnd", "StreamLog", "configure_logging", "sanitise_request_id"]

HASH_BYTES: Final = 16
"""128 bits: no two prompts meet by chance."""
KEY_BYTES: Final = 32
MIN_KEY_BYTES: Final = 16
"""A shorter key could be found by trying all."""
MAX_REQUEST_ID_CHARS: Final = 128
"""UUIDs, ULIDs and trace ids all fit; what is longer is no id."""

_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9._:/=+@-]")


class StreamEnd(NamedTuple):
    """What is known of a stream when it ends. Times are milliseconds since its opening; None: it never came to that."""

    stream_id: bytes
    """The raw id. It is hashed before it is logged."""
    tenant: str
    model: str
    engine: str
    close_reason: CloseReason
    status: int
    """The HTTP status that the first reader got; 0 if none was sent."""
    events: int
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    tokens_estimated: bool
    ttfb_ms: float | None
    ttft_ms: float | None
    total_ms: float
    readers: int
    resumes: int
    prompt_hash: str
    """A keyed hash, made when the request came in, so that the prompt need not be kept for this."""
    request_id: str


class StreamLog:
    """Writes one line per stream at its end."""

    def __init__(self, key: bytes | None = None, logger: logging.Logger | None = None) -> None:
        """``key`` for the hashes (16 to 64 bytes); a random one if None."""
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
        if not MIN_KEY_BYTES <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"The hash key must be {MIN_KEY_BYTES} to {hashlib.blake2b.MAX_KEY_SIZE} bytes long.")
        # Keyed once and copied for each hash; ``person`` keeps an id and a prompt of the same bytes apart.
        self._id_hash = hashlib.blake2b(key=key, digest_size=HASH_BYTES, person=b"longwire-id")
        self._logger = logger if logger is not None else logging.getLogger(f"{OUR_LOGGER}.streams")
        self._lines = 0

    def hash_id(self, stream_id: bytes) -> str:
        """The name under which a stream stands in the log."""
        state = self._id_hash.copy()
        state.update(stream_id)
        return state.hexdigest()

    def write(self, end: StreamEnd) -> None:
        """Log one stream's end."""
        self._lines += 1
        level = _level_of(end.close_reason)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "stream_end", extra={"fields": self._fields(end)})

    def _fields(self, end: StreamEnd) -> dict[str, object]:
        return {
            "stream": self.hash_id(end.stream_id),
            "tenant": end.tenant,
            "model": end.model,
            "engine": end.engine,
            "close_reason": end.close_reason.value,
            "status": end.status,
            "events": end.events,
            "bytes": end.bytes,
            "prompt_tokens": end.prompt_tokens,
            "completion_tokens": end.completion_tokens,
            "tokens_estimated": end.tokens_estimated,
            "ttfb_ms": _rounded(end.ttfb_ms),
            "ttft_ms": _rounded(end.ttft_ms),
            "total_ms": _rounded(end.total_ms),
            "readers": end.readers,
            "resumes": end.resumes,
            "prompt_hash": end.prompt_hash,
            "request_id": sanitise_request_id(end.request_id),
        }

    def statistics(self) -> dict[str, int]:
        """How many streams have ended."""
        return {"lines": self._lines}

    def __repr__(self) -> str:
        return f"<StreamLog {self._lines} lines>"  # never the key


def sanitise_request_id(text: str) -> str:
    """A client's request id as it may stand in a log: cut, and `_` for every character that ids do not have."""
    return _NOT_IN_AN_ID.sub("_", text[:MAX_REQUEST_ID_CHARS])


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)


def _level_of(reason: CloseReason) -> int:
    """Ours is an error, the engine's a warning; what clients and operators do is the normal course of things."""
    if reason is CloseReason.INTERNAL_ERROR:
        return logging.ERROR
    return logging.WARNING if reason.status >= 500 else logging.INFO
