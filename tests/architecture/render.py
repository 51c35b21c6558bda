"""Pictures, tables and pages that are drawn from the code.

What lives here: the parts of ARCHITECTURE.md between ``<!-- rendered: NAME -->`` and ``<!-- end -->``, and writing them.
What must not: any fact that the code does not hold.

``python -m tests.architecture.render`` in the project's folder writes them all, and docs/api.md; tests require that they are
what this makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from longwire.engines import local_states
from longwire.keeper import states as keeper_states
from longwire.streams import stream

from .api_page import API_PAGE, api_page
from .source import ROOT, ours, room_of

COMMAND: Final = "python -m tests.architecture.render"
ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"

NOT_DRAWN: Final = frozenset({"words", "longwire"})
"""Every room knows the words: an arrow from each would hide all others."""

SHAPES: Final = {
    "cli": "([cli])",
    "bench": "([bench])",
    "sim": "([sim])",
    "client": "([client])",
    "observe": "[/observe/]",
    "admin": "[/admin/]",
}


def dependencies() -> str:
    """Rooms and their imports, without those that a longer way implies."""
    edges: dict[str, set[str]] = {}
    for each in ours():
        start, end = each.module.room, room_of(each.target)
        if start != end and not {start, end} & (NOT_DRAWN | {"__main__"}):
            edges.setdefault(start, set()).add(end)
    rooms = sorted({each.module.room for each in ours()} - NOT_DRAWN - {"__main__"})
    lines = [f"    {room}{SHAPES.get(room, f'[{room}]')}" for room in rooms]
    for start in rooms:
        below = edges.get(start, set())
        implied = {far for near in below for far in _reachable(edges, near)}
        lines += [f"    {start} --> {end}" for end in sorted(below - implied)]
    return _fenced("mermaid", ["flowchart TD", *lines])


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = edges.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found


def stream_states() -> str:
    """The states of a stream, and what may follow which."""
    lines = ["stateDiagram-v2", f"    [*] --> {_word(stream.State.OPENING.name)}"]
    for state, following in stream.TRANSITIONS.items():
        lines += [f"    {_word(state.name)} --> {_word(other.name)}" for other in following]
        if not following:
            lines.append(f"    {_word(state.name)} --> [*]")
    return _fenced("mermaid", lines)


def embedded_engine_states() -> str:
    """What the embedded engine's process is to us, what can happen, what follows, what is done about it."""
    rows = [
        (_word(state.name), _word(signal.name), _word(following.name), ", ".join(_word(each.name) for each in effects))
        for (state, signal), (following, effects) in local_states.TRANSITIONS.items()
    ]
    return "\n".join(_table(("state", "happens", "next", "to do"), rows))


def shard_states() -> str:
    """Where a shard is in its life as the keeper has it, as the shards table says it, what can happen, and what follows."""
    gone = keeper_states.State.GONE
    rows = [
        (_word(state.name), keeper_states.SHOWN[state], _word(event.name), _word(following.name))
        for (state, event), following in sorted(
            keeper_states.TRANSITIONS.items(), key=lambda each: (each[0][0].value, each[0][1].value)
        )
        if state is not gone
    ]
    return "\n".join(_table(("state", "shown as", "happens", "next"), rows))


def _word(name: str) -> str:
    return name.lower()


def _fenced(language: str, lines: Iterable[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_row(head), _row("---" for _ in head), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return re.sub(" +", " ", "| " + " | ".join(cells) + " |")


BLOCKS: Final[dict[str, Callable[[], str]]] = {
    "dependencies": dependencies,
    "stream states": stream_states,
    "embedded engine states": embedded_engine_states,
    "shard states": shard_states,
}


def _find(page: str, name: str) -> re.Match[str]:
    found = re.search(rf"(?<=<!-- rendered: {name} -->\n).*?(?=\n<!-- end -->)", page, re.DOTALL)
    assert found is not None, f"ARCHITECTURE.md has no block {name!r}"
    drawn = BLOCKS[name]().splitlines()[:2]
    assert page.count("\n".join(drawn)) <= 1, f"what block {name!r} draws stands elsewhere in ARCHITECTURE.md too"
    return found


def block_of(page: str, name: str) -> str:
    """What stands between a block's markers."""
    return _find(page, name)[0]


def render(page: str) -> str:
    """The page with every block as the code has it."""
    for name, draw in BLOCKS.items():
        found = _find(page, name)
        page = page[: found.start()] + draw() + page[found.end() :]
    return page


def main() -> None:
    """Write everything that is rendered."""
    ARCHITECTURE.write_text(render(ARCHITECTURE.read_text(encoding="utf-8")), encoding="utf-8")
    API_PAGE.write_text(api_page(), encoding="utf-8")
    print(f"wrote {ARCHITECTURE.relative_to(ROOT)} and {API_PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
