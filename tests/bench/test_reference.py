"""docs/bench.md has every declared word, and no other table."""

from __future__ import annotations

from tests.architecture.source import ROOT

from longwire.bench.declarations import MEASURES, PATHS
from longwire.bench.reference import BLOCKS, COMMAND, PAGE, render

PAGE_PATH = ROOT / "docs" / PAGE


def test_the_page_is_up_to_date() -> None:
    page = PAGE_PATH.read_text("utf-8")
    assert all(page.count(f"<!-- rendered: {name} -->") == 1 for name in BLOCKS)
    assert render(page) == page, f"run: {COMMAND}"


def test_every_figure_has_a_definition_and_one_path() -> None:
    assert len(PATHS) == sum(len(list(each.paths)) for each in MEASURES)
    assert all(each.help.endswith(".") for each in MEASURES)
