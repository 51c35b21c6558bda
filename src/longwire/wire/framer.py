"""From an engine's raw response body to entries of the event index, without copying where that is possible.

What lives here: the walk over new bytes that finds whole events and says how each can be sent on.
What must not: sockets, the arena (offsets only), JSON.

Three ways for an event's bytes to go out, from the cheapest on:

* *framed*: they arrived as one HTTP chunk that holds exactly this event, in LF form. The slice goes out as it is.
* *plain*: they lie in one piece, but the HTTP chunk around them is not theirs alone (or there is none).
* *rewritten*: they are cut by chunk boundaries, have CR line ends, a byte order mark, no empty line at the end, or fields that
  clients of this dialect do not survive. A canonical copy goes to the gateway's records.

What goes out depends on the upstream's bytes alone, never on how reads happened to cut them (law 2): the same recorded response
cut at every byte offset gives the same events, and the same bytes once a plain one has got its HTTP chunk. Faults are found in
the order of the bytes, so the events before one are the same too.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..words.events import FRAME_END
from .chunked import ChunkedDecoder, ChunkedError
from .sse import BOM, SseSplitter, is_comment, normalise_line_ends, parse_event

_FRAME_START = re.compile(rb"([1-9a-f][0-9a-f]{0,6})\r\n")
# Lower case only, as our own frames are: an engine that writes upper case (Rust's hyper) goes the plain way, so that what a
# client gets does not depend on whether a read happened to hold whole frames.


class Found(NamedTuple):
    """One event found: ``start`` and ``length`` say where it lies in the upstream's bytes, or ``rewritten`` is its new form."""

    start: int
    length: int
    framed: bool
    silent: bool
    rewritten: bytes | None
    block: bytes
    """The event's own bytes, for whoever reads what it says."""


class EventTooLarge(ValueError):
    """An event grew beyond the cap without ending."""


class EventFramer:
    """Finds events in a response body.

    ``chunked``: the body is in the chunked coding; otherwise it is delimited by length or by close.
    ``strip``: drop fields other than ``data`` and ``event``, which OpenAI clients do not survive (openai-python 2722, 3833).
    """

    __slots__ = (
        "_aligned", "_chunks", "_length_left", "_max_event_bytes", "_one_piece", "_partial", "_splitter", "_start", "_strip",
        "done", "found", "has_surplus", "is_first",
    )  # fmt: skip

    def __init__(self, chunked: bool, content_length: int | None, *, strip: bool, max_event_bytes: int) -> None:
        self._chunks = ChunkedDecoder() if chunked else None
        self._length_left = content_length
        self._splitter = SseSplitter()
        self._strip = strip
        self._max_event_bytes = max_event_bytes
        self._partial = bytearray()
        self._start = 0
        self._one_piece = True
        self._aligned = chunked
        self.is_first = True
        """Nothing of the first event was seen: a byte order mark may still come."""
        self.done = content_length == 0
        self.has_surplus = False
        """Bytes came behind the body's end: the engine is out of step, and its connection must not be used again."""
        self.found: list[Found] = []
        """What the last :meth:`feed` found. Where it raised, these are the events before the fault."""

    @property
    def at_boundary(self) -> bool:
        """Between two HTTP chunks and two events: where a checkpoint may stand, and whole frames need not be fed.

        Not before the first event, which alone may have a byte order mark.
        """
        return self._aligned and not self.is_first

    @property
    def partial_bytes(self) -> int:
        """Bytes of an event that has not ended yet."""
        return len(self._partial)

    def feed(self, data: bytes, at: int) -> list[Found]:
        """Find the events that end in ``data``, whose first byte is at offset ``at`` of the upstream's bytes.

        Raises:
            ChunkedError: the chunked coding is broken.
            EventTooLarge: an event is over the cap.
        """
        found = self.found = []
        rest = 0
        if not self._aligned and self._chunks is not None:
            # Reads of much at once begin and end within frames: behind the first one's end there are whole ones again.
            end = data.find(FRAME_END) + len(FRAME_END)
            if len(FRAME_END) <= end < len(data):
                self._take_slowly(data[:end], at, found)
                rest = end
        if self._aligned:
            rest = self._take_frames(data, rest, at, found)
        if rest < len(data):
            self._take_slowly(data[rest:] if rest else data, at + rest, found)
        return found

    def take_found(self) -> list[Found]:
        """:attr:`found`, once: between two reads of thousands of answers it would only take memory."""
        found, self.found = self.found, []
        return found

    def close(self) -> list[Found]:
        """The body has ended: flush an event that had no empty line behind it (higress 4620 lost usage there)."""
        if not self._partial.strip(b"\r\n"):
            return []
        return self._finish(bytes(self._partial) + b"\n", False, len(self._partial) + 1)

    # Whole frames, the common case.

    def _take_frames(self, data: bytes, pos: int, at: int, found: list[Found]) -> int:
        """Take frames from ``pos`` on while each is exactly one event in LF form; return where that ends."""
        size = len(data)
        while pos < size:
            end = one_frame(data, pos)
            block = data[data.find(b"\n", pos) + 1 : end - 2]
            if not end or len(block) > self._max_event_bytes:
                break
            self.is_first = False
            found.append(Found(at + pos, end - pos, True, False, None, block))
            pos = end
        return pos

    # Anything else.

    def _take_slowly(self, data: bytes, at: int, found: list[Found]) -> None:
        try:
            spans = self._chunks.feed(data) if self._chunks is not None else self._sized_span(data)
        except ChunkedError as exc:
            self._take_spans(exc.spans, data, at, found)
            raise
        self._take_spans(spans, data, at, found)
        if self._chunks is not None:
            self.done = self._chunks.done
            self.has_surplus = self.done and self._chunks.consumed < len(data)
            self._aligned = not self._partial and self._splitter.at_boundary and self._chunks.at_boundary

    def _sized_span(self, data: bytes) -> list[tuple[int, int]]:
        if self._length_left is None:
            return [(0, len(data))]
        taken = min(self._length_left, len(data))
        self._length_left -= taken
        self.done = self._length_left == 0
        self.has_surplus = taken < len(data)
        return [(0, taken)] if taken else []

    def _take_spans(self, spans: list[tuple[int, int]], data: bytes, at: int, found: list[Found]) -> None:
        """Body bytes, each span in one piece: cut them into events."""
        for start, stop in spans:
            span = data[start:stop]
            ends = self._splitter.feed(span)
            begin = self._splitter.skip
            for end in ends:
                self._extend(span[begin:end], at + start + begin)
                found += self._finish(bytes(self._partial), self._one_piece, len(self._partial))
                begin = end
            if begin < len(span):
                self._extend(span[begin:], at + start + begin)

    def _extend(self, piece: bytes, at: int) -> None:
        if not self._partial:
            self._start = at
            self._one_piece = True
        elif at != self._start + len(self._partial):
            self._one_piece = False
        self._partial += piece
        # The LF of a CRLF may come later than the CR that ends an event: it does not count.
        if len(self._partial) - self._partial.endswith(b"\r\n") > self._max_event_bytes:
            raise EventTooLarge(f"an event is over {self._max_event_bytes} bytes")

    def _finish(self, block: bytes, one_piece: bool, length: int) -> list[Found]:
        """The event is whole: decide how it goes out."""
        start = self._start
        self._partial.clear()
        if self.is_first:
            self.is_first = False
            if block.startswith(BOM):
                # An empty line behind it belongs to nothing; left at the start, it would cut an id from its data.
                block = block[3:].lstrip(b"\r\n")
                one_piece = False
        if not block.strip(b"\r\n"):
            return []
        if b"\r" in block or not block.endswith(b"\n\n"):
            block = normalise_line_ends(block)
            one_piece = False
        fields = parse_event(block)
        silent = fields.data is None
        if self._strip and (silent or fields.has_other_fields):
            if silent and not is_comment(block):
                return []
            if not silent:
                block = _only_data_and_event(block)
                one_piece = False
        if one_piece:
            return [Found(start, length, False, silent, None, block)]
        return [Found(0, 0, False, silent, block, block)]


