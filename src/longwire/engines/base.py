"""What an engine adapter reads and writes: the protocols between engines and the rest.

What lives here: the sink that an answer goes into, the watch that reads events, how an exchange can end, and who hears of it.
What must not: any one engine's API, sockets, dialects, the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ..words.reasons import CloseReason


class Store(Protocol):
    """Memory that the kernel reads into."""

    rest: memoryview
    """Where the next bytes may be stored; never empty while not full."""
    is_full: bool
    """No memory is free: pause reading until told to resume."""

    @property
    def end(self) -> int:
        """Bytes stored so far: the offset of the next."""

    def filled(self, count: int) -> None:
        """``count`` bytes were stored at the start of :attr:`rest`."""


class Sink(Protocol):
    """Where an exchange puts what the engine sends. A stream is one; a probe collects into another.

    Bytes are stored in its ``chain``. The exchange says what they are through ``append_*``, and lets readers have them with
    ``publish``. It ends the sink exactly once.
    """

    keeps_bytes: bool
    """What was stored is still there; else each event is given in a record, and nothing says where it lay."""

    @property
    def chain(self) -> Store: ...

    def splice(self) -> Callable[[bytes], None] | None:
        """Where whole frames may be given directly from now on, if there is such a place; see streams."""

    def unsplice(self) -> None:
        """No more: something else has come."""

    def lose_reader(self, fault: Exception) -> None:
        """Giving a frame directly has raised, and the frame is stored: that is a reader's fault, and ends only that reader."""

    def settle_soon(self) -> None:
        """A block is full of frames that were given directly: they are to be in the index before long."""

    def append_framed(self, start: int, length: int) -> None: ...

    def append_plain(self, start: int, length: int, silent: bool = False) -> None: ...

    def append_record(self, block: bytes, silent: bool = False) -> None: ...

    def publish(self, checkpoint: int, *, is_last: bool = False) -> None:
        """``is_last``: the end follows at once, and readers may have both together."""

    def note_first_byte(self) -> None: ...

    def note_first_token(self) -> None: ...


class Verdict(Enum):
    """What is to be done with one event."""

    PASS = "pass"
    HIDE = "hide"
    """Asked for by the gateway, not by the client: it is counted and kept back, and has no seq."""
    END = "end"
    """The dialect's end marker."""
    ERROR = "error"
    """The engine reports a failure inside its stream."""
    BROKEN = "broken"
    """It was meant to be one of the dialect's events, and nobody can read it."""


class Watch(Protocol):
    """Reads what events say, with as little reading as possible. One per exchange."""

    usage: dict[str, Any] | None
    tokenless: int
    """Events read that carried no token. All others are counted as one: an estimate, where the engine gives no usage."""
    strips_fields: bool
    error_message: str
    error_status: int

    def is_plain(self, frame: bytes) -> bool:
        """True if this event is an ordinary delta that needs no reading. Runs per event: searches only, no JSON."""

    def read(self, block: bytes) -> Verdict:
        """Read an event that is not plain."""

    def is_whole(self, block: bytes) -> bool:
        """Whether an event that the engine did not terminate is all there."""

    def is_whole_body(self, body: bytes) -> bool:
        """Whether an answer in one piece is all there: one that ends with its connection may have been cut."""

    def begins_error(self, start: bytes) -> bool:
        """Whether a JSON body that begins so is an error object and no answer."""

    def reads_error(self, body: bytes) -> bool:
        """Whether a body is the engine's error object; then :attr:`error_message` and :attr:`error_status` say which."""

    def saw_token(self) -> bool:
        """Whether any content, reasoning or tool delta has come."""

    def has_opened(self) -> bool:
        """Whether there is something to be passed on at once: a token, or progress that the client has asked for."""

    @property
    def plain_mark(self) -> bytes | None:
        """What every ordinary delta of this answer contains and nothing else does; None: they must be looked at one by one."""

    def is_fresh(self) -> bool:
        """Whether a watch made anew and primed would go on just the same from here: no finish was seen yet."""

    def prime(self) -> None:
        """Be as after any number of ordinary deltas."""

    def is_finished(self) -> bool:
        """Whether the answer has said that it is at its end: what may still come is no part of it."""

    def outcome(self, ended_cleanly: bool) -> tuple[CloseReason, bool]:
        """How the answer ended, given whether its HTTP body did; and whether the end marker is still owed to the client."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer that is no stream of events, as far as its head says."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content_length: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """How an exchange failed before anything of it could be passed on."""

    reason: CloseReason
    message: str
    status: int = 0
    body: bytes = b""
    content_type: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    is_retryable_unsent: bool = False
    """A reused connection died with no byte of a response: the engine had closed it, and the request can go out once more."""


class Owner(Protocol):
    """Who started the exchange and decides what its ending means for the stream."""

    def began(self) -> None:
        """The head is that of an answer: from here on nothing is asked a second time."""

    def refusing(self) -> None:
        """The head is that of an error: its body may follow, or not."""

    def answered(self, answer: Answer) -> None:
        """The answer is an opaque body; its bytes follow."""

    def completed(self, reason: CloseReason, message: str) -> None:
        """The answer is over, after something of it was passed on (or it was whole)."""

    def failed(self, failure: Failure) -> None:
        """The exchange is over and nothing of it was passed on."""


class Link(Protocol):
    """The connection that an exchange runs on."""

    def splice(self, write: Callable[[bytes], None], mark: bytes) -> None:
        """Give frames that contain ``mark`` to ``write`` by yourself, until one comes that is anything else."""

    def release(self, reusable: bool) -> None:
        """The connection is not needed any more. Called once."""

    def drain(self) -> None:
        """The answer is complete but for the end of its HTTP body: read on, but not into the sink any more."""
