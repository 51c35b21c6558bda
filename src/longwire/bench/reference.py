"""The tables of docs/bench.md, made from the declarations.

What lives here: rendering, and writing them between their marks. What must not: any fact that is not read from a declaration.

``python -m longwire.bench.reference docs`` writes them; a test requires that the page is what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ..words.bench_settings import BenchSettings
from ..words.config import declared
from ..words.page import rendered, table
from .declarations import MEASURES, STATS
from .doors import DOORS
from .outcomes import Cause, Outcome

COMMAND: Final = "python -m longwire.bench.reference docs"
PAGE: Final = "bench.md"


def _figures() -> str:
    stats = "{" + ", ".join(STATS) + "}"
    rows = ((f"`{each.path.replace('{}', stats)}`", each.better, each.help) for each in MEASURES)
    return table(("figure", "better", "definition"), rows)


def _endings() -> str:
    rows = (
        (f"`{each.word}`", "break" if each.breaks else "failure" if each.fails else "", each.help) for each in Outcome
    )
    return table(("ending", "counts as", "what happened"), rows)


def _causes() -> str:
    return table(("cause", "when"), ((f"`{each.word}`", each.help) for each in Cause))


def _doors() -> str:
    return table(("door", "how it is read"), ((f"`{each.name}`", each.help) for each in DOORS.values()))


def _flags() -> str:
    return table(("flag", "default", "allowed", "what it does"), _flag_rows())


def _flag_rows() -> Iterator[Sequence[str]]:
    for each in declared(BenchSettings).values():
        flag = f"`{each.flag}`"
        if each.kind == "bool":
            yield flag, "off", "", each.help
        else:
            default = f"`{each.shown(each.default)}`" if each.default not in ("", []) else ""
            yield flag, default, each.allowed, each.help


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "figures": _figures,
    "endings": _endings,
    "causes": _causes,
    "doors": _doors,
    "flags": _flags,
}


def render(page: str) -> str:
    """The page with every table as the declarations have it."""
    return rendered(page, BLOCKS)


if __name__ == "__main__":
    path = Path(sys.argv[1]) / PAGE
    path.write_text(render(path.read_text("utf-8")), "utf-8")
    print(path)
