"""What came of a run, for people and for machines.

What lives here: lines, JSON and JUnit XML from results. What must not: files and the terminal (the command).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree as ET

from .playing import Result, State
from .row import GROUPS, OPTIONAL, Row

SIGNS: dict[State, str] = {
    "passed": "ok",
    "failed": "FAIL",
    "offered": "offered",
    "not offered": "not offered",
    "left out": "left out",
}


def lines(result: Result, *, verbose: bool = False) -> list[str]:
    """One line for what is well; what was sent, what must come and what came for what is not."""
    row = result.case.row
    first = f"{SIGNS[result.state]:<11} {row.group:<12} {result.case.name}"
    if result.state in ("passed", "offered") and not verbose:
        return [first]
    told = [("sent", row.sent), ("must come", row.must), ("came", result.came)]
    if result.wrong:
        told.append(("so", result.wrong))
    return [first, *(f"    {name:<10} {text}" for name, text in told if text)]


def summary(results: Sequence[Result], took_s: float) -> str:
    """All of it in a sentence."""
    counts = Counter(result.state for result in results)
    parts = [f"{counts[state]} {state}" for state in SIGNS if counts[state]]
    rows = len({result.case.row.name for result in results})
    return f"{rows} rows, {len(results)} cases in {took_s:.0f} s: {', '.join(parts) or 'nothing'}"


def has_failed(results: Iterable[Result]) -> bool:
    """A required row has."""
    return any(result.state == "failed" for result in results)


def to_json(results: Sequence[Result], subject: str, took_s: float) -> dict[str, object]:
    """Everything, for another program."""
    counts = Counter(result.state for result in results)
    return {
        "subject": subject,
        "took_s": round(took_s, 3),
        "counts": dict(counts),
        "cases": [
            {
                "name": result.case.name,
                "row": result.case.row.name,
                "group": result.case.row.group,
                "required": result.case.row.is_required,
                "api": result.case.api,
                "streamed": result.case.streamed,
                "state": result.state,
                "sent": result.case.row.sent,
                "must": result.case.row.must,
                "came": result.came,
                "wrong": result.wrong,
                "took_s": round(result.took_s, 3),
                "repeats": result.repeats,
            }
            for result in results
        ],
    }


def to_junit(results: Sequence[Result], subject: str, took_s: float) -> str:
    """JUnit's XML: a suite for each group; what is not offered is skipped."""
    root = ET.Element("testsuites", name=f"conform: {subject}", time=f"{took_s:.3f}")
    for group in GROUPS:
        of_group = [result for result in results if result.case.row.group == group]
        if of_group:
            _add_suite(root, group, of_group)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_suite(root: ET.Element, group: str, results: Sequence[Result]) -> None:
    counts = Counter(result.state for result in results)
    skipped = counts["not offered"] + counts["left out"]
    numbers = {"tests": len(results), "failures": counts["failed"], "skipped": skipped}
    suite = ET.SubElement(root, "testsuite", {"name": group, **{name: str(count) for name, count in numbers.items()}})
    for result in results:
        case = ET.SubElement(
            suite, "testcase", classname=f"conform.{group}", name=result.case.name, time=f"{result.took_s:.3f}"
        )
        row = result.case.row
        if result.state == "failed":
            failure = ET.SubElement(case, "failure", message=printable(result.wrong))
            failure.text = printable(f"sent: {row.sent}\nmust come: {row.must}\ncame: {result.came}")
        elif result.state in ("not offered", "left out"):
            ET.SubElement(case, "skipped", message=printable(result.wrong))


def printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(char if char in "\n\t" or (char >= " " and char not in "\ufffe\uffff") else "?" for char in text)


# About rows.


def explain(row: Row) -> str:
    """What a row is about, and where its kind was seen."""
    kind = "optional: offered or not, never failed" if row.group in OPTIONAL else "required"
    forms = ", ".join(f"{api} {'streamed' if streamed else 'whole'}" for api, streamed in row.forms)
    told = [
        ("group", f"{row.group}: {GROUPS[row.group].lower()} ({kind})"),
        ("forms", forms),
        ("sent", row.sent),
        ("must come", row.must),
        ("why", row.why),
        ("seen in", ", ".join(row.reports) or "no single report; it follows from the formats"),
    ]
    return "\n".join([row.name, *(f"    {name:<10} {text}" for name, text in told)])


def table(rows: Sequence[Row]) -> str:
    """All rows in Markdown, a table for each group."""
    out: list[str] = []
    for group, words in GROUPS.items():
        of_group = [row for row in rows if row.group == group]
        if of_group:
            kind = " (optional)" if group in OPTIONAL else ""
            out += [f"### {group.capitalize()}{kind}", "", f"{words}.", ""]
            out += ["| Row | Sent | Must come | Why | Seen in |", "| --- | --- | --- | --- | --- |"]
            out += [
                f"| `{row.name}` | {row.sent} | {row.must} | {row.why} | {', '.join(row.reports)} |" for row in of_group
            ]
            out.append("")
    return "\n".join(out).replace("{", "&#123;").rstrip() + "\n"
