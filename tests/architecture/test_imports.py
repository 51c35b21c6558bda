"""Dependencies point down, and the picture of them is true.

What lives here: the layers, what a room must not know besides what lies above it, and the few exceptions, each with its reason.
What must not: the drawing (render.py).
"""

from __future__ import annotations

import pytest

from .render import ARCHITECTURE, BLOCKS, COMMAND, block_of
from .source import Import, imports, module_of, modules, ours, room_of

LAYERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("tools", frozenset({"__main__", "cli", "bench", "conform", "sim", "client"})),
    ("processes", frozenset({"processes"})),
    ("lifecycle", frozenset({"lifecycle", "operation", "adopt", "rereading", "reading", "groundwork"})),
    ("keeper", frozenset({"keeper"})),
    ("server", frozenset({"server"})),
    ("gateway", frozenset({"gateway"})),
    ("generation", frozenset({"generation"})),
    ("parts", frozenset({"secondpart", "endings", "waiting"})),
    ("stages", frozenset({"admission", "engines", "streams"})),
    ("shapes", frozenset({"wire", "dialects", "sockets"})),
    ("words", frozenset({"words"})),
)
"""From the top down. A room knows what lies below its layer: never what lies above, never its neighbours."""

ASIDE = frozenset({"observe", "admin", "longwire"})
"""Rooms beside the layers, with rules of their own (``test_observe_and_admin_stand_aside``, ``test_the_root_is_empty``)."""

NEIGHBOURS: dict[tuple[str, str], str] = {
    ("__main__", "cli"): "the command line where its script is not on the path",
    ("cli", "sim"): "`longwire sim`",
    ("cli", "bench"): "`longwire bench`",
    ("bench", "sim"): "the answers that are known beforehand",
    ("cli", "conform"): "`longwire conform`",
    ("lifecycle", "adopt"): "taking over into the rooms that lifecycle built",
    ("adopt", "rereading"): "finding the index of a log again",
    ("lifecycle", "reading"): "the process beside this one that reads large bodies",
    ("lifecycle", "groundwork"): "what must be there before a house can be built",
    ("lifecycle", "operation"): "what an operator sees of the rooms that lifecycle built",
}
"""Imports within a layer that are meant."""

NOT_EVEN_BELOW: dict[tuple[str, str], str] = {
    ("server", "longwire.engines"): "clients meet engines only through the gateway",
    ("server", "longwire.streams.log"): "how a log lies in memory is the streams' own matter",
    ("engines", "longwire.dialects"): "N adapters and M dialects, not N x M",
    ("keeper", "longwire.server"): "what keeps the shards alive must not fall with what runs in them",
    ("keeper", "longwire.gateway"): "what keeps the shards alive must not fall with what runs in them",
    ("keeper", "longwire.admission"): "what keeps the shards alive must not fall with what runs in them",
    ("keeper", "longwire.engines"): "what keeps the shards alive must not fall with what runs in them",
    ("keeper", "longwire.wire"): "nothing that came from outside is parsed there",
    ("keeper", "longwire.dialects"): "nothing that came from outside is parsed there",
    ("streams", "longwire.wire"): "a log knows no HTTP",
    ("streams", "longwire.dialects"): "what an event says is not a log's matter",
    ("admission", "longwire.wire"): "identity and limits know no HTTP",
    ("admission", "longwire.dialects"): "identity and limits know no API",
    ("sim", "longwire.lifecycle"): "the stand-in shares the wire code and nothing else",
    ("sim", "longwire.server"): "the stand-in shares the wire code and nothing else",
    ("sim", "longwire.gateway"): "the stand-in shares the wire code and nothing else",
    ("sim", "longwire.engines"): "the stand-in shares the wire code and nothing else",
    ("sim", "longwire.streams"): "the stand-in shares the wire code and nothing else",
    **{
        ("conform", f"longwire.{room}"): "a suite for any gateway knows nothing of this one's inside"
        for room in ("lifecycle", "keeper", "server", "gateway", "admission", "engines", "streams", "dialects")
    },
    ("client", "longwire.lifecycle"): "a client's program must not load a gateway",
    ("client", "longwire.server"): "a client's program must not load a gateway",
    ("client", "longwire.gateway"): "a client's program must not load a gateway",
    ("client", "longwire.engines"): "a client's program must not load a gateway",
    ("client", "longwire.streams"): "a client's program must not load a gateway",
    ("client", "longwire.wire"): "a client's program must not need httptools",
}
"""Downward, and forbidden all the same."""

NO_WAITING: dict[str, frozenset[str]] = {
    "words": frozenset({"asyncio", "socket", "ssl", "selectors", "threading"}),
    "wire": frozenset({"asyncio", "socket", "ssl", "selectors", "threading"}),
    "dialects": frozenset({"asyncio", "socket", "ssl", "selectors", "threading"}),
    "gateway": frozenset({"asyncio", "socket", "ssl", "selectors", "threading"}),
    "admission": frozenset({"asyncio", "socket", "ssl", "selectors", "threading"}),
    "streams": frozenset({"asyncio", "ssl", "selectors", "threading"}),
}
"""Rooms that decide and never wait: values in, values out. They cannot import what waits."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("longwire.keeper.__main__", "longwire.observe.jsonlog"): "the lines of a keeper that goes on look like all others",
    ("longwire.words.clock", "asyncio"): "the real clock is the loop's own; others take the protocol",
}
"""``(module, import)`` that break a rule and may. Keep it short: a test fails for one that is not needed any more."""

RUN_BY_PATH = ("longwire.engines.local_child", "longwire.engines.local_install")
"""Files that are started by their path, in a process where the project may not be importable."""


def rank(room: str) -> int:
    """How deep a room's layer lies."""
    return next(depth for depth, (_, rooms) in enumerate(LAYERS) if room in rooms)


