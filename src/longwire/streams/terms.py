"""The terms in which streams speak: states, kinds, policies, and what is asked of those around a stream.

What lives here: enums, small frozen facts and protocols, with next to no behaviour.
What must not: the stream itself (stream.py), HTTP, engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from ..words.reasons import CloseReason
from ..words.wishes import NO_WISHES
from .chain import Chain


class State(IntEnum):
    """Where a stream is in its life."""

    OPENING = 0
    """Nothing was sent to any reader yet: it can still become an ordinary HTTP error."""
    LIVE = 1
    """Readers have the response head: whatever happens now is told in-band."""
    ENDED = 2
    """Sealed, with a reason. It can be read until it is evicted."""


TRANSITIONS: dict[State, tuple[State, ...]] = {
    State.OPENING: (State.LIVE, State.ENDED),
    State.LIVE: (State.ENDED,),
    State.ENDED: (),
}


class Kind(IntEnum):
    """What the readers get."""

    EVENTS = 0
    """Server-sent events: in-band errors and heartbeats are possible."""
    BODY = 1
    """An opaque body (JSON, audio): the only in-band truth is its completeness."""


class OnDisconnect(IntEnum):
    """What happens when the last reader has left."""

    CANCEL = 0
    GRACE = 1
    RUN = 2


@dataclass(frozen=True, slots=True)
class BodyHead:
    """The head of a non-SSE answer: what readers are told before the body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content_length: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The whole answer of a stream that ended before its first content."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


class EndingWords(Protocol):
    """How a dialect says that a stream ended badly."""

    def error_blocks(self, reason: CloseReason, message: str, facts: dict[str, object]) -> list[bytes]:
        """The in-band error and the end marker, as event blocks."""

    def error_body(self, reason: CloseReason, message: str) -> bytes:
        """The body of an ordinary error response."""


class Reader(Protocol):
    """What a stream wakes: a subscriber."""

    def pump(self) -> None: ...

    def wake(self) -> None:
        """Pump; whatever goes wrong for this reader stays with it."""

    def splice(self) -> Callable[[bytes], None] | None:
        """How to write a frame to this reader, if it stands at the tail and its door needs nothing more than the frame."""

    def spliced(self, count: int, size: int) -> None:
        """``count`` events, ``size`` bytes of the engine's, have gone the short way."""

    def fail(self, fault: Exception) -> None:
        """Writing to it has raised: end it and nothing else."""


def to_nobody(frame: bytes) -> None:
    """The short way of a stream that nobody reads: the log has the frame already."""


class Link(NamedTuple):
    """Where a stream's engine is connected: descriptor and the connection's byte counts before this request."""

    fd: int = -1
    read_base: int = 0
    written_base: int = 0


class Slot(Protocol):
    """A place among the tenant's streams."""

    def release(self) -> None: ...

    def settle(self, tokens: int) -> None:
        """Say what the stream has really used."""


class Producer(Protocol):
    """What fills a stream: an exchange with an engine."""

    def stop(self) -> None:
        """Give the engine back now."""

    def resume_reading(self) -> None:
        """Blocks are free again."""

    def unsplice(self) -> None:
        """Close the short way."""


@dataclass(slots=True)
class Facts:
    """What is known of a stream besides its bytes; ``usage`` as the engine counted it, or None."""

    tenant: str
    tenant_index: int
    route: str
    model: str = ""
    engine: str = ""
    request_id: str = ""
    usage: dict[str, Any] | None = None
    can_be_continued: bool = False
    """Its engine is known to go on with an answer that was cut."""
    continues: bool = False
    """It goes on with another stream's answer; its stored request holds what that had said."""
    attempts: int = 1
    """Requests to engines for it so far."""
    timeouts: Mapping[str, float] = field(default_factory=lambda: NO_WISHES)
    """What its client wishes of the clocks."""
    tokens_estimated: int = 0
    prompt_tokens: int = 0
    """As estimated from the request."""
    context_tokens: int = 0
    """As counted at admission: the prompt's, and the most that the answer may have."""
    clamped_tokens: int = 0
    """The bound that the gateway has given to each answer; 0: none."""
    prompt_hash: bytes = b""
    key_hash: bytes = b""
    body_hash: bytes = b""
    asker: tuple[int, int] = (0, 0)
    """Serial of the connection whose request started the stream, and the bytes that had been written on it before."""
    choices: int = 1
    hides_usage: bool = False
    wants_stream: bool = True
    readers_total: int = 0
    resumes_total: int = 0
    first_byte_at: float | None = None
    first_token_at: float | None = None


class Tally:
    """How many streams and readers there are now, kept as they come and go: whoever asks need not walk over them."""

    __slots__ = ("readers", "streams")

    def __init__(self) -> None:
        self.streams: dict[State, int] = dict.fromkeys(State, 0)
        self.readers = 0

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state.name.lower()}" for state, count in self.streams.items())
        return f"<Tally {states}, {self.readers} readers>"


MAX_REREAD_BYTES = 1024 * 1024
"""A request that is larger is not parsed again in the loop: reading this much takes some ten milliseconds. So nobody can go on
with its answer, and it is not kept for that either."""


TOO_LARGE = "Its request is too large to be read again."


def is_part(facts: Facts, kind: Kind, reason: CloseReason, request: Chain | None) -> bool:
    """Whether an ending leaves a part of an answer, whose rest can be asked for: then its request is kept."""
    is_readable = request is not None and request.end <= MAX_REREAD_BYTES
    return is_readable and not why_no_part(facts, kind, reason)


def why_no_part(facts: Facts, kind: Kind, reason: CloseReason) -> str:
    """Why nobody can ask for an answer's rest, whatever its request was; empty where nothing speaks against it."""
    if reason.is_success:
        return "This answer is whole."
    if facts.route == "relay":
        return "Answers of this API cannot be gone on with."
    if facts.choices != 1:
        return "It asks for several answers."
    if kind is not Kind.EVENTS:
        return "An answer in one piece cannot be gone on with; ask for it as a stream."
    if facts.first_token_at is None:
        return "Nothing of this answer has come; ask for all of it again."
    if not facts.can_be_continued:
        return "Its engine is of no kind that is known to go on exactly: see 'kind' of an engine in the configuration."
    return ""
