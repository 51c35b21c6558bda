"""Server-sent events (WHATWG HTML 9.2), sans-IO.

What lives here: finding where events end in a byte stream, normalising one event, encoding one.
What must not: HTTP framing (chunked.py), JSON, what an event says (dialects, engines).

An event is the lines up to an empty line. Lines end in LF, CRLF or CR, also mixed, and a CRLF may be cut between two reads.
Bytes are never decoded to text here, so no code point can be split.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

BOM: Final = b"\xef\xbb\xbf"

_LINE_END = re.compile(rb"\r\n|\n|\r")
_FORBIDDEN_IN_ID = re.compile(rb"[\r\n\0]")


class SseEvent(NamedTuple):
    """One event's fields. ``data`` is None where the event has no data line (it dispatches nothing)."""

    data: bytes | None
    event: bytes | None
    has_other_fields: bool
    """It has an ``id``, ``retry`` or unknown field, which some OpenAI clients do not survive."""


class SseSplitter:
    """Finds the ends of events in body bytes that arrive in any pieces.

    :meth:`feed` returns, for each event that ends in the piece, the index just behind its last line end. The LF of a CRLF whose
    CR ended an event belongs to nothing: :meth:`feed` never waits for it, and :attr:`skip` says how many leading bytes of the
    next piece it was.
    """

    __slots__ = ("_after_cr", "_after_event", "_at_line_start", "skip")

    def __init__(self) -> None:
        self._at_line_start = True
        self._after_cr = False
        self._after_event = False
        self.skip = 0

    @property
    def at_boundary(self) -> bool:
        """Nothing is pending: not even the LF of a CRLF."""
        return self._at_line_start and not self._after_cr

    def feed(self, data: bytes) -> list[int]:
        """Return the end of each event in ``data``; an end directly behind another is an empty event, to be ignored."""
        ends: list[int] = []
        at = 0
        self.skip = 0
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                at = 1
                self.skip = int(self._after_event)
        for match in _LINE_END.finditer(data, at):
            if match.start() > at:
                self._at_line_start = False
            at = match.end()
            if self._at_line_start:
                ends.append(at)
            self._at_line_start = True
        if at < len(data):
            self._at_line_start = False
        elif data.endswith(b"\r"):
            self._after_cr = True
            self._after_event = bool(ends) and ends[-1] == at
        return ends


def parse_event(block: bytes) -> SseEvent:
    """Read one event's lines. ``block`` may or may not include the empty line."""
    data: list[bytes] = []
    event: bytes | None = None
    other = False
    for line in _LINE_END.split(block):
        if not line or line[0] == 0x3A:  # empty, or a comment
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
        else:
            other = True
    return SseEvent(b"\n".join(data) if data else None, event, other)


def is_comment(block: bytes) -> bool:
    """Whether every line of the block is a comment."""
    return all(line[0] == 0x3A for line in _LINE_END.split(block) if line)


def normalise_line_ends(block: bytes) -> bytes:
    """The same event with every line end an LF, and one empty line at its end."""
    return _LINE_END.sub(b"\n", block).rstrip(b"\n") + b"\n\n"


def encode_event(data: bytes, event: bytes | None = None, id: bytes | None = None) -> bytes:
    """One event as a block. The id, if any, stands in the same block as its data: an id alone would move a client's cursor.

    Raises:
        ValueError: where ``event`` or ``id`` holds a line end or NUL, which would forge fields (CVE-2026-44214).
    """
    lines = []
    if id is not None:
        lines.append(b"id: " + id)
    if event is not None:
        lines.append(b"event: " + event)
    if any(_FORBIDDEN_IN_ID.search(line) for line in lines):
        raise ValueError("a line end or NUL in an id or event name")
    lines.extend(b"data: " + line for line in _LINE_END.split(data))
    return b"\n".join(lines) + b"\n\n"


def encode_comment(text: bytes) -> bytes:
    """A comment block, as heartbeats are. ``: x`` and an empty line: openai-python survives it where no id was ever sent."""
    return b": " + _LINE_END.sub(b" ", text) + b"\n\n"
