"""Results for people, for programs and for CI; and the page of rows, which is made from the rows."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest
from tests.architecture.source import ROOT

from longwire.conform import report
from longwire.conform.page import render, results
from longwire.conform.playing import Result, State
from longwire.conform.row import Case
from longwire.conform.rows import ROWS, choose

PAGE = ROOT / "docs" / "conformance.md"


def result(name: str, state: State, wrong: str = "") -> Result:
    return Result(Case(choose(name)[0], "chat", True), state, "200, whole", wrong, 0.25)


RESULTS = [
    result("crlf", "passed"),
    result("cr", "failed", "a \x00 character & <more>"),
    result("two-readers", "not offered", "no Location"),
    result("replay-by-location", "offered"),
]


def test_the_page_of_rows_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render(page) == page, "run python -m longwire.conform.page docs/conformance.md"


def test_a_line_for_what_is_well_and_the_story_of_what_is_not() -> None:
    assert report.lines(RESULTS[0]) == ["ok          framing      crlf[chat-stream]"]
    told = "\n".join(report.lines(RESULTS[1]))
    assert all(word in told for word in ("FAIL", "sent", "must come", "came", "so"))
    assert len(report.lines(RESULTS[0], verbose=True)) > 1


def test_only_required_rows_fail() -> None:
    assert report.has_failed(RESULTS)
    assert not report.has_failed([each for each in RESULTS if each.state != "failed"])
    assert report.summary(RESULTS, 2.4) == "4 rows, 4 cases in 2 s: 1 passed, 1 failed, 1 offered, 1 not offered"


def test_junit_has_a_case_for_each_and_can_be_read() -> None:
    root = ET.fromstring(report.to_junit(RESULTS, "a gateway", 1.5))
    assert [suite.get("name") for suite in root] == ["framing", "resume", "readers"]
    assert [case.get("name") for case in root.iter("testcase")] == [
        "crlf[chat-stream]",
        "cr[chat-stream]",
        "replay-by-location[chat-stream]",
        "two-readers[chat-stream]",
    ]
    assert root[0].get("failures") == "1" and len(list(root.iter("failure"))) == 1
    assert len(list(root.iter("skipped"))) == 1


def test_json_has_everything() -> None:
    whole = json.loads(json.dumps(report.to_json(RESULTS, "a gateway", 1.5)))
    assert whole["counts"] == {"passed": 1, "failed": 1, "not offered": 1, "offered": 1}
    assert whole["cases"][1]["wrong"] == RESULTS[1].wrong
    assert whole["cases"][2]["required"] is False


def test_results_of_several_gateways_stand_side_by_side() -> None:
    """A row counts where none of its forms is wrong; what was left out was not tried."""
    whole = report.to_json(RESULTS, "a gateway", 1.5)
    nothing = report.to_json([result("crlf", "left out")], "another", 0.5)
    told = results({"One": whole, "Other": nothing})
    assert "| framing | 1 of 2 | – |" in told  # noqa: RUF001 - as in the table
    assert "| readers (optional) | 0 of 1 | – |" in told  # noqa: RUF001
    assert told.endswith("One fails: `cr`.\n\nOther fails: nothing.\n")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_can_be_explained(row: object) -> None:
    told = report.explain(row)  # type: ignore[arg-type]
    assert "why" in told and "seen in" in told
