"""One stream, read over as many connections as it takes.

What lives here: every decision of the resuming client, as a machine (table.py) of values in and values out.
What must not: sockets, sleeping, ``await``, openai and httpx. The two skins (sync.py, aio.py) do what :meth:`Reader.decide`
says, tell the reader what came of it, and hold no rules of their own.

The loop of a skin::

    while True:
        match reader.decide():
            case Post():          send the POST       -> receive_head | receive_break
            case Read():          read the response   -> receive_data, next_block ...; receive_eof | receive_break
            case Wait(delay_s):   sleep               -> receive_wakeup
            case Resume():        send the GET        -> receive_head | receive_refusal | receive_break
            case Fail():          raise
            case Stop():          return

On the POST's connection events carry no id and the reader counts them; on a GET's each carries ``<epoch>-<seq>`` and the
reader checks it: an event that it has is dropped, one that would leave a gap is an error, never silence.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..words.errors import BadCursor
from ..words.ids import BEFORE_FIRST, Cursor, parse_cursor
from .backoff import Backoff
from .blocks import Block, BlockSplitter, BlockTooLarge
from .table import TRANSITIONS, Action, Fail, Post, Read, Resume, Sign, State, Stop, Wait

END_MARKER = b"[DONE]"
GONE = frozenset({404, 410})
BUSY = frozenset({408, 421, 425, 429})
"""Statuses (besides all 5xx) that a proxy, an overloaded node or one of several gives and that pass."""


class Reader:
    """The state of one stream on its way to the program."""

    def __init__(self, backoff: Backoff) -> None:
        self.state = State.ASKING
        self.stream_id: str | None = None
        self.cursor: Cursor = BEFORE_FIRST
        """The last event handed on."""
        self._backoff = backoff
        self._splitter = BlockSplitter()
        self._numbered = False  # whether this connection's events carry their ids
        self._events_here = 0
        self._retry_s: float | None = None
        self._connections = 0
        self._failures = 0  # in a row, without a new event
        self._deferrals = 0  # likewise
        self._delay_s = 0.0
        self._fail = Fail(None, None)

    def __repr__(self) -> str:
        return f"<Reader {self.state.value} stream={self.stream_id} cursor={self.cursor} failures={self._failures}>"

    def statistics(self) -> dict[str, int]:
        """Counts, for people and tests."""
        return {
            "events": self.events,
            "connections": self._connections,
            "failures": self._failures,
            "deferrals": self._deferrals,
        }

    @property
    def events(self) -> int:
        """How many events have been handed on."""
        return self.cursor.seq + 1

    @property
    def is_reading(self) -> bool:
        """False once what is left of the current response is of no use."""
        return self.state is State.READING

    def decide(self) -> Action:
        """The next action; asking twice changes nothing."""
        match self.state:
            case State.ASKING:
                return Post()
            case State.READING:
                return Read()
            case State.ASK_PAUSED | State.PAUSED:
                return Wait(self._delay_s)
            case State.RESUMING:
                return self._resume()
            case State.ENDED:
                return Stop()
            case State.FAILED:
                return self._fail

    # What comes of a request.

    def receive_head(self, status: int, headers: Mapping[str, str]) -> None:
        """A 2xx response head, of the POST or of a GET."""
        is_events = headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"
        if self.state is State.ASKING:
            self.stream_id = headers.get("x-stream-id") if is_events else None
            if self.stream_id:
                self._open(numbered=False)
            else:
                self._go(Sign.FINISHED)  # not a gateway's stream: openai reads it as ever
        elif status == 204:
            self._go(Sign.FINISHED)
        elif is_events:
            self._open(numbered=True)
        else:
            self._break(None, "it was answered with something that is no event stream")

    def receive_refusal(self, status: int, headers: Mapping[str, str], error: Exception) -> None:
        """A 4xx or 5xx head of a GET."""
        if status in BUSY or status >= 500:
            retry_after = headers.get("retry-after", "")
            at_least_s = float(retry_after) if retry_after.isdigit() else 0.0
            self._break(error, f"the gateway answered {status}", at_least_s=at_least_s)
        elif status in GONE:
            self._refuse("the gateway no longer has the stream", error, status)
        else:
            self._refuse(f"the gateway refused to resume the stream ({status})", error, status)

    def receive_break(self, error: Exception) -> None:
        """The connection could not be made, or broke."""
        self._break(error, "its connection broke")

    def receive_eof(self) -> None:
        """The response ended as HTTP says it should; without the end marker that is a break all the same."""
        self._break(None, "its connection ended before the stream did")

    def receive_wakeup(self) -> None:
        """The wait is over."""
        self._go(Sign.AWAKE)

    def close(self) -> None:
        """The program wants no more."""
        self._go(Sign.FINISHED)

    # Reading.

    def receive_data(self, data: bytes) -> None:
        """Bytes of the current response; call :meth:`next_block` next, until it gives None."""
        self._splitter.receive_data(data)

    def next_block(self) -> bytes | None:
        """The next event as openai's decoder may see it; the cursor then stands on it."""
        try:
            while self.is_reading and (block := self._splitter.next_block()) is not None:
                if block.retry_ms is not None:
                    self._retry_s = block.retry_ms / 1000
                if block.data and self._accept(block):
                    return block.encode()
        except BlockTooLarge as error:
            self._refuse(str(error), error)
        except BadCursor as error:
            self._refuse("the gateway sent an event without a usable id", error)
        return None

    def _accept(self, block: Block) -> bool:
        """Move the cursor to this event; False where the reader has it already, or must not take it."""
        expected = self.cursor.seq + 1
        cursor = self._cursor_of(block, expected)
        if cursor.epoch < self.cursor.epoch or cursor.seq > expected:
            self._refuse(f"the gateway went on with event {cursor} where {expected} was due", None)
            return False
        if cursor.seq < expected:
            return False
        self.cursor = cursor
        self._events_here += 1
        self._failures = self._deferrals = 0
        if block.data[0].startswith(END_MARKER):
            self._go(Sign.FINISHED)
        return True

    def _cursor_of(self, block: Block, expected: int) -> Cursor:
        if not self._numbered:
            return Cursor(self.cursor.epoch, expected)
        # Without an id, a server that ignored the cursor and replays from the start would pass unnoticed.
        if not block.id:
            raise BadCursor("no id")
        return parse_cursor(block.id)

    # Moving.

    def _go(self, sign: Sign) -> None:
        self.state = TRANSITIONS[self.state][sign]

    def _open(self, *, numbered: bool) -> None:
        self._splitter = BlockSplitter()
        self._numbered = numbered
        self._events_here = 0
        self._retry_s = None
        self._go(Sign.OPENED)
        self._connections += self.is_reading  # not when close() came first

    def _refuse(self, why: str, cause: Exception | None, status: int | None = None) -> None:
        if self.state not in (State.ENDED, State.FAILED):
            self._fail = Fail(why, cause, status)
        self._go(Sign.REFUSED)

    def _break(self, cause: Exception | None, why: str, *, at_least_s: float = 0.0) -> None:
        """One more failure in a row, unless the gateway itself asked to come back later."""
        is_deferral = self.is_reading and self._retry_s is not None and not self._events_here
        if is_deferral:
            self._deferrals += 1
            self._delay_s = self._backoff.bounded_s(self._retry_s or 0.0)
        else:
            self._failures += 1
            self._delay_s = max(self._backoff.delay_s(self._failures), self._backoff.bounded_s(at_least_s))
        if self._failures < self._backoff.attempts and self._deferrals < self._backoff.deferrals:
            self._go(Sign.BROKEN)
            return
        if self.state not in (State.ENDED, State.FAILED):
            tries = max(self._failures, self._deferrals)
            self._fail = Fail(self.stream_id and f"{why}, and {tries} tries in a row brought no new event", cause)
        self._go(Sign.SPENT)

    def _resume(self) -> Resume:
        assert self.stream_id is not None, "RESUMING is reached only from READING"
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self.cursor != BEFORE_FIRST:
            headers["Last-Event-ID"] = str(self.cursor)
        return Resume(self.stream_id, headers)
