"""What came of one scene: every client's bytes with their times, how each connection ended, and what the engine saw.

What lives here: values that a check is given, from a run or from a test. What must not: how they came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .answers import Answer, AnswerReader, ConnectionEnd, Piece


class Play(NamedTuple):
    """What the engine does for one request, and what of it a client must get when nothing breaks."""

    steps: tuple[object, ...]
    text: str = ""
    finish: str = "stop"
    secret: str = ""
    """What the client sent and the engine must not see."""


@dataclass(slots=True)
class Asked:
    """One request as the engine saw it. ``left_s``: when its connection was closed from the other side, by the run's clock."""

    nonce: str
    target: str
    fields: list[tuple[str, str]]
    body: bytes
    at_s: float
    missed: list[int] = field(default_factory=list)
    """Numbers of events that the client did not have in time, though the engine waited for it."""
    left_s: float | None = None
    is_open: bool = True
    """The engine is still at it."""
    peer: tuple[str, int] = ("", 0)
    """Where it came from, as that end calls it."""

    def get(self, name: str) -> str:
        """A field's values, joined; empty where there is none."""
        return ", ".join(value for key, value in self.fields if key == name)


@dataclass(frozen=True)
class Visit:
    """One client's connection. ``nonces``: its requests, in their order. ``marks``: when it did what, by the steps' names."""

    nonces: tuple[str, ...]
    pieces: tuple[Piece, ...]
    end: ConnectionEnd
    ended_s: float
    marks: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """What came, read."""
        return tuple(AnswerReader(self.pieces, self.end, self.ended_s).answers)

    @property
    def answer(self) -> Answer:
        """The first answer; an empty one where nothing came."""
        return self.answers[0] if self.answers else Answer()


@dataclass(frozen=True)
class Recording:
    """Everything that a check may look at."""

    visits: tuple[Visit, ...]
    asked: tuple[Asked, ...] = ()
    plays: Mapping[str, Play] = field(default_factory=dict)
    streamed: bool | None = None
    """Whether the clients asked for streams."""

    @property
    def answer(self) -> Answer:
        """The first answer of the first visit."""
        return self.visits[0].answer

    @property
    def play(self) -> Play:
        """The first request's."""
        return self.plays.get(self.visits[0].nonces[0], Play(())) if self.visits[0].nonces else Play(())

    def asked_by(self, nonce: str) -> list[Asked]:
        """The engine's requests with this mark, retries included."""
        return [each for each in self.asked if each.nonce == nonce]
