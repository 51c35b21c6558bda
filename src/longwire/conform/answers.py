"""What a client got, byte for byte and with its times, read as HTTP answers and server-sent events.

What lives here: the reading of one connection's bytes, as they come or from a recording, forgiving where nothing depends on it.
What must not: sockets and clocks (client.py), and what an event says (meaning.py).

It is no strict parser: what comes from a gateway under test is described, not refused. What is wrong with an answer stands in
:attr:`Answer.faults`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ..wire.chunked import ChunkedDecoder, ChunkedError
from ..wire.sse import BOM, SseSplitter, parse_event

End = Literal["whole", "open", "cut"]
"""An answer's body came to its end; the connection is still open before it; the connection ended before it."""
ConnectionEnd = Literal["open", "closed", "reset", "left"]
"""How a connection ended; ``left`` is by the client."""

MAX_HEAD_BYTES = 256 * 1024
"""Beyond it what comes is no head; no gateway sends a quarter of this."""
NO_BODY = frozenset({204, 304})


class Piece(NamedTuple):
    """What one read gave, and when."""

    at_s: float
    data: bytes


class Event(NamedTuple):
    """One server-sent event with data; ``is_ended`` is false for one that lacks its empty line at the end of the body."""

    data: bytes
    name: str
    at_s: float
    is_ended: bool = True


class Answer:
    """One HTTP answer, as far as it has come."""

    def __init__(self) -> None:
        self.status = 0
        self.version = ""
        self.fields: list[tuple[str, str]] = []
        self.interim: list[int] = []
        self.body = bytearray()
        self.end: End = "open"
        self.faults: list[str] = []
        self.began_s = 0.0
        self.ended_s = 0.0
        self._events: list[Event] = []
        self._splitter = SseSplitter()
        self._read_to = 0

    def __repr__(self) -> str:
        return f"Answer({self.status}, {len(self.body)} bytes, {len(self._events)} events, {self.end})"

    def get(self, name: str) -> str:
        """A field's values, joined as HTTP joins them; empty where there is none."""
        return ", ".join(value for key, value in self.fields if key == name)

    @property
    def is_stream(self) -> bool:
        return self.get("content-type").lower().startswith("text/event-stream")

    @property
    def events(self) -> list[Event]:
        """Those with data. At the end of a body also one without its empty line, since many clients take it."""
        rest = bytes(self.body[self._read_to :])
        data = parse_event(rest.removeprefix(BOM)).data if self.end != "open" and rest.strip() else None
        return self._events if data is None else [*self._events, Event(data, "", self.ended_s, is_ended=False)]

    def add_body(self, data: bytes, at_s: float) -> None:
        """Body bytes, in any pieces."""
        base = len(self.body)
        self.body += data
        for end in self._splitter.feed(data):
            block = bytes(self.body[self._read_to : base + end])
            self._read_to = base + end
            read = parse_event(block.removeprefix(BOM))
            if read.data is not None:
                self._events.append(Event(read.data, (read.event or b"").decode("latin-1"), at_s))

    @property
    def count(self) -> int:
        """Whole events so far; cheap."""
        return len(self._events)


