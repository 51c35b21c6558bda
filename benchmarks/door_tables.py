"""The doors' part of the page: two tables, a row for each door and way.

What lives here: rows and columns. What must not: figures (door_figures.py), how a cell is written (cells.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cells import WHAT_THE_MARK_SAYS, cell, how_often, mark, table
from door_figures import RECOVERY, WAITS, WAYS, Way, absent, doors_in, row_of
from work import Round


def tables(rounds: Sequence[Round], missing: Mapping[str, str]) -> Iterator[str]:
    """Two tables: how each door's answers came by each way, and how they came back. A way that was not measured says why."""
    rows = [(door, way) for door in doors_in(rounds) for way in WAYS]
    measured = {name for each in rounds for name in each}
    names = {each: row_of(*each) for each in rows}
    marks = {each: mark(rounds, name) if name in measured else "" for each, name in names.items()}
    yield how_often(rounds)
    for columns in (WAITS, RECOVERY):
        lines = [
            [door, way.name + marks[door, way], *_cells(rounds, (door, way), columns, missing)] for door, way in rows
        ]
        yield from ["", *table(["door", "way", *(heading for _, heading, _ in columns)], lines)]
    if any(marks.values()):
        yield WHAT_THE_MARK_SAYS


def _cells(
    rounds: Sequence[Round],
    row: tuple[str, Way],
    columns: Sequence[tuple[str, str, int]],
    missing: Mapping[str, str],
) -> list[str]:
    name = row_of(*row)
    if not any(name in each for each in rounds):
        return [missing.get(row[1].target, "gave no figures: see below"), *("" for _ in columns[1:])]
    cells = [(cell(rounds, name, figure), figure) for figure, _, _ in columns]
    return [absent(rounds, name, figure) if found == "-" else found for found, figure in cells]
