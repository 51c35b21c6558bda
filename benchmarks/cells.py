"""Figures as cells, and cells as tables: what the pages of all parts have in common.

What lives here: pure functions of rounds, in Markdown. What must not: which part has which table (results.py, door_tables.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from statistics import median

from converted import values
from work import INVALID, Round

WHAT_THE_MARK_SAYS = "\n† No run of it is valid, and the remarks below say why: not to be cited."


def how_often(rounds: Sequence[Round]) -> str:
    """What stands over a table."""
    return f"{len(rounds)} {'rounds, targets in turn' if len(rounds) > 1 else 'round'}.\n"


def mark(rounds: Sequence[Round], target: str) -> str:
    """Behind the name of a target whose runs are all not valid."""
    runs = [each[target] for each in rounds if target in each]
    return " †" if all(INVALID in run for run in runs) else ""


def cell(rounds: Sequence[Round], target: str, figure: str) -> str:
    """Median, and lowest to highest."""
    found = [value for value in values(rounds, target, figure) if isinstance(value, (int, float)) and not isnan(value)]
    if not found:
        return "-"
    low, middle, high = (number(value) for value in (min(found), median(found), max(found)))
    return middle if low == high else f"{middle} ({low} to {high})"


def number(value: float) -> str:
    """As many digits as mean something."""
    size = abs(value)
    digits = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return lines + [f"| {' | '.join(map(one_line, row))} |" for row in rows]


def one_line(text: str) -> str:
    """A cell's text without what would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")
