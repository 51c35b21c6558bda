"""Two results, figure by figure and repeat by repeat.

What lives here: paired differences and what they show. What must not: printing (markdown.py).

Repeat 1 of one is set against repeat 1 of the other, and so on: what both had in common, such as a machine that grew slower,
is in neither difference. Where the runs were not interleaved, there is nothing in common, and the interval is only wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .declarations import HIGHER, LOWER, PATHS
from .result import Result
from .statistics import Interval, is_shown, paired_differences, t_interval


class Difference(NamedTuple):
    """One figure in both. ``verdict`` is better, worse, other (neither is better) or nothing: no difference is shown."""

    path: str
    before: float
    after: float
    change: Interval
    pairs: int
    verdict: str


def compare(before: Result, after: Result) -> list[Difference]:
    """Every figure that both have."""
    return list(_differences(before["metrics"], after["metrics"]))


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Difference]:
    for path in PATHS:
        earlier, later = before.get(path), after.get(path)
        if not earlier or not later or earlier["value"] is None or later["value"] is None:
            continue
        pairs = [
            (first, second)
            for first, second in zip(earlier["repeats"], later["repeats"], strict=False)
            if first is not None and second is not None
        ]
        changes = paired_differences([first for first, _ in pairs], [second for _, second in pairs])
        change = t_interval(changes)
        yield Difference(path, earlier["value"], later["value"], change, len(pairs), _verdict(path, change))


def _verdict(path: str, change: Interval) -> str:
    if not is_shown(change):
        return ""
    better = PATHS[path].better
    if better not in (LOWER, HIGHER):
        return "other"
    return "better" if (change.value < 0) == (better == LOWER) else "worse"


def not_alike(before: Result, after: Result) -> list[str]:
    """What makes the two hard to compare, in sentences."""
    found = [
        f"{name} was not the same: {before['plan'].get(name)!r} and {after['plan'].get(name)!r}."
        for name in sorted({*before["plan"], *after["plan"]} - MAY_DIFFER)
        if before["plan"].get(name) != after["plan"].get(name)
    ]
    found += [
        f"The {which} result is not valid: {problem}"
        for which, result in (("first", before), ("second", after))
        for problem in result["problems"]
    ]
    return found


MAY_DIFFER = frozenset({"admin", "control", "door", "engine", "header", "processes", "raw", "sources"})
"""Parts of a plan that say how the same work was done, not which work."""
