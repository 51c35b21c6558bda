"""The parts of docs/conformance.md that are made from the rows and from runs.

What lives here: Markdown, and where in the page it goes. What must not: what a row says (the rows), what came of it (a run).

``python -m longwire.conform.page docs/conformance.md`` writes the table of rows anew. ``python -m longwire.conform.page results
NAME=FILE.json ...`` prints a table of runs that wrote JSON, to be put into the page by hand: a run is a fact of its day and
its versions, and is not made again by itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .report import table
from .row import GROUPS, OPTIONAL
from .rows import ROWS

BEGIN, END = "<!-- made from the rows -->\n", "<!-- end -->"


def render(page: str) -> str:
    """The page with the table of rows as the rows are."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN.strip()} with an {END} behind it")
    return f"{before}{BEGIN}\n{table(ROWS)}\n{END}{after}"


def results(runs: dict[str, dict[str, Any]]) -> str:
    """For each group how many rows each gateway passes or offers, and which required ones it fails."""
    lines = ["| | " + " | ".join(runs) + " |", "| --- |" + " --- |" * len(runs)]
    for group in GROUPS:
        cells = [_cell([case for case in run["cases"] if case["group"] == group]) for run in runs.values()]
        lines.append(f"| {group}{' (optional)' if group in OPTIONAL else ''} | " + " | ".join(cells) + " |")
    for name, run in runs.items():
        failed = list(dict.fromkeys(case["row"] for case in run["cases"] if case["state"] == "failed"))
        lines += ["", f"{name} fails: {', '.join(f'`{row}`' for row in failed) or 'nothing'}."]
    return "\n".join(lines) + "\n"


def _cell(cases: list[dict[str, Any]]) -> str:
    """Rows without a wrong form, of those that were tried."""
    tried = [case for case in cases if case["state"] != "left out"]
    rows = {case["row"] for case in tried}
    wrong = {case["row"] for case in tried if case["state"] in ("failed", "not offered")}
    return f"{len(rows - wrong)} of {len(rows)}" if rows else "–"  # noqa: RUF001 - in a table


def main(arguments: list[str]) -> None:
    """Write the page, or print results."""
    if arguments[:1] == ["results"]:
        named = (argument.partition("=") for argument in arguments[1:])
        runs = {name: json.loads(Path(file).read_text(encoding="utf-8")) for name, _, file in named}
        print(results(runs), end="")
        return
    (name,) = arguments
    path = Path(name)
    path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
