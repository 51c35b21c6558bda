"""A streaming response read piece by piece: status, HTTP chunks, SSE data.

What lives here: the reader that the load uses whenever a read is not exactly one event in one HTTP chunk.
What must not: sockets and clocks.
"""

from __future__ import annotations

import re

HEX = re.compile(rb"[0-9a-fA-F]{1,8}")
MAX_HEAD_BYTES = 65536


class ResponseReader:
    """Feed it bytes; it returns the data of each complete SSE block. ``problem`` says what was wrong, once."""

    __slots__ = ("_raw", "_text", "chunked", "ended", "head", "problem", "status")

    def __init__(self) -> None:
        self.status = 0
        self.head = b""
        self.ended = False  # the body's own end was seen
        self.problem = ""
        self.chunked = True  # else the body ends with the connection
        self._raw = b""
        self._text = b""

    @property
    def at_boundary(self) -> bool:
        """Whether the next byte opens an HTTP chunk that opens an event."""
        return self.status == 200 and self.chunked and not self._raw and not self._text and not self.ended

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every block that is complete now."""
        self._raw += data
        if not self.status and not self._read_head():
            return []
        if self.status != 200:
            self.problem = f"status {self.status}: {self._raw[:200]!r}"
            return []
        if self.chunked:
            self._read_chunks()
        else:
            self._text, self._raw = self._text + self._raw, b""
        *blocks, self._text = self._text.split(b"\n\n")
        return [payload for block in blocks if (payload := _data_of(block)) is not None]

    def _read_head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            if len(self._raw) > MAX_HEAD_BYTES:
                self.problem = "endless head"
            return False
        self.head, self._raw = head, rest
        self.chunked = b"transfer-encoding: chunked" in head.lower()
        version, _, status = head.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
            self.problem = f"no HTTP response: {head[:100]!r}"
            return False
        self.status = int(status[:3])
        return True

    def _read_chunks(self) -> None:
        raw, at, texts = self._raw, 0, [self._text]
        while (line_end := raw.find(b"\r\n", at)) >= 0:
            size_text = raw[at:line_end].partition(b";")[0]
            if not HEX.fullmatch(size_text):
                self.problem = f"no HTTP chunk: {raw[at : at + 60]!r}"
                break
            size = int(size_text, 16)
            start, end = line_end + 2, line_end + 2 + size
            if len(raw) < end + 2:
                break
            if raw[end : end + 2] != b"\r\n":
                self.problem = f"broken HTTP chunk: {raw[at : at + 60]!r}"
                break
            texts.append(raw[start:end])
            at = end + 2
            if size == 0:
                self.ended = True
                break
        self._raw, self._text = raw[at:], b"".join(texts)


def _data_of(block: bytes) -> bytes | None:
    """The block's data; None of a comment."""
    lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
