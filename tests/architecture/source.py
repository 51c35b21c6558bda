"""The project's own source, parsed once, for the tests of its shape.

What lives here: modules, rooms, imports and definitions as values.
What must not: any rule about them (the tests' business).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "longwire"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """``words`` of ``longwire.words.ids``; a file that stands alone is a room of its own; the root is ``longwire``."""
        return room_of(self.name)

    @property
    def place(self) -> str:
        """The path as a person would type it."""
        return self.path.relative_to(ROOT).as_posix()


class Import(NamedTuple):
    """One imported name. ``target`` is absolute: ``longwire.words.ids.Cursor``, ``asyncio``."""

    module: Module
    target: str
    line: int
    for_types_only: bool

    def __str__(self) -> str:
        return f"{self.module.place}:{self.line} imports {self.target}"


class Definition(NamedTuple):
    """A function or class with the names of what it stands in."""

    module: Module
    qualname: str
    node: Function | ast.ClassDef
    owner: ast.ClassDef | None

    def __str__(self) -> str:
        return f"{self.module.place}:{self.node.lineno} {self.qualname}"

    @property
    def dotted(self) -> str:
        return f"{self.module.name}.{self.qualname}"

    @property
    def length(self) -> int:
        """Lines from ``def`` to the end; decorators are not counted."""
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1


def room_of(dotted: str) -> str:
    """The room of a module or of a name in one."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


@cache
def modules() -> tuple[Module, ...]:
    """Every file of the package, by name."""
    return tuple(_read(path) for path in sorted(PACKAGE.rglob("*.py")))


def _read(path: Path) -> Module:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    text = path.read_text(encoding="utf-8")
    return Module(".".join(parts), path, text, ast.parse(text, str(path)))


@cache
def imports() -> tuple[Import, ...]:
    """Every import of every module, those inside functions included."""
    return tuple(found for module in modules() for found in _imports_of(module))


def ours() -> list[Import]:
    """The imports from within the project."""
    return [each for each in imports() if each.target.partition(".")[0] == "longwire"]


def _imports_of(module: Module) -> Iterator[Import]:
    typing_only = {
        id(node)
        for block in ast.walk(module.tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(module, name, node.lineno, id(node) in typing_only)


def _base(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of the module that ``from ... import`` names."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    package = parts if module.path.name == "__init__.py" else parts[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def module_of(target: str) -> Module | None:
    """The file that an imported name comes from; None where it is not ours."""
    known = _by_name()
    while target and target not in known:
        target = target.rpartition(".")[0]
    return known.get(target)


@cache
def _by_name() -> dict[str, Module]:
    return {module.name: module for module in modules()}


@cache
def definitions() -> tuple[Definition, ...]:
    """Every function and class, nested ones included."""
    return tuple(found for module in modules() for found in _definitions_in(module, module.tree, "", None))


def functions() -> list[Definition]:
    """Every function and method."""
    return [each for each in definitions() if not isinstance(each.node, ast.ClassDef)]


def _definitions_in(module: Module, parent: ast.AST, prefix: str, owner: ast.ClassDef | None) -> Iterator[Definition]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            qualname = f"{prefix}.{node.name}" if prefix else node.name
            yield Definition(module, qualname, node, owner)
            inner = node if isinstance(node, ast.ClassDef) else None
            yield from _definitions_in(module, node, qualname, inner)
        else:
            yield from _definitions_in(module, node, prefix, owner)
