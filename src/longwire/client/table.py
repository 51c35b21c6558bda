"""The machine's table: where a reader can be, what can happen to it, where that leads, and what it can ask for.

What lives here: states, signs, transitions and actions, all of them values.
What must not: how a sign is recognised (reader.py), how an action is done (sync.py, aio.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Where the reader is."""

    ASKING = "asking"
    ASK_PAUSED = "ask_paused"
    READING = "reading"
    PAUSED = "paused"
    RESUMING = "resuming"
    ENDED = "ended"
    FAILED = "failed"


class Sign(Enum):
    """What can happen to it."""

    OPENED = "opened"
    """A response with events has begun."""
    BROKEN = "broken"
    """The connection broke, ended before the end marker, or could not be made: worth another try."""
    SPENT = "spent"
    """The same, but the back-off allows no further try."""
    AWAKE = "awake"
    """The wait is over."""
    REFUSED = "refused"
    """What came cannot be mended by trying again."""
    FINISHED = "finished"
    """The end marker, a 204, or the program's own close()."""


TRANSITIONS: dict[State, dict[Sign, State]] = {
    State.ASKING: {
        Sign.OPENED: State.READING,
        Sign.BROKEN: State.ASK_PAUSED,
        Sign.SPENT: State.FAILED,
        Sign.FINISHED: State.ENDED,
    },
    State.ASK_PAUSED: {Sign.AWAKE: State.ASKING, Sign.FINISHED: State.ENDED},
    State.READING: {
        Sign.BROKEN: State.PAUSED,
        Sign.SPENT: State.FAILED,
        Sign.REFUSED: State.FAILED,
        Sign.FINISHED: State.ENDED,
    },
    State.PAUSED: {Sign.AWAKE: State.RESUMING, Sign.FINISHED: State.ENDED},
    State.RESUMING: {
        Sign.OPENED: State.READING,
        Sign.BROKEN: State.PAUSED,
        Sign.SPENT: State.FAILED,
        Sign.REFUSED: State.FAILED,
        Sign.FINISHED: State.ENDED,
    },
    # A stream that is over stays over: a close() in one thread meets a broken connection in another.
    State.ENDED: dict.fromkeys(Sign, State.ENDED),
    State.FAILED: dict.fromkeys(Sign, State.FAILED),
}


# What to do next.


@dataclass(frozen=True, slots=True)
class Post:
    """Send the request, always with the same Idempotency-Key."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the current response."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep, then say so."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Send ``GET /streams/{stream_id}`` with these headers."""

    stream_id: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stop:
    """There is nothing more."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise. ``why`` is None when no stream had begun: then ``cause`` is the error to raise as it is."""

    why: str | None
    cause: Exception | None
    status: int | None = None


Action = Post | Read | Wait | Resume | Stop | Fail
