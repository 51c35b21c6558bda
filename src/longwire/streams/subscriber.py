"""A subscriber: one reader's cursor in one stream, and the pump that moves it.

What lives here: when a reader writes, how much at once, when it is paused, and until when it holds the log.
What must not: sockets and response heads (server), how entries are framed (doors.py).

Live and replay are the same loop: a reader that is behind takes a bounded step and comes back, one that is at the tail
takes what was just published. There is no hand-over between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ..words.reasons import CloseReason
from .doors import Buffers, Door, encode, end_bytes, numbered
from .stream import State, Stream

log = logging.getLogger("longwire.streams")

MAX_WAKE_BYTES = 64 * 1024
"""Most bytes that one reader is given in one turn of the loop, so that a replay cannot hold up thousands of live readers."""
MAX_WAKE_EVENTS = 256
"""Most events in one turn, for the same reason where events are small and must be encoded one by one."""


class Outlet(Protocol):
    """Where a subscriber's bytes go: a client connection of the server."""

    def begin(self, stream: Stream) -> bool:
        """The stream is committed or ended: send the response head. False: there is no body to follow."""

    def splice(self) -> Callable[[bytes], None] | None:
        """The transport's own write, if frames may go to it directly; :meth:`spliced` follows."""

    def spliced(self, size: int, position: int) -> None:
        """``size`` bytes were written directly; the reader stands at ``position`` now."""

    def send(self, buffers: Buffers, count: int) -> None:
        """Write ``count`` bytes in order, in as few system calls as possible. Views must not be copied."""

    def flush(self) -> None:
        """Send what :meth:`begin` has kept back, if nothing was sent since."""

    def finish(self, reason: CloseReason) -> None:
        """The body is complete and everything was sent."""

    def cut(self, reason: CloseReason) -> None:
        """End the connection without completing the body: the only honest end where no more can be said in-band."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call in the loop's next turn."""

    def checkpoint(self, position: int) -> None:
        """The reader stands at ``position`` and all before it was sent: note it, if the transport is empty, for an adopter."""


