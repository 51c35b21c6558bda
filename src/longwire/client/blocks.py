"""Server-sent event blocks, as a client reads them.

What lives here: bytes in, whole blocks out, by the rules of WHATWG HTML 9.2.
What must not: sockets, cursors, what a block means (reader.py).

The gateway's own splitter works on arena offsets and is tuned for the hot path; this one is for the other end of the wire,
where a program that has only ``openai`` installed reads a few hundred events.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""The largest block that is kept while it is incomplete: four times the gateway's default max_event_bytes."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class BlockTooLarge(ValueError):
    """A block grew past MAX_BLOCK_BYTES without ending."""


class Block(NamedTuple):
    """One block; a block of comments alone is none and is not reported."""

    data: tuple[bytes, ...]
    """The ``data`` lines; empty where the block has none (such a block is no event)."""
    event: bytes | None = None
    id: str | None = None
    retry_ms: int | None = None

    def encode(self) -> bytes:
        """The block as a decoder that knows no ``id`` and no ``retry`` may see it.

        openai-python keeps the last ``id`` for ever, and from then on takes every comment for an event with no data,
        which kills the stream in its JSON parser; a bare ``retry`` does the same.
        """
        lines = [b"data: " + line for line in self.data]
        if self.event is not None:
            lines.insert(0, b"event: " + self.event)
        return b"\n".join(lines) + b"\n\n"


class BlockSplitter:
    """Cuts one connection's bytes into blocks. Call :meth:`receive_data`, then :meth:`next_block` until it gives None.

    What has not been ended by a blank line when the connection ends is dropped with the splitter, its id included.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # where the next line starts
        self._seen = 0  # up to where no line end is; a long line is not searched again with every read
        self._after_cr = False  # the last line ended in a CR: a LF belongs to it, even if it comes with the next read
        self._at_start = True
        self._block_bytes = 0
        self._fields: list[tuple[bytes, bytes]] = []

    def __repr__(self) -> str:
        return f"<BlockSplitter buffered={len(self._buffer) - self._at} fields={len(self._fields)}>"

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes, however they were cut."""
        if self._after_cr and data:
            self._after_cr = False
            data = data[1:] if data.startswith(b"\n") else data
        self._buffer += data

    def next_block(self) -> Block | None:
        """The next whole block, or None when more bytes are needed.

        Raises:
            BlockTooLarge: when an unfinished block is larger than a gateway would send.
        """
        while (line := self._next_line()) is not None:
            if line:
                self._add_field(line)
            elif block := self._end_block():
                return block
        if self._block_bytes + len(self._buffer) > MAX_BLOCK_BYTES:
            raise BlockTooLarge(f"a block of the stream is larger than {MAX_BLOCK_BYTES} bytes")
        return None

    def _next_line(self) -> bytes | None:
        # A lone CR at the end of the buffer ends a line too; waiting for what follows would hold back a whole block.
        match = _LINE_END.search(self._buffer, self._seen)
        if match is None:
            del self._buffer[: self._at]
            self._at, self._seen = 0, len(self._buffer)
            return None
        line = bytes(self._buffer[self._at : match.start()])
        self._at = self._seen = match.end()
        self._after_cr = match.end() == len(self._buffer) and match.group() == b"\r"
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        return line

    def _add_field(self, line: bytes) -> None:
        self._block_bytes += len(line)
        name, _, value = line.partition(b":")
        if name:  # no name: a comment
            self._fields.append((name, value.removeprefix(b" ")))

    def _end_block(self) -> Block | None:
        fields, self._fields = self._fields, []
        self._block_bytes = 0
        if not fields:
            return None
        data = tuple(value for name, value in fields if name == b"data")
        last = dict(fields)
        retry = last.get(b"retry", b"")
        event_id = last.get(b"id")
        return Block(
            data=data,
            event=last.get(b"event") or None,
            id=None if event_id is None or b"\0" in event_id else event_id.decode("utf-8", "replace"),
            retry_ms=int(retry) if retry.isdigit() and len(retry) < 10 else None,
        )
