"""All rows, in the order in which they are shown.

What lives here: the collection. What must not: any row.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from . import rows_clients, rows_endings, rows_errors, rows_flow, rows_framing, rows_offered, rows_requests
from .row import GROUPS, Row

_ALL = [
    *rows_framing.ROWS,
    *rows_endings.ROWS,
    *rows_errors.ROWS,
    *rows_clients.ROWS,
    *rows_requests.ROWS,
    *rows_flow.ROWS,
    *rows_offered.ROWS,
]
ROWS: tuple[Row, ...] = tuple(row for group in GROUPS for row in _ALL if row.group == group)


def choose(pattern: str) -> list[Row]:
    """Rows by name, by group, or by a pattern of either (``leaves-*``)."""
    return [row for row in ROWS if not pattern or fnmatchcase(row.name, pattern) or fnmatchcase(row.group, pattern)]
