"""The reference pages are what their declarations say."""

from __future__ import annotations

import re

import pytest
from tests.architecture.source import ROOT

from longwire.observe.declarations import METRICS
from longwire.observe.reference import COMMAND, PAGES, QUERIES, error_classes, render
from longwire.words.errors import LongwireError, Overloaded
from longwire.words.reasons import CloseReason


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    page = page_of(name)
    assert all(page.count(f"<!-- rendered: {block} -->") == 1 for block in PAGES[name])
    assert render(name, page) == page, f"run: {COMMAND}"


def test_every_label_has_a_row() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert [
        label for label in sorted(labels) if f"\n| `{label}` | " not in render("metrics.md", page_of("metrics.md"))
    ] == []


def test_every_error_and_reason_has_a_row() -> None:
    page = page_of("errors.md")
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
