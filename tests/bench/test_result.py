"""Results: combined, written, read back, judged, compared and shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.architecture.source import ROOT
from tests.bench.measured import GO_NS, MS, measured, record

from longwire.bench.comparison import compare, not_alike
from longwire.bench.conditions import failed, parse_condition
from longwire.bench.declarations import PATHS
from longwire.bench.figures import figures_of
from longwire.bench.histogram import bin_of, edge_of, histogram, merged
from longwire.bench.markdown import comparison_markdown, result_markdown, shown
from longwire.bench.outcomes import Cause
from longwire.bench.page import comparison_page, result_page
from longwire.bench.records import Gap
from longwire.bench.result import SCHEMA, Result, make_result, raw_of, read_result, write_result
from longwire.bench.svg import Axis
from longwire.words.errors import SettingsError

PLAN: dict[str, Any] = {
    "rate": 5.0, "ramp": "", "burst": "", "concurrency": 0, "arrivals": "constant", "tokens": 10, "door": "sse", "chaos": [],
    "duration_s": 4.0, "warm_up_s": 1.0,
}  # fmt: skip
MACHINE = {"cpu": "a <cpu>", "cores": 2, "system": "Linux", "python": "3.11", "load_average": [0.1, 0.1, 0.1]}


def result(*slower_ms: float, gaps: bool = False, **plan: Any) -> Result:
    """A repeat for each figure, in which each stream's first token came so much later."""
    repeats = []
    for slower in slower_ms:
        records = [record(number, 1 + number / 10) for number in range(20)]
        for each in records:
            each.times[0] += int(slower * MS)
        if gaps:
            records[0].gaps.append(Gap(3, Cause.ENGINE))
        repeats.append(figures_of(measured(records)))
    return make_result(
        repeats,
        made_at="today",
        target="http://x/v1",
        model="m<1>",
        plan={**PLAN, **plan},
        machine=MACHINE,
        stopped=False,
    )


def test_a_figure_is_the_mean_over_repeats_with_its_interval() -> None:
    found = result(0, 2, 4)["metrics"]["ttft.p50_ms"]
    assert found["value"] == 102 and found["repeats"] == [100, 102, 104]
    assert found["low"] == pytest.approx(102 - 4.303 * 2 / 3**0.5, rel=1e-4)
    assert found["high"] == pytest.approx(102 + 4.303 * 2 / 3**0.5, rel=1e-4)


def test_of_one_repeat_a_percentile_has_its_order_statistics() -> None:
    metrics = result(0)["metrics"]
    assert (metrics["ttft.p50_ms"]["low"], metrics["ttft.p50_ms"]["high"]) == (100, 100)
    assert metrics["ttft.mean_ms"]["low"] is None and metrics["ttft.p99_ms"]["high"] is None


