"""A result, or a comparison of two, as Markdown that also reads well in a terminal.

What lives here: which figures are shown first, and how. What must not: any figure's definition or computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .comparison import Difference
from .declarations import MEASURES
from .result import Result

Row = Sequence[str]

ALWAYS = (
    "load.sent", "load.complete", "load.requests_per_s", "ttfb.p50_ms", "ttfb.p99_ms", "ttfb.over_800_share", "ttft.p50_ms",
    "ttft.p99_ms", "ttft_scheduled.p99_ms", "itl.p50_ms", "itl.p99_ms", "tpot.mean_ms", "e2e.p50_ms", "e2e.p99_ms",
    "tokens.stream_per_s.p50", "tokens.per_s", "sigma2_tps.variance", "sigma2_tps.cv", "sigma2_tps.periodic",
    "sigma2_tps.poisson",
    "ir.share", "ir.per_1000_tokens", "failures.share", "client.late.p99_ms", "client.loop_lag.p99_ms", "client.cpu_share",
)  # fmt: skip
"""Figures that every report shows; others only where they are not zero. All of them are in the JSON."""
WHERE_NOT_ZERO = ("load.", "ir.", "order.", "failures.", "resume.", "chaos.")


def result_markdown(result: Result) -> str:
    """The whole report."""
    plan = result["plan"]
    control = result.get("control")
    repeats = len(result["metrics"]["load.sent"]["repeats"])
    lines = [
        f"# {result['target']}, {result['model']}",
        "",
        (
            f"{made_of(plan)}. {repeats} repeat{'s' * (repeats > 1)} of {plan['duration_s']:g} s "
            f"after {plan['warm_up_s']:g} s of warm-up, {result['made_at']}."
        ),
        (
            f"Client: {result['machine']['cpu']}, {result['machine']['cores']} cores, {result['machine']['system']}, "
            f"Python {result['machine']['python']}, load average {result['machine']['load_average'][0]}."
        ),
        "",
        *(f"**NOT VALID:** {problem}\n" for problem in result["problems"]),
        *table(("figure", "value", "95 % interval", *(("control",) if control else ())), _rows(result, control)),
    ]
    if result["examples"]:
        lines += ["", "First of each kind of failure:", ""]
        lines += [f"- {word}: {text}" for word, text in sorted(result["examples"].items())]
    if control and "differences" in control:
        lines += ["", f"Added to {control['target']}, in pairs of repeats:", ""]
        lines += table(("figure", "added", "95 % interval"), _added(control["differences"]))
    return "\n".join([*lines, ""])


def made_of(plan: dict[str, Any]) -> str:
    """The load in words."""
    if plan["concurrency"]:
        load = f"{plan['concurrency']} streams at a time"
    elif plan["ramp"]:
        load = f"{plan['ramp'].replace(':', ' to ')} requests/s, {plan['arrivals']}"
    else:
        load = f"{plan['rate']:g} requests/s, {plan['arrivals']}"
    bursts = f", {plan['burst'].replace('@', ' more each ')} s" if plan["burst"] else ""
    chaos = f", while {', '.join(plan['chaos'])}" if plan["chaos"] else ""
    return f"{load}{bursts}, {plan['tokens']} tokens each, door {plan['door']}{chaos}"


def _rows(result: Result, control: dict[str, Any] | None) -> Iterator[Row]:
    metrics = result["metrics"]
    for measure in MEASURES:
        for path in measure.paths:
            found = metrics[path]
            is_worth_it = (
                path.startswith(WHERE_NOT_ZERO) and found["value"] and not path.endswith(("mean_ms", "p90_ms"))
            )
            if path in ALWAYS or is_worth_it:
                row = [path, shown(found["value"]), interval(found)]
                yield [*row, shown(control["metrics"][path]["value"])] if control else row


def _added(differences: dict[str, Any]) -> Iterator[Row]:
    for path in ("ttfb.p50_ms", "ttfb.p99_ms", "ttft.p50_ms", "ttft.p99_ms", "itl.p50_ms", "itl.p99_ms", "e2e.p50_ms"):
        if path in differences:
            yield path, shown(differences[path]["value"]), interval(differences[path])


def comparison_markdown(names: tuple[str, str], found: Iterable[Difference], doubts: Iterable[str]) -> str:
    """Two results side by side. Figures without a shown difference are listed where every report has them."""
    rows = (
        [
            each.path,
            shown(each.before),
            shown(each.after),
            shown(each.change.value),
            interval({"low": _or_none(each.change.low), "high": _or_none(each.change.high)}),
            each.verdict,
        ]
        for each in found
        if each.path in ALWAYS or each.verdict
    )
    head = ("figure", names[0], names[1], "difference", "95 % interval", "shown")
    notes = [f"- {doubt}" for doubt in doubts]
    return "\n".join([*table(head, rows), *(["", "Mind that:", "", *notes] if notes else []), ""])


def _or_none(value: float) -> float | None:
    return value if value == value else None


def shown(value: float | None) -> str:
    """A figure for people: four digits, and a dash where there is none."""
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def interval(found: dict[str, Any]) -> str:
    """The bounds; a dash for one that is not known."""
    if found["low"] is None and found["high"] is None:
        return ""
    return f"{shown(found['low'])} to {shown(found['high'])}"


def table(head: Row, rows: Iterable[Row]) -> list[str]:
    """A Markdown table whose columns are aligned in the source too: text to the left, figures to the right."""
    lines = [list(head), *map(list, rows)]
    wide = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rules = ["-" * wide[0], *("-" * (width - 1) + ":" for width in wide[1:])]
    aligned = [
        [
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, wide, strict=True))
        ]
        for line in lines
    ]
    return [f"| {' | '.join(cells)} |" for cells in (aligned[0], rules, *aligned[1:])]
