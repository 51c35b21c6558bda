"""What a metric is: its declaration, and what its value is read from.

What lives here: the types. What must not: any metric (declarations.py, queue_declarations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .instruments import Histogram, Instruments
from .snapshot import Snapshot

Series = Mapping[tuple[str, ...], float]
"""Label values, in the order of the declaration, and the number."""

Reading = float | Series | Histogram


class Look(NamedTuple):
    """What a scrape sees: what has been counted, and what stands now."""

    counters: Instruments
    now: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One declaration. A histogram's buckets are the powers of two from 2^low to 2^high microseconds."""

    name: str
    kind: str
    help: str
    read: Callable[[Look], Reading]
    unit: str = ""
    labels: tuple[str, ...] = ()
    low: int = 0
    high: int = 0


def told(amounts: Mapping[str, float | None]) -> Series:
    """One series for each whose amount is known: what nobody said is not zero."""
    return {(name,): amount for name, amount in amounts.items() if amount is not None}