def test_it_is_json_and_comes_back_as_it_was(tmp_path: Path) -> None:
    made = result(0, 1)
    assert made["valid"] and made["schema"] == SCHEMA and set(made["metrics"]) == set(PATHS)
    page = (ROOT / "docs" / "bench.md").read_text("utf-8").partition("## Results")[2].partition("\n## ")[0]
    assert [key for key in made if f"`{key}`" not in page] == [], "every part of the schema is on the page"
    file = tmp_path / "a.json"
    write_result(made, str(file))
    assert read_result(str(file)) == json.loads(json.dumps(made))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no result"),
        ('{"schema": "longwire-bench/99"}', "longwire-bench/99"),
        (json.dumps({"schema": SCHEMA, "metrics": {}, "plan": {}}), "machine, problems, plots is missing"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_result(str(file))
    with pytest.raises(SettingsError, match="cannot be read"):
        read_result(str(tmp_path / "none.json"))


def test_raw_times_count_from_the_start() -> None:
    (only,) = raw_of([record(3, 1.0, head_ns=0)], GO_NS)
    assert only["scheduled_ns"] == 1_000_000_000 and only["head_ns"] is None
    assert only["content_ns"][:2] == [1_101_000_000, 1_121_000_000]


# Conditions.


def test_conditions_are_judged_by_the_mean() -> None:
    metrics = result(0, 2)["metrics"]
    assert failed([parse_condition("ttft.p99_ms > 500"), parse_condition("ir.share>0")], metrics) == []
    assert failed([parse_condition("ttft.p50_ms >= 101")], metrics) == ["ttft.p50_ms >= 101 holds: it is 101."]
    (missing,) = failed([parse_condition("resume.time.p50_ms > 1")], metrics)
    assert "does not exist" in missing


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft.p99 > 500", "did you mean ttft.p9"),
        ("ttft.p99_ms", "a figure, an operator and a number"),
        ("ttft.p99_ms > x", "a figure, an operator and a number"),
        ("ttft.p99_ms > 1e", "a figure, an operator and a number"),
        ("__import__('os') > 1", "a figure, an operator and a number"),
        ("ttft.p99_ms > 1 or 1", "a figure, an operator and a number"),
        ("ttft.p99_ms > --1", "a figure, an operator and a number"),
    ],
)
def test_a_bad_condition_is_refused(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_condition(text)


# Comparison.


def test_pairs_show_what_drifting_repeats_would_hide() -> None:
    """The machine grew slower from repeat to repeat; the second endpoint was 3 ms slower each time."""
    found = {each.path: each for each in compare(result(0, 50, 100, 150, 200), result(3.1, 52.9, 103, 153, 203))}
    ttft = found["ttft.p50_ms"]
    assert ttft.verdict == "worse" and ttft.change.value == pytest.approx(3) and ttft.pairs == 5
    assert found["e2e.p50_ms"].verdict == ""
    assert "resume.time.p50_ms" not in found
    back = {each.path: each for each in compare(result(3.1, 52.9, 103), result(0, 50, 100))}
    assert back["ttft.p50_ms"].verdict == "better"


def test_what_is_not_alike_is_said() -> None:
    other = result(0, rate=9.0, door="chunked")
    other["problems"].append("It was stopped.")
    assert not_alike(result(0), other) == [
        "rate was not the same: 5.0 and 9.0.",
        "The second result is not valid: It was stopped.",
    ]
    assert not_alike(result(0), result(1)) == []


# What people see.


def test_the_markdown_has_the_figures_and_what_is_wrong() -> None:
    made = result(0, 2, gaps=True)
    made["problems"].append("Too late.")
    text = result_markdown(made)
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert lines["ttft.p50_ms"].split("|")[2].strip() == "101"
    assert "ir.gaps_engine" in lines and "failures.reset" not in lines and "resume.cuts" not in lines
    assert "**NOT VALID:** Too late." in text
    assert len({len(line) for line in lines.values()}) == 1, "columns are aligned"
    both = comparison_markdown(("a", "b"), compare(result(0, 1), result(5, 6)), ["mind this"])
    assert "ttft.p50_ms" in both and "worse" in both and "- mind this" in both


def test_figures_for_people() -> None:
    assert [shown(value) for value in (None, 0, 12, 1234.5, 0.012346, float("nan"))] == [
        "-",
        "0",
        "12",
        "1,234",
        "0.01235",
        "-",
    ]


def svgs(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_stands_alone_and_its_plots_are_well_formed() -> None:
    text = result_page(result(0, 2, gaps=True))
    assert "m&lt;1&gt;" in text and "m<1>" not in text and "a &lt;cpu&gt;" in text
    assert not re.search(r"<script|<link|src=|href=|@import|url\(", text)
    titles = [plot.attrib["aria-label"] for plot in svgs(text)]
    assert titles == ["Time to first token", "Time between tokens", "Tokens per second", "Gaps over 500 ms"]
    assert len(svgs(result_page(result(0)))) == 3, "without gaps there is no plot of them"


def test_two_results_share_their_plots() -> None:
    first, second = result(0, 1), result(5, 6)
    text = comparison_page([("before", first), ("after", second)], compare(first, second), ["mind <this>"])
    assert "mind &lt;this&gt;" in text
    ttft = svgs(text)[0]
    assert len(ttft.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_points_lie_where_their_values_are() -> None:
    text = svgs(result_page(result(0)))[2].find("{http://www.w3.org/2000/svg}polyline")
    assert text is not None
    places = [tuple(map(float, point.split(","))) for point in text.attrib["points"].split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places) and len(places) == 5
    lowest = max(y for _, y in places)
    assert places[0][1] == lowest, "nothing arrives before the warm-up's first second is over"


def test_ticks_are_round() -> None:
    assert Axis("", 0, 6).ticks() == [0, 1, 2, 3, 4, 5, 6]
    assert Axis("", 0, 0.9).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert Axis("", 0.01, 100, is_log=True).ticks() == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert Axis("", 50, 500, is_log=True).ticks() == pytest.approx([50, 100, 200, 500])
    assert [Axis("", 1, 100, is_log=True).place(value) for value in (0, 1, 10, 100, 999)] == [0, 0, 0.5, 1, 1]


def test_bins_hold_their_values() -> None:
    for value in (0.011, 0.1, 1, 52.3, 999, 12_345):
        number = bin_of(value)
        assert edge_of(number) <= value * (1 + 1e-9) and value < edge_of(number + 1) * (1 + 1e-9)
    assert bin_of(0) == bin_of(-1) == 0
    assert merged([histogram([1, 1, 50]), histogram([1])]) == {bin_of(1): 3, bin_of(50): 1}
