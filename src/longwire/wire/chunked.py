"""HTTP/1.1 chunked transfer coding (RFC 9112 section 7.1), sans-IO and strict.

What lives here: the decoder that says where body bytes lie in what was received, and the encoder.
What must not: what the body means (sse.py, dialects) and any leniency. Lenient chunk terminators are how requests are smuggled
(CVE-2025-43859): a size is 1 to 16 hex digits, every line ends in CRLF, and what is not so ends the connection.

Faults are found in the order of the bytes and never looked for ahead of them, so that what comes of a body does not depend on
how it was cut on its way here.
"""

from __future__ import annotations

import re
import sys

MAX_SIZE_LINE_BYTES = 256
"""A size line with its extensions; nobody who is honest sends long ones (gunicorn and nginx allow less than 4 KiB)."""
MAX_TRAILER_BYTES = 8 * 1024
"""All trailer fields together. They are checked for form and dropped: nothing here trusts a trailer."""

LAST_CHUNK = b"0\r\n\r\n"

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED = rb"\"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*+\""
_EXTENSION = rb"[ \t]*+;[ \t]*+" + _TOKEN + rb"(?:[ \t]*+=[ \t]*+(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?"
# Every repetition is possessive, and no two ways to read a line exist: an ambiguous one costs a hostile line 2^n steps.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:" + _EXTENSION + rb")*+\r\n")
_PLAIN_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})\r\n")
_TRAILER = re.compile(rb"(" + _TOKEN + rb"):[\t\x20-\x7e\x80-\xff]*+\r\n")
_FORBIDDEN_TRAILERS = frozenset({b"content-length", b"host", b"transfer-encoding"})
"""RFC 9110 6.5.1: what decides on framing or routing cannot come after the body."""

_SIZE, _DATA, _DATA_END, _TRAILERS, _DONE = range(5)
_FAULTS = {
    _SIZE: "a chunk's size line is malformed or too long",
    _DATA_END: "a chunk does not end where its size says",
    _TRAILERS: "a trailer field is malformed or too long",
}


class ChunkedError(ValueError):
    """The bytes are not the chunked coding; the connection cannot be used any further.

    ``spans`` are the body bytes before the fault, as :meth:`ChunkedDecoder.feed` would have returned them.
    """

    spans: list[tuple[int, int]]


class ChunkedTooLarge(ChunkedError):
    """The chunks announced so far make a body larger than it may be."""


def encode_chunk(body: bytes) -> bytes:
    """One HTTP chunk around ``body`` (which must not be empty: that would end the message)."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class ChunkedDecoder:
    """Says where the body's bytes lie in each piece that was received.

    :meth:`feed` is given every byte once, in order; after :attr:`done` the rest of the piece (from :attr:`consumed` on)
    belongs to the next message.
    """

    __slots__ = ("_left", "_line", "_room_bytes", "_state", "_trailer_bytes", "consumed")

    def __init__(self, max_body_bytes: int = sys.maxsize) -> None:
        self._state = _SIZE
        self._left = 0
        self._line = b""
        self._room_bytes = max_body_bytes
        self._trailer_bytes = 0
        self.consumed = 0

    @property
    def done(self) -> bool:
        """The last chunk and its trailers were read."""
        return self._state == _DONE

    @property
    def is_in_data(self) -> bool:
        """In the middle of a chunk's data: more of the same chunk is to come."""
        return self._state == _DATA

    @property
    def at_boundary(self) -> bool:
        """Between two chunks, with nothing of the next one read."""
        return self._state == _SIZE and not self._line

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Return ``(start, end)`` of each run of body bytes in ``data``.

        Raises:
            ChunkedError: at the end of the first line that cannot be the chunked coding.
        """
        spans: list[tuple[int, int]] = []
        at = 0
        size = len(data)
        try:
            while at < size and self._state != _DONE:
                if self._state == _DATA:
                    at = self._feed_body(size, at, spans)
                else:
                    at = self._feed_whole(data, at, spans) or self._feed_line(data, at)
        except ChunkedError as exc:
            exc.spans = spans
            raise
        self.consumed = at
        return spans

    def _feed_whole(self, data: bytes, at: int, spans: list[tuple[int, int]]) -> int:
        """Take a chunk that lies whole in ``data``, as most do; return its end, or 0 where it does not."""
        match = _PLAIN_SIZE_LINE.match(data, at) if self._state == _SIZE and not self._line else None
        if match is None:
            return 0
        start = match.end()
        size = int(match[1], 16)
        end = start + size
        if not size or data[end : end + 2] != b"\r\n" or size > self._room_bytes:
            return 0
        self._room_bytes -= size
        spans.append((start, end))
        return end + 2

    def _feed_body(self, size: int, at: int, spans: list[tuple[int, int]]) -> int:
        """Take bytes of a chunk's data, up to the chunk's end or that of the piece."""
        end = min(size, at + self._left)
        spans.append((at, end))
        self._left -= end - at
        if not self._left:
            self._state = _DATA_END
        return end

    def _feed_line(self, data: bytes, at: int) -> int:
        """Take bytes up to the next LF; act on the line when it is whole."""
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        line = self._line + data[at:stop]
        if end < 0:
            self._check_prefix(line)
            self._line = line
            return stop
        self._line = b""
        if self._state == _SIZE:
            self._take_size(line)
        elif self._state == _DATA_END:
            if line != b"\r\n":
                raise ChunkedError(_FAULTS[_DATA_END])
            self._state = _SIZE
        else:
            self._take_trailer(line)
        return stop

    def _check_prefix(self, line: bytes) -> None:
        """Refuse early what can no longer become a valid line, so that an unfinished one cannot grow."""
        limit = MAX_SIZE_LINE_BYTES
        if self._state == _DATA_END:
            limit = 0
        elif self._state == _TRAILERS:
            limit = MAX_TRAILER_BYTES - self._trailer_bytes
        if len(line) > limit and line != b"\r":
            raise ChunkedError(_FAULTS[self._state])

    def _take_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line) if len(line) <= MAX_SIZE_LINE_BYTES else None
        if match is None:
            raise ChunkedError(_FAULTS[_SIZE])
        self._left = int(match[1], 16)
        if self._left > self._room_bytes:
            raise ChunkedTooLarge("the chunks make a body that is too large")
        self._room_bytes -= self._left
        self._state = _DATA if self._left else _TRAILERS

    def _take_trailer(self, line: bytes) -> None:
        if line == b"\r\n":
            self._state = _DONE
            return
        self._trailer_bytes += len(line)
        match = _TRAILER.fullmatch(line) if self._trailer_bytes <= MAX_TRAILER_BYTES else None
        if match is None:
            raise ChunkedError(_FAULTS[_TRAILERS])
        if match[1].lower() in _FORBIDDEN_TRAILERS:
            raise ChunkedError("a trailer field would change how the message is read")