class AnswerReader:
    """Reads the answers of one connection. :meth:`feed` takes bytes, :meth:`close` the connection's end."""

    def __init__(self, pieces: Iterable[Piece] = (), end: ConnectionEnd = "open", at_s: float = 0.0) -> None:
        self.answers: list[Answer] = []
        self._now: Answer | None = None
        self._head = b""
        self._decoder: ChunkedDecoder | None = None
        self._left: int | None = None
        for piece in pieces:
            self.feed(piece.data, piece.at_s)
        if end != "open":
            self.close(end, at_s)

    def __repr__(self) -> str:
        return f"AnswerReader({self.answers!r})"

    @property
    def whole(self) -> int:
        """Answers that have come to their end."""
        return sum(answer.end == "whole" for answer in self.answers)

    @property
    def events(self) -> int:
        """Events on this connection so far."""
        return sum(answer.count for answer in self.answers)

    def feed(self, data: bytes, at_s: float) -> None:
        """Take what has come."""
        while data:
            data = self._feed_head(data, at_s) if self._now is None else self._feed_body(self._now, data, at_s)

    def close(self, end: ConnectionEnd, at_s: float) -> None:
        """The connection is over."""
        answer = self._now
        if answer is None:
            if self._head:
                answer = Answer()
                answer.faults.append(f"no whole head: {self._head[:80]!r}")
                self.answers.append(answer)
            else:
                return
        is_by_close = self._decoder is None and self._left is None and answer.status > 0
        self._finish(answer, "whole" if is_by_close and end == "closed" else "cut", at_s)

    def _feed_head(self, data: bytes, at_s: float) -> bytes:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > MAX_HEAD_BYTES:
                self._head = self._head[:100]
            return b""
        head, rest = self._head[:end], self._head[end + 4 :]
        self._head = b""
        self._begin(head.decode("latin-1"), at_s)
        return rest

    def _begin(self, head: str, at_s: float) -> None:
        lines = head.split("\r\n")
        version, _, status = lines[0].partition(" ")
        answer = Answer()
        answer.version = version
        answer.status = int(status[:3]) if status[:3].isdecimal() else 0
        answer.began_s = at_s
        if answer.status == 0 or not version.startswith("HTTP/1."):
            answer.faults.append(f"no status line: {lines[0][:80]!r}")
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            answer.fields.append((name.strip().lower(), value.strip()))
            if not colon:
                answer.faults.append(f"no field: {line[:80]!r}")
        if 100 <= answer.status < 200:
            self.answers.append(answer)  # stands for the final one until that comes
            return
        if self.answers and 100 <= self.answers[-1].status < 200:
            interim = self.answers.pop()
            answer.interim = [*interim.interim, interim.status]
        self.answers.append(answer)
        self._frame(answer, at_s)

    def _frame(self, answer: Answer, at_s: float) -> None:
        """Find out how long the body is."""
        coding, length = answer.get("transfer-encoding").lower(), answer.get("content-length")
        if coding and length:
            answer.faults.append("both Content-Length and Transfer-Encoding")
        self._now, self._decoder, self._left = answer, None, None
        if answer.status in NO_BODY:
            self._finish(answer, "whole", at_s)
        elif coding.endswith("chunked"):
            self._decoder = ChunkedDecoder()
        elif length.isdecimal():
            self._left = int(length)
            if not self._left:
                self._finish(answer, "whole", at_s)
        elif length:
            answer.faults.append(f"Content-Length: {length}")

    def _feed_body(self, answer: Answer, data: bytes, at_s: float) -> bytes:
        if self._decoder is not None:
            return self._feed_coded(self._decoder, answer, data, at_s)
        if self._left is None:
            answer.add_body(data, at_s)
            return b""
        taken = data[: self._left]
        answer.add_body(taken, at_s)
        self._left -= len(taken)
        if not self._left:
            self._finish(answer, "whole", at_s)
        return data[len(taken) :]

    def _feed_coded(self, decoder: ChunkedDecoder, answer: Answer, data: bytes, at_s: float) -> bytes:
        try:
            spans = decoder.feed(data)
        except ChunkedError as error:
            for start, stop in error.spans:
                answer.add_body(data[start:stop], at_s)
            answer.faults.append(f"the chunked coding broke: {error}")
            self._finish(answer, "cut", at_s)
            return b""
        for start, stop in spans:
            answer.add_body(data[start:stop], at_s)
        if not decoder.done:
            return b""
        self._finish(answer, "whole", at_s)
        return data[decoder.consumed :]

    def _finish(self, answer: Answer, end: End, at_s: float) -> None:
        answer.end, answer.ended_s = end, at_s
        self._now = None
