"""The tables of docs/sim.md, made from the declarations.

What lives here: rendering, and an example for each field of a request. What must not: any fact that is declared elsewhere.

``python -m longwire.sim.reference docs`` writes them; a test requires that the page is what this makes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from longwire.words.config import declared
from longwire.words.page import rendered, table
from longwire.words.settings import SimSettings

from .ask import ONLY_IN_REQUESTS
from .faults import FAULTS
from .routes import ROUTES

COMMAND: Final = "python -m longwire.sim.reference docs"
PAGE: Final = "sim.md"

EXAMPLES: Final[Mapping[str, object]] = {
    "tokens": 5,
    "itl_ms": 0.5,
    "ttft_ms": 200,
    "jitter": 0.2,
    "seed": 7,
    "continues": "prefill",
    "stamp": True,
    "fault": ["first=2", "reset_after=3"],
}
"""A value for each field of a request's ``sim``, in the order of the page; a test sends each."""


def _fields() -> str:
    return table(("field", "for example", "without it", "what it does"), _field_rows())


def _field_rows() -> Iterator[Sequence[str]]:
    flags = declared(SimSettings)
    for name, example in EXAMPLES.items():
        flag = flags.get(name)
        default = f"`{flag.flag}`" if flag is not None else ""
        text = ONLY_IN_REQUESTS.get(name) or (flag.help if flag is not None else "")
        yield f"`{name}`", f"`{json.dumps(example)}`", default, text


def _flags() -> str:
    rows = (
        (f"`{each.flag}`", f"`{each.shown(each.default)}`" if each.default not in ("", []) else "", each.help)
        for each in declared(SimSettings).values()
    )
    return table(("flag", "default", "what it does"), rows)


def _faults() -> str:
    rows = (
        (f"`{name}={max(fault.low, 3)}`" if fault.default is None else f"`{name}`", fault.help)
        for name, fault in FAULTS.items()
    )
    return table(("fault", "what it does"), rows)


def _doors() -> str:
    rows = (
        (f"`{path}`", (route.respond.__doc__ or "").strip())
        for path, route in ROUTES.items()
        if path.startswith("/sim/")
    )
    return table(("path", "what it does"), rows)


BLOCKS: Final[dict[str, Callable[[], str]]] = {"fields": _fields, "flags": _flags, "faults": _faults, "doors": _doors}


def render(page: str) -> str:
    """The page with every table as the declarations have it."""
    return rendered(page, BLOCKS)


if __name__ == "__main__":
    path = Path(sys.argv[1]) / PAGE
    path.write_text(render(path.read_text("utf-8")), "utf-8")
    print(path)
