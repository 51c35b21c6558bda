"""The result of one check of ``longwire check``.

What lives here: its shape. What must not: any check.
"""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(NamedTuple):
    """One row: what was looked at, how it is, what was seen, and one sentence of what to do (empty where all is well)."""

    check: str
    state: str
    found: str
    advice: str
