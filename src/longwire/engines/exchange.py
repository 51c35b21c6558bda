"""One request to an engine and its answer: from raw bytes in the sink to entries in its index.

What lives here: the response's head, its body's framing, and what each way of ending means.
What must not: sockets (transport.py), which upstream (pool.py), dialects.

The hot path does not come by here: once an ordinary delta has been read, whole frames like it are passed on by the
connection itself (:meth:`Exchange._splice`), and only what is anything else is read here.

Over 400 lines: the ways in which an answer ends are one table of cases, and a case that is looked for elsewhere is missed.
"""

from __future__ import annotations

from ..wire.chunked import ChunkedError
from ..wire.framer import LONGEST_WHOLE, EventFramer, EventTooLarge, Found
from ..wire.http1 import Http1Error, ResponseHead
from ..words.reasons import CloseReason
from .base import Answer, Failure, Link, Owner, Sink, Verdict, Watch
from .body import Body, Pieces
from .head import SPENT, HeadReader
from .opening import Opening
from .phases import Expect, Phase
from .refusal import BROKE_IN_THE_MIDDLE, failure_of

__all__ = ["DONE_BLOCK", "HELD_BODY_BYTES", "LONGEST_WHOLE", "MAX_REFUSAL_BYTES", "Exchange", "Expect", "Phase"]

MAX_REFUSAL_BYTES = 64 * 1024
"""How much of an error body is kept for the client."""
HELD_BODY_BYTES = 64 * 1024
"""So much of a JSON answer is held back until it is whole, for no client can use a part of it: an error object shows by its
first key, and where it breaks off another engine can still be asked."""
DONE_BLOCK = b"data: [DONE]\n\n"