def between_rooms() -> list[Import]:
    """Imports from one room of a layer into another."""
    return [
        each
        for each in ours()
        if each.module.room not in ASIDE
        and room_of(each.target) not in ASIDE
        and room_of(each.target) != each.module.room
    ]


def is_excepted(each: Import) -> bool:
    return any(each.module.name == module and _covers(what, each.target) for module, what in EXCEPTIONS)


def _covers(prefix: str, target: str) -> bool:
    return target == prefix or target.startswith(prefix + ".")


def _shown(found: list[Import]) -> list[str]:
    return [str(each) for each in found if not is_excepted(each)]


def test_every_room_has_a_place() -> None:
    """A new room gets a line in LAYERS before it gets an import."""
    placed = {room for _, rooms in LAYERS for room in rooms} | ASIDE
    assert {module.room for module in modules()} == placed


def test_dependencies_point_down() -> None:
    """Tools, lifecycle, keeper, server, gateway, stages, shapes, words; within a layer only what NEIGHBOURS names."""
    wrong = [
        each
        for each in between_rooms()
        if rank(room_of(each.target)) <= rank(each.module.room)
        and (each.module.room, room_of(each.target)) not in NEIGHBOURS
    ]
    assert _shown(wrong) == []


def test_stage_rooms_never_meet() -> None:
    """Said once more by itself, because this is the rule that is broken first."""
    stages = dict(LAYERS)["stages"]
    wrong = [each for each in between_rooms() if each.module.room in stages and room_of(each.target) in stages]
    assert _shown(wrong) == []


@pytest.mark.parametrize(("room", "what"), NOT_EVEN_BELOW, ids=lambda part: part.removeprefix("longwire."))
def test_what_a_room_must_not_know(room: str, what: str) -> None:
    """The right-hand column of the table of rooms."""
    wrong = [each for each in ours() if each.module.room == room and _covers(what, each.target)]
    assert _shown(wrong) == [], NOT_EVEN_BELOW[room, what]


@pytest.mark.parametrize("room", NO_WAITING)
def test_rooms_that_decide_cannot_wait(room: str) -> None:
    """Decide synchronously, act asynchronously: no socket, no loop, no thread in reach."""
    wrong = [
        each for each in imports() if each.module.room == room and each.target.partition(".")[0] in NO_WAITING[room]
    ]
    assert _shown(wrong) == []


def test_observe_and_admin_stand_aside() -> None:
    """Both see words only; of observe the data plane sees the plain counters only; nobody but who starts it sees admin."""
    knows = {"observe": {"observe", "words"}, "admin": {"admin", "observe", "words"}}
    wrong = [
        each for each in ours() if each.module.room in knows and room_of(each.target) not in knows[each.module.room]
    ]
    for each in ours():
        room, target = each.module.room, each.target
        if (
            room not in {"observe", "lifecycle", "operation", "groundwork", "processes"}
            and target != "longwire.observe.machine.memory_limit_bytes"
            and _covers("longwire.observe", target)
        ):
            wrong += [each] if not _covers("longwire.observe.instruments", target) else []
        if room not in {"admin", "lifecycle", "processes"} and _covers("longwire.admin", target):
            wrong.append(each)
    assert _shown(wrong) == []


def test_tools_are_imported_by_the_command_line_only() -> None:
    """A gateway runs without its tools; the stand-in that it starts for ``--engine sim`` is a process of its own."""
    tools = dict(LAYERS)["tools"]
    wrong = [
        each
        for each in ours()
        if room_of(each.target) in tools and each.module.room not in {*tools, room_of(each.target)}
    ]
    assert _shown(wrong) == []


def test_the_root_is_empty() -> None:
    """``import longwire`` costs nothing and does nothing: what the root needs, it imports inside its ``__getattr__``."""
    root = next(module for module in modules() if module.name == "longwire")
    first_lines = {node.lineno for node in root.tree.body}
    at_once = [each.target for each in imports() if each.module is root and each.line in first_lines]
    assert at_once == ["__future__.annotations"]
    assert [str(each) for each in ours() if each.module is root] == []


@pytest.mark.parametrize("name", RUN_BY_PATH)
def test_files_run_by_path_need_nothing_of_the_project(name: str) -> None:
    assert [str(each) for each in ours() if each.module.name == name] == []


def test_modules_form_no_cycle() -> None:
    """Not within a room either. What is imported for type checkers only may point back."""
    edges: dict[str, set[str]] = {module.name: set() for module in modules()}
    for each in ours():
        found = module_of(each.target)
        if found is not None and found is not each.module and not each.for_types_only:
            edges[each.module.name].add(found.name)
    while leaves := {name for name, targets in edges.items() if not targets}:
        edges = {name: targets - leaves for name, targets in edges.items() if name not in leaves}
    assert edges == {}


def test_no_exception_outlives_its_need() -> None:
    stale = {
        key: why
        for key, why in EXCEPTIONS.items()
        if not any(each.module.name == key[0] and _covers(key[1], each.target) for each in imports())
    }
    assert stale == {}
    assert set(NEIGHBOURS) <= {(each.module.room, room_of(each.target)) for each in ours()}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_rendered_part_is_up_to_date(name: str) -> None:
    """Pictures and tables in ARCHITECTURE.md come from the code."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    assert block_of(page, name) == BLOCKS[name](), f"run: {COMMAND}"
