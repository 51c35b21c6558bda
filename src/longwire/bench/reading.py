"""One answer, from the bytes of reads to the times of a record.

What lives here: the reader that notes when content came, how the stream ended and what was wrong. Sans-IO.
What must not: sockets, clocks (the time of a read is given), and JSON: content is found by a pattern.

The usual read is one HTTP chunk that holds one event, whole. It is recognised by its two ends and not taken apart any further.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from ..wire.chunked import ChunkedDecoder, ChunkedError
from ..wire.http1 import Http1Error, ResponseHead, parse_response_head
from ..wire.sse import SseSplitter
from .checking import Checker
from .doors import Door
from .outcomes import Cause, Outcome
from .records import Gap, Record

GAP_NS = 500_000_000
"""A silence between two content events beyond which a reader thinks that it has stopped."""
MAX_HEAD_BYTES = 64 * 1024
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""An event that grows beyond is an endpoint gone mad, and must not fill this process's memory."""

_CONTENT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)" ?: ?"(?!")')
"""A text that is not empty. Within a JSON string a quote has a backslash before it, so no text can look like this."""
_TOLD = re.compile(rb'"completion_tokens" ?: ?([0-9]{1,15})')
_ID = re.compile(rb"^id: ?(?:[0-9]+-)?([0-9]{1,15})\r?$", re.MULTILINE)
_STAMP = re.compile(rb'"sim_ns":([0-9]+)')
_DATA = re.compile(rb"^data: ?", re.MULTILINE)
_DONE = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
_ERROR = re.compile(rb'"(?:error" ?: ?\{|object" ?: ?"error")')

WasLate = Callable[[int, int], bool]
"""Whether the client itself stood still between two times."""


class State(Enum):
    """Where in the response the next byte belongs."""

    HEAD = "head"
    BODY = "body"
    OVER = "over"


class AnswerReader:
    """Reads one response into a record. ``state`` is OVER when nothing is left; ``reusable``: the connection is free"""

    __slots__ = (
        "_coding", "_door", "_head", "_is_resumed", "_left", "_partial", "_read_ns", "_splitter", "_takes_all", "check",
        "failed", "head", "is_done", "record", "reusable", "state", "was_late",
    )  # fmt: skip

    def __init__(self, record: Record, door: Door, was_late: WasLate, *, is_resumed: bool = False) -> None:
        self.record = record
        self.check: Checker | None = None
        self.was_late = was_late
        self.state = State.HEAD
        self.head: ResponseHead | None = None
        self.is_done = False
        """The end marker has come."""
        self.failed: Outcome | None = None
        self.reusable = False
        self._door = door
        self._is_resumed = is_resumed
        self._head = b""
        self._coding: ChunkedDecoder | None = None
        self._left: int | None = None
        self._splitter = SseSplitter()
        self._partial = b""
        self._takes_all = False
        self._read_ns = 0

    def __repr__(self) -> str:
        return f"<AnswerReader {self.state.value} {self.record!r}>"

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """One read, and when it was."""
        if self.state is State.BODY and not self._partial and self._is_one_event(data):
            self.record.body_ns = self.record.body_ns or now_ns
            self._take_event(data[data.find(b"\n") + 1 : -2], now_ns)
        elif self.state is State.HEAD:
            self._read_head(data, now_ns)
        elif self.state is State.BODY:
            self._read_body(data, now_ns)

    def receive_eof(self, *, is_reset: bool) -> None:
        """The connection has ended."""
        if self.state is State.OVER:
            return
        if self.state is State.HEAD:
            self._end(Outcome.NO_HTTP if self._head else Outcome.DROPPED)
        elif self.is_done:
            self._end(None)
        elif is_reset:
            self._end(Outcome.RESET)
        else:
            by_close = self._coding is None and self._left is None
            self.is_done = by_close and not self._door.is_sse
            self._end(None if self.is_done else Outcome.CUT_SHORT)

    @property
    def outcome(self) -> Outcome:
        """How it has ended."""
        return self.failed or (Outcome.COMPLETE if self.is_done else Outcome.CUT_SHORT)

    # The head.

    def _read_head(self, data: bytes, now_ns: int) -> None:
        self.record.head_ns = self.record.head_ns or now_ns
        raw = self._head + data
        end = raw.find(b"\r\n\r\n") + 4
        if end < 4:
            self._head = raw
            if len(raw) > MAX_HEAD_BYTES:
                self._end(Outcome.NO_HTTP)
            return
        self._head = b""
        try:
            head = parse_response_head(raw[:end])
        except Http1Error:
            self._head = raw
            self._end(Outcome.NO_HTTP)
            return
        if head.status < 200:  # an early hint: the real one follows
            if end < len(raw):
                self._read_head(raw[end:], now_ns)
            return
        self._begin(head)
        if end < len(raw) and self.state is State.BODY:
            self._read_body(raw[end:], now_ns)

    def _begin(self, head: ResponseHead) -> None:
        self.head = head
        self.record.status = self.record.status or head.status
        if not 200 <= head.status < 300:
            self._end(Outcome.SHED if head.status in (429, 503) else Outcome.STATUS)
            return
        is_event_stream = (head.get(b"content-type") or b"").lower().startswith(b"text/event-stream")
        if (self._door.is_sse and not is_event_stream) or head.status == 204:
            self._end(Outcome.NO_STREAM)
            return
        self._takes_all = not is_event_stream
        if self._takes_all and self.check is not None:  # plain text has no events by which tokens could be told apart
            self.check, self.record.verified = None, 0
        self._coding = ChunkedDecoder() if head.chunked else None
        self._left = head.content_length
        self.state = State.BODY
        if self._left == 0:
            self._end_body()

    # The body.

    def _is_one_event(self, data: bytes) -> bool:
        """Whether these bytes are one HTTP chunk that holds one whole event, to the byte."""
        coding = self._coding
        line_end = data.find(b"\r\n", 0, 12)
        return (
            coding is not None
            and line_end > 0
            and data.endswith(b"\n\n\r\n")
            and data.find(b"\n\n") == len(data) - 4
            and data[:line_end] == b"%x" % (len(data) - line_end - 4)
            and coding.at_boundary
            and self._splitter.at_boundary
        )

    def _read_body(self, data: bytes, now_ns: int) -> None:
        coding, broken, self._read_ns = self._coding, False, now_ns
        try:
            spans = coding.feed(data) if coding is not None else [(0, len(data))]
        except ChunkedError as exc:
            spans, broken = exc.spans, True
        if spans:
            self.record.body_ns = self.record.body_ns or now_ns
        for number, (start, end) in enumerate(spans):
            piece = data[start:end]
            if not self._takes_all:
                self._take_sse(piece, now_ns)
            else:
                is_last = number == len(spans) - 1
                self._take_piece(piece, now_ns, coding is not None and is_last and coding.is_in_data and not broken)
        if self.state is not State.BODY:
            return
        if broken:
            self._end(None if self.is_done else Outcome.MALFORMED)
        elif coding is not None:
            if coding.done:
                self._end_body(has_surplus=coding.consumed < len(data))
        elif self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._end_body(has_surplus=self._left < 0)

    def _take_sse(self, piece: bytes, now_ns: int) -> None:
        ends = self._splitter.feed(piece)
        at = self._splitter.skip
        for end in ends:
            block, self._partial = self._partial + piece[at:end], b""
            at = end
            self._take_event(block, now_ns)
        self._keep(piece[at:])

    def _take_piece(self, piece: bytes, now_ns: int, more_to_come: bool) -> None:
        """HTTP chunk by HTTP chunk; without the chunked coding, read by read."""
        if more_to_come:
            self._keep(piece)
            return
        block, self._partial = self._partial + piece, b""
        self._take_event(block, now_ns)

    def _keep(self, piece: bytes) -> None:
        self._partial += piece
        if len(self._partial) > MAX_EVENT_BYTES:
            self._end(Outcome.MALFORMED)

    def _end_body(self, *, has_surplus: bool = False) -> None:
        if not self._door.is_sse:
            self._finish_body()
        assert self.head is not None
        self.reusable = self.head.keep_alive and not has_surplus
        self._end(None if self.is_done else Outcome.CUT_SHORT)

    def _finish_body(self) -> None:
        """Where the body's end is the answer's: what no blank line ends is an event, too, and what has not come is lost."""
        if self._partial and not self._takes_all:
            rest, self._partial = self._partial, b""
            self._take_event(rest, self._read_ns)
        if self.check is not None and self.failed is None:
            self.check.finish()
        self.is_done = True

    def _end(self, outcome: Outcome | None) -> None:
        self.state = State.OVER
        self.failed = self.failed or outcome

    # Events.

    def _take_event(self, block: bytes, now_ns: int) -> None:
        record = self.record
        if self._takes_all:
            if block:
                self._take_content(block, 0, now_ns)
            return
        match = _CONTENT.search(block)
        if match is None:
            self._take_other(block, now_ns)
            return
        if self._is_resumed and not self._is_new(block):
            return
        record.events += 1
        self._take_content(block, match.end(), now_ns)

    def _take_content(self, block: bytes, at: int, now_ns: int) -> None:
        times = self.record.times
        if self._is_resumed:
            self._note_return(now_ns)
        if times and now_ns - times[-1] > GAP_NS and not self._is_own_gap(len(times)):
            self.record.gaps.append(Gap(len(times), self._cause(block, times[-1], now_ns)))
        times.append(now_ns)
        if self.check is not None:
            self.check.take(block, at)

    def _take_other(self, block: bytes, now_ns: int) -> None:
        """An event without content: the role, the finish, usage, the end marker, an error, a comment."""
        if _DATA.search(block) is None or (self._is_resumed and not self._is_new(block)):
            return
        self.record.events += 1
        if self._is_resumed:
            self._note_return(now_ns)
        if _DONE.search(block):
            if not self.is_done and self.check is not None and self.failed is None:
                self.check.finish()
            self.is_done = self.is_done or self._door.is_sse
            self.record.end_ns = self.record.end_ns or now_ns
        elif b'"choices"' not in block and _ERROR.search(block):
            self.failed = Outcome.TOLD
        elif (match := _TOLD.search(block)) is not None:
            self.record.told_tokens = int(match[1])

    # Resuming and gaps.

    def _is_new(self, block: bytes) -> bool:
        """Whether an event of a resumed stream is the next one, by what it says of itself; what is wrong is counted."""
        match = _ID.search(block)
        if match is None:
            return True
        seq = int(match[1])
        record = self.record
        if seq < record.events:
            record.duplicates += 1
            return False
        if seq > record.events:
            record.lost += seq - record.events
            record.events = seq
        return True

    def _note_return(self, now_ns: int) -> None:
        cuts = self.record.cuts
        if cuts and not cuts[-1].back_ns:
            cuts[-1] = cuts[-1]._replace(back_ns=now_ns)

    def _is_own_gap(self, event: int) -> bool:
        return any(cut.event == event for cut in self.record.cuts)

    def _cause(self, block: bytes, before_ns: int, now_ns: int) -> Cause:
        if self.was_late(before_ns, now_ns):
            return Cause.CLIENT
        match = _STAMP.search(block)
        if match is None:
            return Cause.UNKNOWN
        return Cause.GATEWAY if (now_ns - int(match[1])) * 2 >= now_ns - before_ns else Cause.ENGINE
