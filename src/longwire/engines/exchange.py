"""One request to an engine and its answer: from raw bytes in the sink to entries in its index.

What lives here: the response's head, its body's framing, and what each way of ending means.
What must not: sockets (transport.py), which upstream (pool.py), dialects.

The hot path is :meth:`Exchange.receive` with one whole frame: a search or two in C, one append, one publish.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from ..wire.chunked import ChunkedDecoder, ChunkedError
from ..wire.framer import EventFramer, EventTooLarge, Found, is_whole_frame
from ..wire.http1 import Http1Error, ResponseHead, parse_response_head
from ..words.events import MAX_ENTRY_BYTES
from ..words.reasons import CloseReason
from .base import Answer, Failure, Sink, Verdict, Watch

MAX_RESPONSE_HEAD_BYTES = 64 * 1024
"""Engines and the proxies before them are allowed twice what clients are."""
MAX_REFUSAL_BYTES = 64 * 1024
"""How much of an error body is kept for the client."""
MAX_INTERIM_RESPONSES = 8
"""1xx heads before the real one; RFC 9110 15.2 sets no bound, so an engine could send them for ever."""
DONE_BLOCK = b"data: [DONE]\n\n"


class Phase(IntEnum):
    """How far the answer has been read."""

    HEAD = 0
    EVENTS = 1
    BODY = 2
    REFUSAL = 3
    OVER = 4


class Expect(IntEnum):
    """What the request asked for."""

    EVENTS = 0
    JSON = 1
    ANY = 2


class Owner(Protocol):
    """Who started the exchange and decides what its ending means for the stream."""

    def answered(self, answer: Answer) -> None:
        """The answer is an opaque body; its bytes follow."""

    def completed(self, reason: CloseReason, message: str) -> None:
        """The answer is over, after something of it was passed on (or it was whole)."""

    def failed(self, failure: Failure) -> None:
        """The exchange is over and nothing of it was passed on."""


class Link(Protocol):
    """The connection that an exchange runs on."""

    def release(self, reusable: bool) -> None:
        """The connection is not needed any more. Called once."""

    def drain(self) -> None:
        """The answer is complete but for the end of its HTTP body: read on, but not into the sink any more."""


class Exchange:
    """Reads one answer from ``link`` into ``sink``; ``limits`` are the most bytes of an event and of a stream."""

    __slots__ = ("_at_frame", "_chain", "_is_plain", 
        "_chunks", "_framer", "_held", "_interim", "_length", "_link", "_open_length", "_open_start", "_sent_any", "expect",
        "head", "max_event_bytes", "max_stream_bytes", "owner", "phase", "sink", "watch",
    )  # fmt: skip

    def __init__(
        self, sink: Sink, watch: Watch, owner: Owner, expect: Expect, limits: tuple[int, int], link: Link
    ) -> None:
        self.sink = sink
        self.watch = watch
        self.owner = owner
        self.expect = expect
        self.max_event_bytes, self.max_stream_bytes = limits
        self.phase = Phase.HEAD
        self.head: ResponseHead | None = None
        self._chain = sink.chain
        self._is_plain = watch.is_plain
        self._at_frame = False
        self._link: Link | None = link
        self._held = bytearray()
        self._interim = 0
        self._framer: EventFramer | None = None
        self._chunks: ChunkedDecoder | None = None
        self._length: int | None = None
        self._open_start = 0
        self._open_length = 0
        self._sent_any = False

    def __repr__(self) -> str:
        return f"<Exchange {self.phase.name.lower()}>"

    # Bytes and the end of bytes.

    def receive(self, view: memoryview, count: int) -> None:
        """``count`` bytes were stored at the start of ``view``, the tail of the sink's chain."""
        chain = self._chain
        at = chain.end
        chain.filled(count)
        frame = view[:count]
        # One copy of the read, so that searches run at memchr's speed; the bytes that go out are the arena's.
        data = frame.tobytes()
        if self._at_frame and is_whole_frame(data) and self._is_plain(data) and at < self.max_stream_bytes:
            self.sink.pass_frame(at, count, frame)
        else:
            self._receive(data, at)

    def ended(self, error: Exception | None) -> None:
        """The connection is closed (``error`` None: by FIN). Some bodies end just so; for all others it is a break."""
        if self.phase is Phase.OVER:
            return
        if self.phase is Phase.HEAD:
            self._fail_in_head(error)
        elif self.phase is Phase.EVENTS:
            self._end_events(ended_cleanly=error is None and self._is_close_delimited())
        elif self.phase is Phase.REFUSAL:
            self._finish_refusal(reusable=False)
        elif error is None and self._is_close_delimited():
            self._complete_body(reusable=False)
        else:
            self._over(False)
            self.owner.completed(
                CloseReason.UPSTREAM_RESET, "The engine's connection broke in the middle of its answer."
            )

    def abandon(self) -> None:
        """Nobody wants the answer any more: let the connection go, unusable. Nothing is reported."""
        self._over(False)

    # Inside: by phase.

    def _receive(self, data: bytes, at: int) -> None:
        while data and self.phase is Phase.HEAD:
            data, at = self._receive_head(data, at)
        if not data:
            return
        if self.phase is Phase.EVENTS:
            self._receive_events(data, at)
        elif self.phase is Phase.BODY:
            self._receive_body(data, at)
        elif self.phase is Phase.REFUSAL:
            self._receive_refusal(data)

    def _receive_head(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Take head bytes; return what lies behind the head, and where."""
        self.sink.note_first_byte()
        before = len(self._held)
        self._held += data
        end = self._held.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0:
            if len(self._held) > MAX_RESPONSE_HEAD_BYTES:
                self._fail_protocol("The engine's response head is too large.")
            elif not self._held.startswith(b"HTTP/1."[: len(self._held)]):
                self._fail_protocol("The engine does not speak HTTP/1.1.")
            return b"", at
        head_bytes = bytes(self._held[: end + 4])
        self._held.clear()
        used = end + 4 - before
        try:
            head = parse_response_head(head_bytes)
        except Http1Error as exc:
            self._fail_protocol(exc.why)
            return b"", at
        if head.status < 200:
            self._interim += 1
            if self._interim > MAX_INTERIM_RESPONSES or head.status == 101:
                self._fail_protocol("The engine sent interim responses without end.")
                return b"", at
        else:
            self._begin(head, at + used)
        return data[used:], at + used

    def _begin(self, head: ResponseHead, at: int) -> None:
        """The head is whole: choose how the body is read."""
        self.head = head
        self._length = head.content_length
        if head.status in (204, 304):
            self._length = 0
        media_type = (head.get(b"content-type") or b"").split(b";")[0].strip().lower()
        encoding = (head.get(b"content-encoding") or b"identity").lower()
        if encoding not in (b"identity", b""):
            self._fail_protocol(
                f"The engine compressed its answer ({encoding.decode('latin-1')}) though identity was asked for."
            )
        elif head.status >= 300:
            self.phase = Phase.REFUSAL
            self._chunks = ChunkedDecoder() if head.chunked else None
            if self._length == 0:
                self._finish_refusal(reusable=head.keep_alive)
        elif media_type == b"text/event-stream" and self.expect is not Expect.JSON:
            self.phase = Phase.EVENTS
            self._framer = EventFramer(
                head.chunked, self._length, strip=self.watch.strips_fields, max_event_bytes=self.max_event_bytes
            )
            self._at_frame = self._framer.at_boundary
            if self._framer.done:
                self._end_events(ended_cleanly=True)
        elif self.expect is Expect.EVENTS or (self.expect is Expect.JSON and not media_type.endswith(b"json")):
            self.phase = Phase.REFUSAL  # its body may say why
            self._chunks = ChunkedDecoder() if head.chunked else None
            if self._length == 0:
                self._finish_refusal(reusable=head.keep_alive)
        else:
            self._begin_body(head, at)

    # Events.

    def _receive_events(self, data: bytes, at: int) -> None:
        framer = self._framer
        assert framer is not None
        before = framer.at_boundary
        try:
            found = framer.feed(data, at)
        except ChunkedError as exc:
            self._break(CloseReason.UPSTREAM_PROTOCOL, f"The engine's chunked coding broke: {exc}.")
            return
        except EventTooLarge as exc:
            self._break(CloseReason.EVENT_TOO_LARGE, f"The engine sent an event that is too large: {exc}.")
            return
        self._at_frame = framer.at_boundary
        if not self._take(found):
            return
        if found or (framer.at_boundary and not before):
            self._publish(at + len(data) if framer.at_boundary else -1)
        if framer.done:
            self._end_events(ended_cleanly=True)
        elif at + len(data) > self.max_stream_bytes:
            self._overflow()

    def _take(self, found: list[Found]) -> bool:
        """Append events; False if one of them ended the exchange."""
        for event in found:
            verdict = Verdict.PASS
            if not event.silent and not (event.framed and self.watch.is_plain(event.block)):
                verdict = self.watch.read(event.block)
            if verdict is Verdict.HIDE:
                continue
            if verdict is Verdict.ERROR:
                self._fail_in_band()
                return False
            if verdict is Verdict.END:
                self._end_at_marker(event)
                return False
            self._append(event)
        return True

    def _append(self, event: Found) -> None:
        self._sent_any = True
        if event.rewritten is not None:
            self.sink.append_record(event.rewritten, event.silent)
        elif event.framed:
            self.sink.append_framed(event.start, event.length)
        else:
            self.sink.append_plain(event.start, event.length, event.silent)

    def _publish(self, checkpoint: int) -> None:
        if self.watch.saw_token():
            self.sink.note_first_token()
        if self._sent_any:
            self.sink.publish(checkpoint)

    def _end_at_marker(self, marker: Found) -> None:
        """The end marker has come. It is passed on only if the answer is whole: an end that lies is worse than an error."""
        reason, _ = self.watch.outcome(True)
        if reason.is_success:
            self._append(marker)
            self._publish(-1)
        self._finish_events(reason)

    def _end_events(self, ended_cleanly: bool) -> None:
        """The body is over without an end marker."""
        framer = self._framer
        assert framer is not None
        if not self._take(framer.close() if ended_cleanly else []):
            return
        reason, owes_marker = self.watch.outcome(ended_cleanly)
        if reason.is_success and owes_marker:
            self.sink.append_record(DONE_BLOCK)
            self._sent_any = True
        self._publish(-1)
        self._finish_events(reason)

    def _finish_events(self, reason: CloseReason) -> None:
        """The answer is over. The connection can be reused if its body is read to the end, which may come with a later read."""
        framer, head = self._framer, self.head
        assert framer is not None and head is not None
        reusable = framer.done and head.keep_alive
        message = reason.help
        if not self._sent_any:
            self._over(reusable)
            self.owner.failed(
                Failure(CloseReason.UPSTREAM_INCOMPLETE, "The engine ended its stream without sending anything.")
            )
            return
        if not framer.done and reason.is_success and head.chunked:
            self.phase = Phase.OVER  # the last chunk usually comes a moment later
            self._at_frame = False
            assert self._link is not None
            self._link.drain()
        else:
            self._over(reusable)
        self.owner.completed(reason, message)

    def drain(self, view: memoryview, count: int) -> None:
        """Bytes behind the end marker, read into a scratch buffer: only the last chunk is expected. Events are ignored."""
        framer, head = self._framer, self.head
        assert framer is not None and head is not None
        try:
            framer.feed(bytes(view[:count]), 0)
        except (ChunkedError, EventTooLarge):
            self._over(False)
            return
        if framer.done:
            self._over(head.keep_alive)
        elif framer.partial_bytes:
            self._over(False)

    def _fail_in_band(self) -> None:
        """The engine's error object inside a 200."""
        message = self.watch.error_message
        self._publish(-1)
        self._over(False)
        if self._sent_any:
            self.owner.completed(CloseReason.UPSTREAM_ERROR_EVENT, message)
        else:
            self.owner.failed(Failure(CloseReason.UPSTREAM_ERROR_EVENT, message, self.watch.error_status))

    # Opaque bodies.

    def _begin_body(self, head: ResponseHead, at: int) -> None:
        self.phase = Phase.BODY
        self._chunks = ChunkedDecoder() if head.chunked else None
        self._open_start = at
        self.owner.answered(Answer(head.status, head.headers, self._length))
        if self._length == 0:
            self._complete_body(head.keep_alive)

    def _receive_body(self, data: bytes, at: int) -> None:
        """Entries of a body follow the upstream's own HTTP chunks, or have no framing to follow."""
        if at + len(data) > self.max_stream_bytes:
            self._break(CloseReason.STREAM_TOO_LARGE, CloseReason.STREAM_TOO_LARGE.help)
            return
        if self._chunks is None:
            self._receive_sized_body(data, at)
            return
        try:
            spans = self._chunks.feed(data)
        except ChunkedError as exc:
            self._break(CloseReason.UPSTREAM_PROTOCOL, f"The engine's chunked coding broke: {exc}.")
            return
        for start, end in spans:
            self._extend_piece(at + start, end - start)
            if not self._chunks.is_in_data or end < len(data):
                self._close_piece()
        self.sink.publish(-1)
        if self._chunks.done:
            self._complete_body(self.head is not None and self.head.keep_alive and self._chunks.consumed == len(data))

    def _receive_sized_body(self, data: bytes, at: int) -> None:
        length = len(data) if self._length is None else min(len(data), self._length)
        self.sink.append_plain(at, length)
        self.sink.publish(-1)
        if self._length is not None:
            self._length -= length
            if not self._length:
                self._complete_body(self.head is not None and self.head.keep_alive and length == len(data))

    def _extend_piece(self, at: int, length: int) -> None:
        if not self._open_length:
            self._open_start = at
        self._open_length += length
        if self._open_length >= MAX_ENTRY_BYTES >> 1:
            self._close_piece()

    def _close_piece(self) -> None:
        if self._open_length:
            self.sink.append_plain(self._open_start, self._open_length)
            self._open_length = 0

    def _complete_body(self, reusable: bool) -> None:
        self._close_piece()
        self.sink.publish(-1)
        self._over(reusable)
        self.owner.completed(CloseReason.COMPLETED, "")

    # Refusals.

    def _receive_refusal(self, data: bytes) -> None:
        """An error body: kept within a bound, whatever its framing."""
        if self._chunks is not None:
            try:
                spans = self._chunks.feed(data)
            except ChunkedError:
                self._finish_refusal(reusable=False)
                return
            data = b"".join(data[start:end] for start, end in spans)
        self._held += data[: MAX_REFUSAL_BYTES - len(self._held)]
        if self._length is not None:
            self._length -= len(data)
        is_whole = self._chunks.done if self._chunks is not None else self._length is not None and self._length <= 0
        if is_whole:
            self._finish_refusal(reusable=self.head is not None and self.head.keep_alive and self._length in (0, None))
        elif len(self._held) >= MAX_REFUSAL_BYTES:
            self._finish_refusal(reusable=False)

    def _finish_refusal(self, reusable: bool) -> None:
        head = self.head
        assert head is not None
        body = bytes(self._held)
        content_type = head.get(b"content-type") or b""
        self._over(reusable)
        if head.status >= 400:
            reason = CloseReason.UPSTREAM_REFUSED if head.status < 500 else CloseReason.UPSTREAM_FAILED
            keep = [(k, v) for k, v in head.headers if k in (b"retry-after", b"www-authenticate")]
            self.owner.failed(Failure(reason, "", head.status, body, content_type, keep))
            return
        shown = content_type.decode("latin-1") or "no content type"
        message = f"The engine answered {head.status} with {shown} where that cannot be its answer."
        self.owner.failed(Failure(CloseReason.UPSTREAM_PROTOCOL, message, body=body, content_type=content_type))

    # Ends.

    def _is_close_delimited(self) -> bool:
        head = self.head
        return head is not None and not head.chunked and head.content_length is None

    def _fail_in_head(self, error: Exception | None) -> None:
        nothing = not self._held and not self._interim
        self._over(False)
        how = "closed" if error is None else "broke"
        message = f"The engine {how} the connection before it answered."
        self.owner.failed(Failure(CloseReason.UPSTREAM_RESET, message, is_retryable_unsent=nothing))

    def _fail_protocol(self, message: str) -> None:
        self._over(False)
        self.owner.failed(Failure(CloseReason.UPSTREAM_PROTOCOL, message))

    def _break(self, reason: CloseReason, message: str) -> None:
        """End in mid-answer through our own decision or the engine's bad bytes."""
        self._over(False)
        if self._sent_any or self.phase is Phase.BODY or self._framer is None:
            self.owner.completed(reason, message)
        else:
            self.owner.failed(Failure(reason, message))

    def _overflow(self) -> None:
        self._break(CloseReason.STREAM_TOO_LARGE, CloseReason.STREAM_TOO_LARGE.help)

    def _over(self, reusable: bool) -> None:
        self.phase = Phase.OVER
        self._at_frame = False
        self._held.clear()
        link, self._link = self._link, None
        if link is not None:
            link.release(reusable)
