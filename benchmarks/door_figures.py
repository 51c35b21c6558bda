"""Doors compared: the ways to an answer that are measured, and the figures of each from what `longwire bench` wrote.

What lives here: the rows and columns of the table, figures, why a run must not be cited, the goals. Pure functions.
What must not: starting anything (doors.py), the page (door_tables.py).

A row is a door and a way, as ``sse: longwire behind nginx as shipped``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nginx
from work import Figures, Goal, Round

Told = Mapping[str, Any]
"""One result of `longwire bench --json`."""


@dataclass(frozen=True, slots=True)
class Way:
    """What stands between the client and the engine."""

    name: str
    has_longwire: bool
    server: str = ""
    """Of nginx's configuration; nothing where nginx is not in the way."""

    @property
    def target(self) -> str:
        """What has to be there for it besides Longwire, by the name that `--targets` takes."""
        return "nginx" if self.server else "longwire"


WAYS = (
    Way("longwire", True),
    Way("longwire behind nginx as shipped", True, nginx.AS_SHIPPED),
    Way("longwire behind nginx, buffering off", True, nginx.UNBUFFERED),
    Way("engine behind nginx as shipped", False, nginx.AS_SHIPPED),
    Way("engine behind nginx, buffering off", False, nginx.UNBUFFERED),
)
TARGETS = ("longwire", "nginx")

_QUIET = {
    "ttft_p50_ms": "ttft.p50_ms",
    "ttft_p99_ms": "ttft.p99_ms",
    "itl_p50_ms": "itl.p50_ms",
    "itl_p99_ms": "itl.p99_ms",
    "gaps": "ir.gaps",
    "interrupted_share": "ir.share",
    "failed_share": "failures.share",
    "answers": "load.complete",
}
_CUT = {"cuts": "resume.cuts", "resume_p50_ms": "resume.time.p50_ms", "resume_p99_ms": "resume.time.p99_ms"}
_ORDER = {
    "verified": "order.verified",
    "disorders": "order.violations",
    "duplicates": "order.duplicates",
    "lost": "order.lost",
    "wrong": "order.wrong",
}
RESUMED = "resumed_share"

WAITS = (
    ("ttft_p50_ms", "TTFT p50 ms", 1),
    ("ttft_p99_ms", "p99 ms", 1),
    ("itl_p50_ms", "ITL p50 ms", 1),
    ("itl_p99_ms", "p99 ms", 1),
    ("gaps", "gaps over 500 ms", 0),
    ("interrupted_share", "interrupted", 3),
    ("failed_share", "failed", 3),
)
RECOVERY = (
    ("cuts", "cuts", 0),
    (RESUMED, "resumed", 3),
    ("resume_p50_ms", "resume p50 ms", 1),
    ("resume_p99_ms", "p99 ms", 1),
    ("verified", "answers verified", 0),
)
"""Two tables on the page, of which one would be too wide; one on the terminal."""


def row_of(door: str, way: Way) -> str:
    """What a door and a way are called together."""
    return f"{door}: {way.name}"


def doors_in(rounds: Sequence[Round]) -> list[str]:
    """Those that were measured."""
    return list(dict.fromkeys(name.partition(": ")[0] for each in rounds for name in each))


def figures_of(quiet: Told, cut: Told) -> Figures:
    """What one run gave; a figure that the bench has not got is not there."""
    found = _read(quiet, _QUIET)
    order = [_read(told, _ORDER) for told in (quiet, cut)]
    found |= {name: sum(each.get(name, 0.0) for each in order) for name in _ORDER}
    found |= _read(cut, _CUT)
    if found.get("cuts"):
        found[RESUMED] = _read(cut, {"resumed": "resume.resumed"}).get("resumed", 0.0) / found["cuts"]
    return found


def _read(told: Told, paths: Mapping[str, str]) -> Figures:
    metrics = told["metrics"]
    values = {name: metrics[path]["value"] for name, path in paths.items() if path in metrics}
    return {name: float(value) for name, value in values.items() if value is not None}


def problems(told: Told, *, must_cut: bool = False) -> Iterator[str]:
    """Why a run must not be cited: the client's own doubts, and whatever is wrong with an answer."""
    yield from told["problems"]
    order = _read(told, _ORDER)
    if any(order.get(name) for name in ("disorders", "duplicates", "lost", "wrong")):
        yield ", ".join(f"{order.get(name, 0):.0f} {name}" for name in _ORDER)
    if not order.get("verified"):
        yield "no answer was verified"
    if must_cut and not _read(told, _CUT).get("cuts"):
        yield "no stream could be cut: the way through Longwire has to offer its resumption"


def goals(rounds: Sequence[Round]) -> list[Goal]:
    """Nothing out of order, and nothing doubled or lost: in all runs, since a median would hide the one that is wrong."""
    runs = [run for each in rounds for run in each.values() if run.get("verified")]
    note = f"in {sum(run['verified'] for run in runs):,.0f} verified answers, those of all runs together"

    def total(*names: str) -> float | None:
        return sum(run.get(name, 0.0) for run in runs for name in names) if runs else None

    return [
        Goal.most("tokens out of order", "tokens", total("disorders"), 0.0, note=note),
        Goal.most("tokens doubled, lost or wrong", "tokens", total("duplicates", "lost", "wrong"), 0.0, note=note),
    ]


def absent(rounds: Sequence[Round], row: str, figure: str) -> str:
    """In place of a figure that is not there: where nothing could be cut, there is nothing to come back by."""
    runs = [each[row] for each in rounds if row in each]
    return "not offered" if figure == RESUMED and runs and not any(run.get("cuts") for run in runs) else "-"
