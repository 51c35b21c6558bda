"""The reference pages are what their declarations say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longwire.observe.declarations import METRICS
from longwire.observe.reference import COMMAND, PAGES, QUERIES, error_classes, errors_page, write_pages
from longwire.words.errors import LongwireError, Overloaded
from longwire.words.reasons import CloseReason

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"run: {COMMAND}"


def test_pages_are_written_where_asked(tmp_path: Path) -> None:
    assert [path.name for path in write_pages(tmp_path)] == list(PAGES)
    assert (tmp_path / "errors.md").read_text(encoding="utf-8") == errors_page()


def test_every_error_and_reason_has_a_row() -> None:
    page = errors_page()
    assert Overloaded in error_classes()
    for error in error_classes():
        if error is not LongwireError:
            assert page.count(f"\n| `{error.code}` |") >= 1
            assert error.__doc__
    for reason in CloseReason:
        assert f"\n| `{reason.value}` | " in page


def test_error_codes_are_unique() -> None:
    codes = [error.code for error in error_classes()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("query", [query for _, query in QUERIES])
def test_queries_name_metrics_that_exist(query: str) -> None:
    names = {metric.name for metric in METRICS}
    used = {re.sub(r"_(bucket|count|sum)\Z", "", word) for word in re.findall(r"longwire_\w+", query)}
    assert used
    assert used <= names
