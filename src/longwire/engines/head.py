"""The head of an engine's response, out of whatever pieces it comes in.

What lives here: collecting a head's bytes within a bound, and passing over 1xx responses.
What must not: what an answer's head means (exchange.py), its grammar (wire/http1.py).
"""

from __future__ import annotations

from typing import Final

from ..wire.http1 import Http1Error, ResponseHead, parse_response_head

MAX_RESPONSE_HEAD_BYTES = 64 * 1024
"""Engines and the proxies before them are allowed twice what clients are."""
MAX_INTERIM_RESPONSES = 8
"""1xx heads before the real one; RFC 9110 15.2 sets no bound, so an engine could send them for ever."""

_START = b"HTTP/1."


class HeadReader:
    """Reads up to the final head. :attr:`is_untouched` until a byte of any has come."""

    __slots__ = ("_held", "_interim", "is_untouched")

    def __init__(self) -> None:
        self._held = bytearray()
        self._interim = 0
        self.is_untouched = True

    def feed(self, data: bytes) -> tuple[ResponseHead | None, int]:
        """``(head, used)``: the final head, or None; and how many bytes of ``data`` belong to heads.

        Raises:
            Http1Error: this is no response that can be understood.
        """
        self.is_untouched = False
        at = 0
        while at < len(data):
            head, used = self._feed_one(data[at:] if at else data)
            at += used
            if head is None:
                break
            if head.status >= 200:
                return head, at
            self._interim += 1
            if self._interim > MAX_INTERIM_RESPONSES or head.status == 101:
                raise Http1Error(502, "The engine sent interim responses without end.")
        return None, at

    def _feed_one(self, data: bytes) -> tuple[ResponseHead | None, int]:
        held = self._held
        before = len(held)
        held += data
        end = held.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0:
            if len(held) > MAX_RESPONSE_HEAD_BYTES:
                raise Http1Error(502, "The engine's response head is too large.")
            if not held.startswith(_START[: len(held)]):
                raise Http1Error(502, "The engine does not speak HTTP/1.1.")
            return None, len(data)
        head = parse_response_head(bytes(held[: end + 4]))
        held.clear()
        return head, end + 4 - before


SPENT: Final = HeadReader()
"""Stands in every answer for its own, once the head is read: it is asked nothing more."""
