"""Tables of a page that are made of declarations, between two marks in what people have written.

What lives here: a table, and putting tables in their places. What must not: what any page says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

_BLOCK: Final = re.compile(r"(<!-- rendered: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def rendered(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The page with every table as the declarations have it.

    Raises:
        KeyError: the page asks for a table that there is not.
    """
    return _BLOCK.sub(lambda found: found[1] + blocks[found[2]]() + "\n" + found[3], page)