def _whole_start(length: int) -> bytes:
    """How a whole frame of this length must begin; where there is none of this length, more than such data can hold."""
    for digits in range(1, 4):
        body = length - 4 - digits
        if body > 0 and len(b"%x" % body) == digits:
            return b"%x\r\ndata:" % body
    return bytes(length + 1)


LONGEST_WHOLE = 4096
WHOLE_STARTS: Final = tuple(_whole_start(length) for length in range(LONGEST_WHOLE))
"""The size in hex follows from a frame's length, so one comparison checks size line and field name. Longer ones are rare."""


def is_whole_frame(data: bytes) -> bool:
    """Whether ``data`` is exactly one HTTP chunk that holds exactly one single-line ``data:`` event in LF form.

    The same rule as :func:`one_frame`, for the case that matters: one event a read. The hot path (engines/transport.py) writes
    these searches out to save the call; this is the rule that its copy is held against.
    """
    length = len(data)
    if length >= LONGEST_WHOLE:
        return one_frame(data, 0) == length
    start = WHOLE_STARTS[length]
    return (
        data.startswith(start)
        and data.endswith(FRAME_END)
        and data.find(b"\n", len(start)) == length - 4
        and data.find(b"\r", len(start)) == length - 2
    )


def one_frame(data: bytes, pos: int) -> int:
    """If an HTTP chunk that holds exactly one single-line ``data:`` event in LF form starts at ``pos``: its end, else 0.

    All checks run in C over the bytes: this is what is done per event in place of parsing.
    """
    match = _FRAME_START.match(data, pos)
    if match is None:
        return 0
    body = match.end()
    end = body + int(match[1], 16) + 2
    if (
        end > len(data)
        or data[end - 4 : end] != FRAME_END
        or not data.startswith(b"data:", body)
        or data.find(b"\n", body) != end - 4
        or data.find(b"\r", body) != end - 2
    ):
        return 0
    return end


def plain_run(data: bytes, mark: bytes) -> list[int]:
    """The lengths of the whole frames with ``mark`` in them at the start of ``data``: what the short way takes one by one,
    found in one go. Whatever is not beyond doubt ends the run."""
    lengths: list[int] = []
    for part in data.split(FRAME_END)[:-1]:
        length = len(part) + 4
        if (
            length >= LONGEST_WHOLE
            or mark not in part
            or not part.startswith(WHOLE_STARTS[length])
            or part.find(b"\n", 6) >= 0
            or part.find(b"\r", 6) >= 0
        ):
            break
        lengths.append(length)
    return lengths


def _only_data_and_event(block: bytes) -> bytes:
    """The block without id, retry and unknown fields."""
    lines = [line for line in block.split(b"\n") if line.partition(b":")[0] in (b"data", b"event")]
    return b"\n".join(lines) + b"\n\n"
