"""docs/faults.md is complete: every row is there, every test that it names exists, and every test by number is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "faults.md"

ROWS = [
    *[1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 19, 20, 21, 22],
    *[23, 24, 25, 26, 27, 28, 29, 30, 32, 33],
    *[47, 48, 49, 51, 52, 54, 55, 56, 58],
]
"""Every report on framing, truthful endings and disconnects; numbers between belong to other subjects."""

_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(test_\d+_\w+)`")


def rows() -> dict[int, str]:
    """Row number to the cell that says how it is proven."""
    found = [(int(match[1]), match[4]) for match in _ROW.finditer(PAGE.read_text(encoding="utf-8"))]
    assert len(found) == len(dict(found)), "a row stands there twice"
    return dict(found)


def numbered_tests() -> set[str]:
    """Every test whose name begins with a row's number."""
    names: set[str] = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and re.match(r"test_\d+_", node.name):
                names.add(node.name)
    return names


def test_every_row_is_there_and_no_other() -> None:
    assert sorted(rows()) == sorted(ROWS)


def test_every_row_names_its_tests_or_says_why_it_has_none() -> None:
    for number, proof in rows().items():
        assert _TEST.search(proof) or proof.strip().startswith(("not yet: ", "not here: ")), number


def test_the_tests_that_are_named_exist_and_those_that_exist_are_named() -> None:
    named = {name for proof in rows().values() for name in _TEST.findall(proof)}
    assert named == numbered_tests()


def test_a_test_proves_its_own_row() -> None:
    """Its number is that of a row that names it (it may prove others as well)."""
    by_number = rows()
    for name in numbered_tests():
        assert name in by_number[int(name.split("_")[1])], name