class Subscriber:
    """Reads ``stream`` from ``position`` on into ``outlet``.

    Holds the stream's log from attach until its bytes have wholly reached the kernel.
    """

    __slots__ = (
        "_again", "_begun", "_ended", "_has_sent_tail", "_holding", "_is_live", "_numbering", "door", "is_paused", "outlet",
        "position", "stream",
    )  # fmt: skip

    def __init__(self, stream: Stream, outlet: Outlet, door: Door, position: int = 0) -> None:
        self.stream = stream
        self.outlet = outlet
        self.door = door
        self.position = position
        self.is_paused = False
        self._begun = False
        self._is_live = False
        self._again = False
        self._ended = False
        self._has_sent_tail = False
        self._holding = True
        self._numbering: _Numbering | None = None
        stream.log.hold()

    def __repr__(self) -> str:
        state = "ended" if self._ended else "paused" if self.is_paused else "reading"
        return f"<Subscriber {state} at {self.position} of {self.stream!r}>"

    def pump(self) -> None:
        """Write what there is to write, within the bounds of one turn."""
        if self.is_paused or self._ended:
            return
        stream = self.stream
        if not self._begun:
            if stream.state is State.OPENING:
                return
            self._begun = True
            if not self.outlet.begin(stream):
                self.detach()
                return
            self._is_live = self._takes_frames and not self.is_paused
        log = stream.log
        position = self.position
        if log.deliverable > position:
            outlet = self.outlet
            outlet.checkpoint(position)
            buffers, self.position, count = encode(self.door, log, position, MAX_WAKE_BYTES, MAX_WAKE_EVENTS)
            if (
                log.is_sealed
                and self.position == log.deliverable
                and not stream.is_cut
                and (tail := end_bytes(self.door))
            ):
                buffers.append(tail)
                count += len(tail)
                self._has_sent_tail = True
            outlet.send(buffers, count)
            if log.deliverable > self.position:
                self._pump_again()
                return
            self._is_live = self._takes_frames and not self.is_paused
        if log.is_sealed and not self.is_paused:
            self._end()
        else:
            self.outlet.flush()

    def wake(self) -> None:
        """:meth:`pump` as the stream calls it: a fault of ours in one reader's response ends that response and nothing else."""
        try:
            self.pump()
        except Exception as exc:  # noqa: BLE001 - told there
            self.fail(exc)

    def fail(self, fault: Exception) -> None:
        """End this response, and say why."""
        log.error("reader_fault", exc_info=fault)
        self.detach()
        self.outlet.cut(CloseReason.INTERNAL_ERROR)

    def take_over(self) -> None:
        """The head was sent by a process that has died. The short way is open again once this reader has caught up."""
        self._begun = True

    def splice(self) -> Callable[[bytes], None] | None:
        """How to write a frame to this reader, if it stands at the tail and its door needs nothing more than the frame."""
        log = self.stream.log
        if not self._is_live or self.position != log.deliverable:
            return None
        write = self.outlet.splice()
        if write is None or self.door is Door.FRAMED:
            return write
        self._numbering = _Numbering(write, log.epoch, log.seq_at(self.position))
        return self._numbering.write

    def spliced(self, count: int, size: int) -> None:
        """``count`` events, ``size`` bytes of the engine's, have gone the short way: as :mod:`doors` would encode them."""
        self.position += count
        if self._numbering is not None:
            size = self._numbering.take_size()
        self.outlet.spliced(size, self.position)

    @property
    def _takes_frames(self) -> bool:
        """Whether this door can have the short way: each frame follows from one frame of the engine's."""
        return bool(self.door & Door.FRAMED)

    def pause(self) -> None:
        """The transport is full: write nothing more. The log keeps what this reader has not got."""
        self.is_paused = True
        self._is_live = False
        self.stream.unsplice()

    def resume(self) -> None:
        """The transport has drained."""
        self.is_paused = False
        self._is_live = self._begun and not self._ended and self._takes_frames
        self.pump()

    def detach(self) -> None:
        """This reader gets nothing more. Its hold on the log ends with :meth:`flushed`."""
        if not self._ended:
            self._ended = True
            self._is_live = False
            self.stream.detach(self)
            self._numbering = None  # it leads to the transport, and so back to us

    def flushed(self) -> None:
        """This reader has ended, and its bytes have reached the kernel or never will: let go of the blocks, and the outlet."""
        if self._holding:
            assert self._ended, "a reader holds the log as long as it reads"
            self._holding = False
            self.stream.log.drop()
            del self.outlet  # it knows its subscriber: a cycle that only the collector would find

    def _pump_again(self) -> None:
        """More is left than one turn may take: go on in the next, unless the transport is full by now."""
        if not self.is_paused and not self._again:
            self._again = True
            self.outlet.call_soon(self._continue)

    def _continue(self) -> None:
        self._again = False
        self.pump()

    def _end(self) -> None:
        reason = self.stream.reason
        assert reason is not None, "a sealed stream has a reason"
        is_cut = self.stream.is_cut
        tail = end_bytes(self.door)
        if tail and not is_cut and not self._has_sent_tail:
            self.outlet.send([tail], len(tail))
        else:
            self.outlet.flush()
        self.detach()
        if is_cut:
            self.outlet.cut(reason)
        else:
            self.outlet.finish(reason)


class _Numbering:
    """The short way of a reader with ids. Whatever else happens to the stream or its reader closes it first, so the frames
    follow one another, in one epoch; ``seq`` is that of the next."""

    __slots__ = ("_epoch", "_seq", "_size", "_write")

    def __init__(self, write: Callable[[bytes], None], epoch: int, seq: int) -> None:
        self._write = write
        self._epoch = epoch
        self._seq = seq
        self._size = 0

    def __repr__(self) -> str:
        return f"<_Numbering next {self._epoch}-{self._seq}, {self._size} bytes not told>"

    def write(self, frame: bytes) -> None:
        data = numbered(frame, self._epoch, self._seq)
        # Counted first: a transport that this one fills says so from within its write, and then this way is closed and settled.
        self._seq += 1
        self._size += len(data)
        self._write(data)

    def take_size(self) -> int:
        """Bytes written since this was asked last."""
        size, self._size = self._size, 0
        return size
