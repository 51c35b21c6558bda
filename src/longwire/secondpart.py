"""The second part of a broken answer: what another engine says, joined to what the log has of the first.

What lives here: the sink of a call that goes on with an answer, and reading what was said.
What must not: whether an answer is gone on with (generation.py), how two parts are joined (engines/seam.py).

The events of a second part stand in the log as records of the gateway's own: they are rewritten one by one anyway, and so the
path of all other tokens, their checkpoints and their adoption are as if there were no second parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from .engines.said import CannotContinue, Said
from .engines.seam import Seam
from .streams.log import Log, LostEvents
from .streams.stream import Stream

READ_BYTES = 64 * 1024
EVENTS_AT_ONCE = 500
"""Events that are read between two turns of the loop: about a millisecond."""
DONE_BLOCK = b"data: [DONE]\n\n"


async def read_said(log: Log) -> Said:
    """What the events in the log say, read a few at a time: an answer may have a hundred thousand. It may be finished: then a
    process has died before it could end the stream.

    Raises:
        CannotContinue: it cannot be gone on with.
    """
    said = Said()
    position = 0
    while position < log.deliverable:
        stop = min(position + EVENTS_AT_ONCE, log.deliverable)
        try:
            for place in range(position, stop):
                _add(said, log.block(place))
        except LostEvents as exc:
            raise CannotContinue("Its beginning is not known any more.") from exc
        position = stop
        await asyncio.sleep(0)
    return said


def _add(said: Said, block: bytes) -> None:
    try:
        said.add(block)
    except CannotContinue:
        if not said.is_finished:
            raise


class Scratch:
    """What an engine sends, kept until its events have been taken out. No reader is given a view of it."""

    __slots__ = ("_base", "_kept", "is_full", "rest")

    def __init__(self) -> None:
        self.rest = memoryview(bytearray(READ_BYTES))
        self.is_full = False
        self._kept = bytearray()
        self._base = 0

    def __repr__(self) -> str:
        return f"<Scratch {self.end} bytes, {len(self._kept)} kept>"

    @property
    def end(self) -> int:
        return self._base + len(self._kept)

    def filled(self, count: int) -> None:
        self._kept += self.rest[:count]

    def read(self, start: int, length: int) -> bytes:
        """A copy of bytes that were not forgotten yet."""
        at = start - self._base
        return bytes(self._kept[at : at + length])

    def forget(self, end: int) -> None:
        """Nothing before this offset is wanted any more."""
        del self._kept[: max(0, end - self._base)]
        self._base = max(self._base, end)


class SecondPart:
    """A call's sink. What comes in is rewritten and appended to the stream.

    In a turn of its own, and once, ``on_stop`` is called when a stop string that spans the seam has ended the answer, or
    ``on_fault`` when an event can be no part of it."""

    def __init__(
        self, stream: Stream, seam: Seam, on_stop: Callable[[], object], on_fault: Callable[[str], object]
    ) -> None:
        self.stream = stream
        self.seam = seam
        self.chain = Scratch()
        self._request = b""
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._is_over = False
        self.has_said = False
        """Something of it is in the log."""

    def __repr__(self) -> str:
        return f"<SecondPart {'over' if self._is_over else 'open'} {self.chain!r}>"

    # Called by the call.

    def store_request(self, data: bytes) -> None:
        self._request = data

    def request_views(self) -> list[memoryview]:
        return [memoryview(self._request)]

    def restart(self) -> None:
        self.chain = Scratch()

    def progress(self) -> int:
        return self.stream.progress()

    def count_events(self) -> int:
        return self.stream.count_events()

    # Called by the exchange.

    def splice(self) -> None:
        """Every event is rewritten: none can go straight to a reader."""

    def unsplice(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        frame = self.chain.read(start, length)
        self._append(frame[frame.index(b"\r\n") + 2 : -2])
        self.chain.forget(start + length)

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        self._append(self.chain.read(start, length), silent)
        self.chain.forget(start + length)

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self._append(block, silent)

    def publish(self, checkpoint: int) -> None:
        """No place in the engine's bytes is one to begin anew at: they are not kept."""
        self.stream.publish(-1)

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...

    # Called by the generation.

    def flush(self) -> None:
        """The second part is over, and no more will come to decide whether what is held back was a stop string."""
        if not self._is_over:
            self._put(self.seam.flush)
            self.stream.publish(-1)

    # Inside.

    def _append(self, block: bytes, silent: bool = False) -> None:
        if self._is_over:
            return
        if silent:
            self.stream.append_said(block, silent=True)
            return
        self._put(lambda: self.seam.rewrite(block))
        if self.seam.is_ended and not self._is_over:
            self.stream.append_said(DONE_BLOCK)
            self._finish(self._on_stop)

    def _put(self, make: Callable[[], list[bytes]]) -> None:
        try:
            blocks = make()
        except CannotContinue as exc:
            self._finish(partial(self._on_fault, exc.why))
            return
        for block in blocks:
            self.stream.append_said(block, is_seam=not self.has_said)
            self.has_said = True

    def _finish(self, tell: Callable[[], object]) -> None:
        """In a turn of its own: the exchange is in the middle of a read, and its connection is about to be taken from it."""
        self._is_over = True
        asyncio.get_running_loop().call_soon(tell)
