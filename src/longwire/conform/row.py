"""The shape of a row: one thing that any gateway is held to.

What lives here: the type, its groups, and the forms in which a row is played. What must not: any row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .checks import Check
from .saying import Api
from .stage import Scene

Form = tuple[Api, bool]
"""An API, and whether the client asks for a stream."""

STREAMED: Sequence[Form] = (("chat", True), ("text", True))
WHOLE: Sequence[Form] = (("chat", False), ("text", False))
EVERY: Sequence[Form] = (*STREAMED, *WHOLE)
CHAT_STREAM: Sequence[Form] = (("chat", True),)
"""For what has nothing to do with the API."""
CHAT_BOTH: Sequence[Form] = (("chat", True), ("chat", False))

Group = Literal[
    "framing", "endings", "errors", "clients", "requests", "headers", "concurrency",
    "secrets", "in-band", "resume", "readers", "survival",
]  # fmt: skip

GROUPS: dict[Group, str] = {
    "framing": "Events come as they were said, however their bytes were cut",
    "endings": "An answer that breaks is never made to look like one that ended",
    "errors": "An engine's refusal or failure is one for the client too",
    "clients": "A client may leave, be slow, or say things in its own order",
    "requests": "What is no request is refused; what is one arrives",
    "headers": "What stands around a stream lets it flow",
    "concurrency": "Streams side by side have nothing to do with each other",
    "secrets": "What belongs to the gateway does not reach the engine",
    "in-band": "A failure after the first byte is told in words",
    "resume": "A stream can be read on from an event",
    "readers": "A stream can have several readers",
    "survival": "A stream survives the death of a worker process",
}
OPTIONAL: frozenset[Group] = frozenset({"secrets", "in-band", "resume", "readers", "survival"})
"""Groups that say what a gateway offers, and never fail."""


@dataclass(frozen=True)
class Row:
    """``sent``, ``must`` and ``why`` are for people; ``scene`` and ``check`` for the run. ``reports``: public ones."""

    name: str
    group: Group
    forms: Sequence[Form]
    scene: Scene
    check: Check
    sent: str
    must: str
    why: str
    reports: Sequence[str] = ()
    is_alone: bool = False
    """It disturbs others, and is played when they are over."""

    @property
    def is_required(self) -> bool:
        return self.group not in OPTIONAL


class Case(NamedTuple):
    """One row in one form."""

    row: Row
    api: Api
    streamed: bool

    @property
    def name(self) -> str:
        return f"{self.row.name}[{self.api}-{'stream' if self.streamed else 'whole'}]"


def cases(rows: Sequence[Row]) -> list[Case]:
    """Each row in each of its forms."""
    return [Case(row, api, streamed) for row in rows for api, streamed in row.forms]
