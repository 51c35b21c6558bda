"""Repeats that never happened: records with times that a test chooses."""

from __future__ import annotations

from array import array
from typing import Any

from longwire.bench.figures import Measured
from longwire.bench.outcomes import Outcome
from longwire.bench.records import TIME, Record

MS = 1_000_000
S = 1000 * MS
GO_NS = 50 * S


def record(number: int, at_s: float = 0.0, **facts: Any) -> Record:
    """A complete stream of ten tokens, 20 ms apart, the first after 100 ms, sent 1 ms late. ``facts`` change it."""
    made = Record(number, GO_NS + int(at_s * S))
    made.sent_ns = made.scheduled_ns + MS
    made.body_ns = made.sent_ns + 80 * MS
    made.times = array(TIME, (made.sent_ns + (100 + 20 * token) * MS for token in range(facts.pop("tokens", 10))))
    made.end_ns = made.sent_ns + 300 * MS
    made.outcome = Outcome.COMPLETE
    made.status = 200
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def measured(records: list[Record], **facts: Any) -> Measured:
    return Measured(**{"records": records, "go_ns": GO_NS, "warm_up_s": 1.0, "duration_s": 4.0, **facts})
