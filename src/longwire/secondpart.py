"""The second part of a broken answer: what another engine says, joined to what the log has of the first.

What lives here: the sink of a call that goes on with an answer, and reading what was asked and said.
What must not: whether an answer is gone on with (generation.py), how two parts are joined (engines/seam.py).

The events of a second part stand in the log as records of the gateway's own: they are rewritten one by one anyway, and so the
path of all other tokens, their checkpoints and their adoption are as if there were no second parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from .engines.exchange import DONE_BLOCK
from .engines.request import take_apart
from .engines.said import CannotContinue, Said
from .engines.seam import Seam
from .streams.log import Log, LostEvents
from .streams.stream import Stream
from .streams.terms import MAX_REREAD_BYTES, TOO_LARGE
from .wire.http1 import Headers
from .words.reasons import CloseReason

READ_BYTES = 64 * 1024
EVENTS_AT_ONCE = 500
"""Events that are read between two turns of the loop: about a millisecond."""
BYTES_AT_ONCE = 128 * 1024
"""The same for events that are large, or each of another form."""
MAX_REREAD_KEYS = 8000
"""It is not the bytes of a request that take time, but its objects: ten times as much where it is all small messages."""
MAX_SAID_CHARS = 1024 * 1024
"""More text than that is not put into a request: to write it takes some ten milliseconds, and no model reads it."""


async def read_said(log: Log, turns: asyncio.Lock, said: Said | None = None) -> Said:
    """What the events in the log say, after what ``said`` has already, read a few at a time: there may be a hundred thousand.
    The answer may be finished: then a process has died before it could end the stream.

    When an engine dies, thousands of answers are read at once: they take ``turns``, with one of the loop's after each.

    Raises:
        CannotContinue: it cannot be gone on with, and is not finished either.
    """
    said = said or Said()
    position = 0
    while position < log.deliverable:
        async with turns:
            position = _read_some(log, position, said)
            await asyncio.sleep(0)
    if len(said.content) + len(said.reasoning) > MAX_SAID_CHARS:
        raise CannotContinue("It has said too much to be told again.")
    return said


def _read_some(log: Log, position: int, said: Said) -> int:
    """Read some events from a position on; returns where to go on."""
    stop, left = min(position + EVENTS_AT_ONCE, log.deliverable), BYTES_AT_ONCE
    while position < stop and left > 0:
        try:
            block = log.block(position)
        except LostEvents as exc:
            raise CannotContinue("Its beginning is not known any more.") from exc
        if len(block) > MAX_REREAD_BYTES:
            raise CannotContinue("An event of it is too large to be read again.")
        try:
            said.add(block)
        except CannotContinue:
            if not said.is_finished:
                raise
        left -= len(block)
        position += 1
    return position


def stored_request(stream: Stream, base: bytes | None = None) -> tuple[bytes, Headers, bytes]:
    """Target without a base path, headers and body of the client's request as the last engine was sent it. ``base`` is that
    path where it is known; else all before the last ``/v1/`` is, as in the APIs that can be gone on with.

    Raises:
        CannotContinue: it is not there any more.
    """
    request = stream.request
    if request is None:
        raise CannotContinue("Its request is not there any more.")
    target, headers, body = take_apart(request.read(0, request.end))
    if base is not None and target.startswith(base + b"/v1/"):
        return target.removeprefix(base), headers, body
    return target[target.rindex(b"/v1/") :], headers, body


class Beginning:
    """What another stream has of an answer whose rest is asked for, and what it had been asked: that stream may be forgotten
    before all of it is read, and even for the sake of the one that goes on."""

    __slots__ = ("_log", "request", "was_folded")

    def __init__(self, other: Stream) -> None:
        """Raises CannotContinue where the request is not there any more."""
        self.request = small_request(other)
        self.was_folded = other.facts.continues
        self._log = other.log
        self._log.hold()

    def __repr__(self) -> str:
        return f"<Beginning {self._log!r}>"

    async def read(self, turns: asyncio.Lock) -> Said:
        """What it says. Raises CannotContinue."""
        return await read_said(self._log, turns)

    def drop(self) -> None:
        """It is not needed any more. Called once."""
        self._log.drop()


def small_request(stream: Stream) -> tuple[bytes, Headers, bytes]:
    """As :func:`stored_request`, where it may be parsed. A large one is not even copied. Raises CannotContinue."""
    if stream.request is not None and stream.request.end > MAX_REREAD_BYTES:
        raise CannotContinue(TOO_LARGE)
    request = stored_request(stream)
    check_size(request[2])
    return request


def check_size(body: bytes) -> None:
    """Raises CannotContinue where parsing a stored request would hold up all streams."""
    if len(body) > MAX_REREAD_BYTES or body.count(b'":') > MAX_REREAD_KEYS:
        raise CannotContinue(TOO_LARGE)


class Scratch:
    """Where an engine's bytes are read to. They stay only until the next: each event is given on in a copy of its own."""

    __slots__ = ("end", "is_full", "rest")

    def __init__(self) -> None:
        self.rest = memoryview(bytearray(READ_BYTES))
        self.is_full = False
        self.end = 0

    def __repr__(self) -> str:
        return f"<Scratch {self.end} bytes>"

    def filled(self, count: int) -> None:
        self.end += count


