"""The table of faults: for each fault and phase what is to be seen of it, on every side.

What lives here: the rows, and what is in no row and why. What must not: how it is seen (observing.py).

*how* is ``stream``, ``paced`` (a stream of one token a second) or ``whole`` (an answer in one piece). Then come the close reason;
what the client got (``all`` of the answer, an ordinary error of that status, or so many tokens exactly and an error in band); what
the engine saw; whether its connection is ``kept`` for the next request, ``closed``, or ``stale`` (kept, and dead when it is used);
whether the engine is blamed, which opens its breaker here; which clock ran out; after how many seconds it was over; and what a
second engine standing by makes of it: ``failover`` or ``goes on`` let the client have all of it; ``same`` is nothing.

A stream here has 64 events: the role, 60 tokens, the finish, the usage and the end marker.
"""

from __future__ import annotations

from typing import NamedTuple

from longwire.sim.event_faults import NO_UTF8, ROCKET

EMPTY_CONTENT = (
    b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}\n\n'
)
"""The frame of a large event, without its text."""


class Row(NamedTuple):
    """One fault in one phase."""

    fault: str
    how: str
    reason: str
    client: str
    engine: str
    connection: str
    blamed: str
    clock: str
    seconds: str
    twin: str

    def __str__(self) -> str:
        return f"{self.fault}-{self.how}"

    @property
    def name(self) -> str:
        return self.fault.partition("=")[0]

    @property
    def is_stream(self) -> bool:
        return self.how != "whole"

    @property
    def faults(self) -> tuple[str, ...]:
        return (self.fault, "slow_tokens=1000") if self.how == "paced" else (self.fault,)


def read_table(text: str) -> list[Row]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return [Row(*cells) for cells in rows if cells != [""]]


TABLE = read_table(
    """
"""
)
BIG = 10 << 20


def _kept_apart(*parts: bytes) -> str:
    """Bytes that are no text, as observing.py reads them."""
    return "".join(part.decode("utf-8", "surrogateescape") for part in parts)


BEFORE = {"big_event": "x" * (BIG - len(EMPTY_CONTENT))}
"""What a fault has said before the first token; of a large event all but its frame."""
BEHIND_FIRST = {
    "invalid_utf8": _kept_apart(NO_UTF8),
    "lone_surrogate": "\ud83d",
    "split_surrogates": "\ud83d\ude80",
    "torn_code_point": _kept_apart(ROCKET[0][:2], ROCKET[0][2:]),
}
"""And what behind it."""

NOT_IN_THE_TABLE = {
    "first": "a condition: test_lost_engines.py lets an engine come back",
    "flap": "a condition: test_lost_engines.py lets an engine flap",
    "every": "a condition: tests/sim/test_conditions.py",
    "after": "a condition: tests/sim/test_conditions.py",
}