class Exchange:
    """Reads one answer from ``link`` into ``sink``; ``limits`` are the most bytes of an event and of a stream."""

    __slots__ = (
        "_at_frame", "_begun", "_body", "_chain", "_framer", "_head_reader", "_held", "_link", "_opening", "_pieces",
        "_sent_any", "expect", "head", "max_event_bytes", "max_stream_bytes", "owner", "phase", "sink", "watch",
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
        self._at_frame = False
        self._begun = b""
        self._link: Link | None = link
        self._held = bytearray()
        self._head_reader = HeadReader()
        self._framer: EventFramer | None = None
        self._opening = Opening()
        self._body = Body(False, None)
        self._pieces = Pieces()
        self._sent_any = False

    def __repr__(self) -> str:
        return f"<Exchange {self.phase.name.lower()}>"

    # Taking over.

    def prime(self) -> None:
        """Begin between two HTTP chunks and two events of a chunked event stream, as if all before had been read."""
        self.head = ResponseHead(200, 1, [], None, chunked=True, keep_alive=False)
        self.phase = Phase.EVENTS
        self._framer = EventFramer(True, None, strip=self.watch.strips_fields, max_event_bytes=self.max_event_bytes)
        self._framer.is_first = False
        self._at_frame = True
        self._sent_any = True
        self._opening.finish()
        self.watch.prime()

    def switch_sink(self, sink: Sink) -> None:
        """Go on into another sink, whose chain holds what was read so far."""
        self.sink = sink
        self._chain = sink.chain

    # Bytes and the end of bytes.

    def receive(self, view: memoryview, count: int) -> None:
        """``count`` bytes were stored at the start of ``view``, the rest of the sink's chain."""
        chain = self._chain
        at = chain.end
        chain.filled(count)
        data = view[:count].tobytes()  # one copy, so that searches run at memchr's speed
        if self._begun:
            data, at, self._begun = self._begun + data, at - len(self._begun), b""
        self._receive(data, at)

    def hold(self, begun: bytes) -> None:
        """What is stored last begins a frame. It is read with what comes next, so that closing the short way ends nothing."""
        self._begun = begun

    def ended(self, error: Exception | None) -> None:
        """The connection is closed (``error`` None: by FIN). Some bodies end just so; for all others it is a break."""
        self._receive_begun()
        if self.phase is Phase.OVER:
            return
        if self.phase is Phase.HEAD:
            self._fail_in_head(error)
        elif self.phase is Phase.EVENTS:
            self._end_events(ended_cleanly=error is None and self._is_close_delimited())
        elif self.phase is Phase.REFUSAL:
            self._finish_refusal(reusable=False, is_cut=error is not None or not self._is_close_delimited())
        elif error is None and self._is_close_delimited():
            self._complete_body(reusable=False)
        else:
            self._break(CloseReason.UPSTREAM_RESET, BROKE_IN_THE_MIDDLE)

    def finish_refusal(self) -> None:
        """The rest of an error's body is not waited for any more."""
        if self.phase is Phase.REFUSAL:
            self._finish_refusal(reusable=False)

    def end_here(self) -> None:
        """Behind the last of its answer the engine says nothing more: take that for the end."""
        self._receive_begun()
        if self.phase is Phase.EVENTS:
            self._end_events(ended_cleanly=True)

    def fail(self, reason: CloseReason, message: str) -> None:
        """End here by a decision that is not the engine's."""
        self._break(reason, message)

    def abandon(self) -> None:
        """Nobody wants the answer any more: let the connection go, unusable. Nothing is reported."""
        self._over(False)

    # Inside: by phase.

    def _receive_begun(self) -> None:
        if begun := self._begun:
            self._begun = b""
            self._receive(begun, self._chain.end - len(begun))

    def _receive(self, data: bytes, at: int) -> None:
        if self.phase is Phase.HEAD:
            used = self._receive_head(data)
            if used == len(data):
                return
            data, at = data[used:], at + used
        if self.phase is Phase.EVENTS:
            self._receive_events(data, at)
        elif self.phase is Phase.BODY:
            self._receive_body(data, at)
        elif self.phase is Phase.REFUSAL:
            self._receive_refusal(data)

    def _receive_head(self, data: bytes) -> int:
        """Take head bytes; return how many there were."""
        self.sink.note_first_byte()
        try:
            head, used = self._head_reader.feed(data)
        except Http1Error as exc:
            self._fail_protocol(exc.why)
            return len(data)
        if head is not None:
            self._begin(head)
        return used

    def _begin(self, head: ResponseHead) -> None:
        """The head is whole: choose how the body is read."""
        self.head = head
        length = 0 if head.status in (204, 304) else head.content_length
        media_type = (head.get(b"content-type") or b"").split(b";")[0].strip().lower()
        encoding = (head.get(b"content-encoding") or b"identity").lower()
        if encoding not in (b"identity", b""):
            self._fail_protocol(
                f"The engine compressed its answer ({encoding.decode('latin-1')}) though identity was asked for."
            )
        elif self.expect.is_met_by(head.status, media_type):
            self.owner.began()
            if media_type == b"text/event-stream" and head.status != 204:
                self._begin_events(head)
            else:
                self._begin_body(head, length)
        else:
            self.phase = Phase.REFUSAL  # whatever it is, its body may say why
            self.owner.refusing()
            self._body = Body(head.chunked, length)
            if self._body.done:
                self._finish_refusal(reusable=head.keep_alive)

    # Events.

    def _begin_events(self, head: ResponseHead) -> None:
        self.phase = Phase.EVENTS
        self.head = head._replace(headers=[])
        self._head_reader = SPENT
        self._framer = EventFramer(
            head.chunked, head.content_length, strip=self.watch.strips_fields, max_event_bytes=self.max_event_bytes
        )
        self._at_frame = self._framer.at_boundary
        if self._framer.done:
            self._end_events(ended_cleanly=True)

    def _receive_events(self, data: bytes, at: int) -> None:
        framer = self._framer
        assert framer is not None
        before = framer.at_boundary
        fault: tuple[CloseReason, str] | None = None
        try:
            framer.feed(data, at)
        except ChunkedError as exc:
            fault = CloseReason.UPSTREAM_PROTOCOL, f"The engine's chunked coding broke: {exc}."
        except EventTooLarge as exc:
            fault = CloseReason.EVENT_TOO_LARGE, f"The engine sent an event that is too large: {exc}."
        found = framer.take_found()
        taken = self._take(found)
        # A checkpoint says nothing of finishes: from the first on there are none, and no frame goes the short way.
        self._at_frame = taken and fault is None and framer.at_boundary and self.watch.is_fresh()
        if fault is not None:
            # What came before is passed on, however the reads were cut (law 2). Behind the end marker the answer is whole.
            self._break_events(*fault) if taken else self._over(False)
        elif taken:
            self._go_on(at + len(data), bool(found) or (framer.at_boundary and not before))

    def _go_on(self, end: int, has_news: bool) -> None:
        """Everything up to offset ``end`` was taken, and the answer goes on if its body does."""
        framer = self._framer
        assert framer is not None
        if has_news:
            self._publish(end if framer.at_boundary else -1)
            if self._at_frame:
                self._splice()
        if framer.done:
            self._end_events(ended_cleanly=True)
        elif end > self.max_stream_bytes:
            self._break(CloseReason.STREAM_TOO_LARGE, CloseReason.STREAM_TOO_LARGE.help)

    def _splice(self) -> None:
        """Between two frames of ordinary deltas: let the connection pass on the next ones by itself, if the stream can."""
        mark, link = self.watch.plain_mark, self._link
        if mark is None or link is None or self.max_event_bytes < LONGEST_WHOLE:
            return
        write = self.sink.splice()
        if write is not None:
            link.splice(write, mark)

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
            if verdict is Verdict.BROKEN:
                self._break_events(CloseReason.UPSTREAM_PROTOCOL, "The engine sent an event that is broken JSON.")
                return False
            if verdict is Verdict.END:
                self._end_at_marker(event)
                return False
            self._append(event)
        return True

    def _append(self, event: Found) -> None:
        if self._opening.is_over:
            self._pass(event)
            return
        self._opening.hold(event)
        if self.watch.has_opened() or self._opening.is_too_large:
            self._open()

    def _open(self) -> None:
        """Nothing is held back any more."""
        for event in self._opening.finish():
            self._pass(event)

    def _pass(self, event: Found) -> None:
        self._sent_any = True
        if event.rewritten is not None or not self.sink.keeps_bytes:
            self.sink.append_record(event.block, event.silent)
        elif event.framed:
            self.sink.append_framed(event.start, event.length)
        else:
            self.sink.append_plain(event.start, event.length, event.silent)

    def _publish(self, checkpoint: int, *, is_last: bool = False) -> None:
        if self.watch.saw_token():
            self.sink.note_first_token()
        if self._sent_any:
            self.sink.publish(checkpoint if self.watch.is_fresh() else -1, is_last=is_last)

    def _end_at_marker(self, marker: Found) -> None:
        """The end marker has come. It is passed on only if the answer is whole: an end that lies is worse than an error."""
        reason, _ = self.watch.outcome(True)
        if reason.is_success:
            self._open()
            self._pass(marker)
        self._publish(-1, is_last=reason.is_success)
        self._finish_events(reason)

    def _end_events(self, ended_cleanly: bool) -> None:
        """The body is over without an end marker."""
        framer = self._framer
        assert framer is not None
        # An event that nothing terminates may have been cut: it is passed on only if it can be seen to be whole.
        last = [event for event in framer.close() if event.silent or self.watch.is_whole(event.block)]
        if ended_cleanly and not self._take(last):
            return
        reason, owes_marker = self.watch.outcome(ended_cleanly)
        if reason.is_success:
            self._open()
        if reason.is_success and owes_marker:
            self.sink.append_record(DONE_BLOCK)
            self.watch.tokenless += 1
            self._sent_any = True
        self._publish(-1, is_last=reason.is_success)
        self._finish_events(reason)

    def _finish_events(self, reason: CloseReason) -> None:
        """The answer is over. The connection can be reused if its body is read to the end, which may come with a later read."""
        framer, head = self._framer, self.head
        assert framer is not None and head is not None
        reusable = framer.done and head.keep_alive and not framer.has_surplus
        if not self._sent_any:
            self._over(reusable)
            message = "The engine ended its stream without sending anything."
            if reason is CloseReason.UPSTREAM_RESET:
                message = "The engine's connection broke before it had sent anything."
            else:
                reason = CloseReason.UPSTREAM_INCOMPLETE
            self.owner.failed(Failure(reason, message))
            return
        if not framer.done and reason.is_success and head.chunked:
            self.phase = Phase.OVER  # the last chunk usually comes a moment later
            self._at_frame = False
            assert self._link is not None
            self._link.drain()
        else:
            self._over(reusable)
        self.owner.completed(reason, reason.help)

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
            self._over(head.keep_alive and not framer.has_surplus)
        elif framer.partial_bytes:
            self._over(False)

    def _fail_in_band(self) -> None:
        """An error object inside a 200."""
        reason, message = CloseReason.UPSTREAM_ERROR_EVENT, self.watch.error_message
        if self._sent_any or self.watch.is_finished():
            self._break_events(reason, message)
            return
        self._over(False)
        self.owner.failed(Failure(reason, message, self.watch.error_status))

    def _break_events(self, reason: CloseReason, message: str) -> None:
        """No more of these events is read. An answer that was finished before is whole, whatever the engine says then."""
        if self.watch.is_finished():
            self._open()
            self.sink.append_record(DONE_BLOCK)
            self.watch.tokenless += 1
            reason, message = CloseReason.COMPLETED, ""
        self._publish(-1)
        self._break(reason, message)

    # Opaque bodies.

    def _begin_body(self, head: ResponseHead, length: int | None) -> None:
        self.phase = Phase.BODY
        self._body = Body(head.chunked, length)
        if self.expect is Expect.ANY:
            self._pass_body(length)
        if self._body.done:
            self._complete_body(head.keep_alive)

    def _pass_body(self, length: int | None) -> None:
        head = self.head
        assert head is not None
        self._sent_any = True
        self.owner.answered(Answer(head.status, head.headers, length))

    def _receive_body(self, data: bytes, at: int) -> None:
        if at + len(data) > self.max_stream_bytes:
            self._break(CloseReason.STREAM_TOO_LARGE, CloseReason.STREAM_TOO_LARGE.help)
            return
        body = self._body
        spans, fault = body.feed(data)
        for start, end in spans:
            self._pieces.add(at + start, end - start, ends=not body.is_within_chunk or end < len(data))
            if not self._sent_any:
                self._held += data[start:end]
        if not self._sent_any and len(self._held) >= HELD_BODY_BYTES:
            self._look_at_body()
        if self.phase is Phase.BODY and self._sent_any:
            self._pieces.pass_on(self.sink)
            self.sink.publish(-1)
        if fault is not None:
            self._break(CloseReason.UPSTREAM_PROTOCOL, f"The engine's chunked coding broke: {fault}.")
        elif body.done:
            self._finish_body()

    def _look_at_body(self) -> None:
        """Decide by an answer's first bytes whether it is one: engines send their errors with a 200, too."""
        if self.watch.begins_error(bytes(self._held)):
            self.phase = Phase.REFUSAL
        else:
            self._held.clear()
            self._pass_body(self.head.content_length if self.head is not None else None)

    def _finish_body(self) -> None:
        assert self.head is not None
        reusable = self.head.keep_alive and not self._body.has_surplus
        if self.phase is Phase.BODY:
            self._complete_body(reusable)
        else:
            self._finish_refusal(reusable)

    def _complete_body(self, reusable: bool) -> None:
        if not self._sent_any:
            held = bytes(self._held)
            if not self.watch.begins_error(held) and not self.watch.is_whole_body(held):
                self._over(reusable)
                self.owner.failed(
                    Failure(CloseReason.UPSTREAM_INCOMPLETE, "The engine's answer is no whole JSON object.")
                )
                return
            self._look_at_body()
        if self.phase is Phase.REFUSAL:
            self._finish_refusal(reusable)
            return
        self._pieces.close()
        self._pieces.pass_on(self.sink)
        self.sink.publish(-1)
        self._over(reusable)
        self.owner.completed(CloseReason.COMPLETED, "")

    # Refusals.

    def _receive_refusal(self, data: bytes) -> None:
        """An error body: kept within a bound, whatever its framing."""
        spans, fault = self._body.feed(data)
        for start, end in spans:
            self._held += data[start:end]
        del self._held[MAX_REFUSAL_BYTES:]
        if self._body.done:
            self._finish_body()
        elif fault is not None or len(self._held) == MAX_REFUSAL_BYTES:
            self._finish_refusal(reusable=False)

    def _finish_refusal(self, reusable: bool, is_cut: bool = False) -> None:
        head = self.head
        assert head is not None
        body = bytes(self._held)
        self._over(reusable)
        self.owner.failed(failure_of(head, body, self.watch, is_cut))

    # Ends.

    def _is_close_delimited(self) -> bool:
        return (head := self.head) is not None and not head.chunked and head.content_length is None

    def _fail_in_head(self, error: Exception | None) -> None:
        nothing = self._head_reader.is_untouched
        self._over(False)
        message = f"The engine {'closed' if error is None else 'broke'} the connection before it answered."
        self.owner.failed(Failure(CloseReason.UPSTREAM_RESET, message, is_retryable_unsent=nothing))

    def _fail_protocol(self, message: str) -> None:
        self._over(False)
        self.owner.failed(Failure(CloseReason.UPSTREAM_PROTOCOL, message))

    def _break(self, reason: CloseReason, message: str) -> None:
        """End in mid-answer through our own decision or the engine's bad bytes."""
        self._over(False)
        if self._sent_any:
            self.owner.completed(reason, message)
        else:
            self.owner.failed(Failure(reason, message))

    def _over(self, reusable: bool) -> None:
        self.phase = Phase.OVER
        self._at_frame = False
        self._begun = b""
        self._held.clear()
        link, self._link = self._link, None
        if link is not None:
            link.release(reusable)