class SecondPart:
    """A call's sink. What comes in is rewritten and appended to the stream.

    Nothing holds its engine up, and the arena's last blocks are for endings: without ``has_room`` it has come to its own.
    ``on_stop`` is called once when a stop string that spans the seam has ended the answer, or ``on_fault`` when an event can be
    no part of it: in a turn of its own, or before that by :meth:`conclude`."""

    keeps_bytes = False

    def __init__(
        self,
        stream: Stream,
        seam: Seam,
        has_room: Callable[[], bool],
        on_stop: Callable[[], object],
        on_fault: Callable[[str], object],
    ) -> None:
        self.stream = stream
        self.seam = seam
        self.chain = Scratch()
        self._request = b""
        self._has_room = has_room
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._verdict: Callable[[], object] | None = None
        self.is_over = False
        """It is decided how it ends, and nothing more is taken of it."""
        self.has_said = False
        """Something of it is in the log."""

    def __repr__(self) -> str:
        return f"<SecondPart {'over' if self.is_over else 'open'} {self.chain!r}>"

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

    def lose_reader(self, fault: Exception) -> None: ...

    def settle_soon(self) -> None: ...

    def append_framed(self, start: int, length: int) -> None:
        raise AssertionError("nothing is kept that it could lie in")

    def append_plain(self, start: int, length: int, silent: bool = False) -> None:
        raise AssertionError("nothing is kept that it could lie in")

    def append_record(self, block: bytes, silent: bool = False) -> None:
        self._append(block, silent)

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None:
        """No place in the engine's bytes is one to begin anew at: they are not kept. And nothing is known to be the last:
        :meth:`flush` may add to it."""
        self.stream.publish(-1)

    def note_first_byte(self) -> None:
        self.stream.note_first_byte()

    def note_first_token(self) -> None:
        self.stream.note_first_token()

    # Called by the generation.

    def flush(self) -> None:
        """The second part is over, and no more will come to decide whether what is held back was a stop string."""
        if not self.is_over:
            self._put(self.seam.flush)
            self.stream.publish(-1)

    def conclude(self) -> None:
        """Tell how it has ended, where that is not told yet: the engine's own end may come in the same read."""
        verdict, self._verdict = self._verdict, None
        if verdict is not None:
            verdict()

    # Inside.

    def _append(self, block: bytes, silent: bool = False) -> None:
        if self.is_over:
            return
        if block != DONE_BLOCK and not self._has_room():
            self.is_over = True
            self.stream.stop(CloseReason.ARENA_FULL, "")
            return
        if silent:
            self.stream.append_said(block, silent=True)
            return
        self._put(lambda: self._rewritten(block))
        if self.seam.is_ended and not self.is_over:
            self.stream.append_said(DONE_BLOCK)
            self._finish(self._on_stop)

    def _rewritten(self, block: bytes) -> list[bytes]:
        if len(block) > MAX_REREAD_BYTES:
            raise CannotContinue("An event of the second part is too large to be rewritten.")
        return self.seam.rewrite(block)

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
        self.is_over = True
        self._verdict = tell
        asyncio.get_running_loop().call_soon(self.conclude)
