"""Results as one HTML file that needs nothing else.

What lives here: which plots there are and what is in each, and the page around them.
What must not: drawing (svg.py), tables (markdown.py has the rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from .comparison import Difference
from .declarations import PATHS
from .histogram import edge_of
from .markdown import ALWAYS, interval, made_of, shown
from .outcomes import Cause
from .result import Result
from .svg import Axis, Line, dot_plot, line_plot

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .15rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child { text-align: left; } .bad { color: #b5332e; font-weight: bold; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1rem; }
svg text { font: 11px system-ui, sans-serif; fill: #444; } svg .title { font-weight: bold; fill: #222; }
svg .grid { stroke: #e5e5e5; stroke-width: 1; }
"""

Named = Sequence[tuple[str, Result]]


def result_page(result: Result) -> str:
    """One result."""
    parts = [f"<h1>{escape(result['target'])}, {escape(result['model'])}</h1>", *_facts(result), *plots([("", result)])]
    rows = [
        (path, shown(found["value"]), interval(found))
        for path, found in result["metrics"].items()
        if found["value"] is not None
    ]
    parts += _table(("figure", "value", "95 % interval"), rows)
    return page(f"longwire bench: {result['target']}", parts)


def comparison_page(named: Named, found: Sequence[Difference], doubts: Sequence[str]) -> str:
    """Two results: their plots laid over each other, and the differences."""
    parts = ["<h1>Comparison</h1>"]
    for name, result in named:
        parts += [f"<h2>{escape(name)}: {escape(result['target'])}</h2>", *_facts(result)]
    parts += [f'<p class="bad">{escape(doubt)}</p>' for doubt in doubts]
    parts += plots(named)
    rows = [
        (each.path, shown(each.before), shown(each.after), shown(each.change.value), each.verdict)
        for each in found
        if each.path in ALWAYS or each.verdict
    ]
    parts += _table(("figure", named[0][0], named[1][0], "difference", "shown"), rows)
    return page("longwire bench: comparison", parts)


def page(title: str, parts: Sequence[str]) -> str:
    """The document around it."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return "\n".join([f'<!doctype html><html lang="en"><head>{head}</head><body>', *parts, "</body></html>", ""])


def _facts(result: Result) -> Iterator[str]:
    machine = result["machine"]
    yield f"<p>{escape(made_of(result['plan']))}. {escape(result['made_at'])}</p>"
    yield f"<p>Client: {escape(machine['cpu'])}, {machine['cores']} cores, {escape(machine['system'])}.</p>"
    yield from (f'<p class="bad">NOT VALID: {escape(problem)}</p>' for problem in result["problems"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in rows:
        title = PATHS[row[0]].help if row[0] in PATHS else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f'<tr title="{escape(title)}">{cells}</tr>')
    return [*lines, "</table>"]


def plots(named: Named) -> list[str]:
    """The plots of one result, or of several over each other."""
    drawn = [
        _distribution("Time to first token", "ttft_ms", named),
        _distribution("Time between tokens", "itl_ms", named),
        _over_time(named),
        _gaps(named),
    ]
    return ['<div class="plots">', *(f"<div>{plot}</div>" for plot in drawn if plot), "</div>"]


def _distribution(title: str, key: str, named: Named) -> str:
    """Which share of the values is at or below each time."""
    lines = [Line(name, _cumulative(result["plots"][key])) for name, result in named]
    places = [x for line in lines for x, _ in line.points]
    if not places:
        return ""
    across = Axis("ms", max(0.01, min(places)), max(*places, min(places) * 10), is_log=True)
    return line_plot(title, across, Axis("share at or below", 0, 1), lines)


def _cumulative(bins: list[list[int]]) -> list[tuple[float, float]]:
    total = sum(count for _, count in bins)
    points: list[tuple[float, float]] = []
    seen = 0
    for number, count in bins:
        points.append((edge_of(number), seen / total))
        seen += count
        points.append((edge_of(number + 1), seen / total))
    return points


def _over_time(named: Named) -> str:
    """Tokens in each second: of one result a line for each repeat, of several the mean of each."""
    lines = []
    for name, result in named:
        repeats: list[list[int]] = result["plots"]["tokens_by_second"]
        if len(named) == 1:
            lines += [Line(f"repeat {number}", list(enumerate(each))) for number, each in enumerate(repeats, 1)]
        else:
            means = [sum(second) / len(second) for second in zip(*repeats, strict=False)]
            lines.append(Line(name, list(enumerate(means))))
    highest = max((y for line in lines for _, y in line.points), default=0.0)
    longest = max((x for line in lines for x, _ in line.points), default=0.0)
    if not longest:
        return ""
    return line_plot(
        "Tokens per second", Axis("s since the start", 0, longest), Axis("tokens/s", 0, highest or 1), lines
    )


def _gaps(named: Named) -> str:
    """Each gap over 500 ms: of one result by cause, of several by result."""
    dots: dict[str, list[tuple[float, float]]] = {}
    for name, result in named:
        for at_s, gap_ms, cause in _all_gaps(result):
            dots.setdefault(cause if len(named) == 1 else name, []).append((at_s, gap_ms))
    points = [point for each in dots.values() for point in each]
    if not points:
        return ""
    across = Axis("s since the start", 0, max(x for x, _ in points) or 1)
    up = Axis("ms", 0, max(1000.0, *(y for _, y in points)))
    order = [*(cause.word for cause in Cause), *(name for name, _ in named)]
    lines = [Line(name, dots[name]) for name in sorted(dots, key=order.index)]
    return dot_plot("Gaps over 500 ms", across, up, lines)


def _all_gaps(result: Result) -> Iterator[list[Any]]:
    repeats: list[list[list[Any]]] = result["plots"]["gaps"]
    for repeat in repeats:
        yield from repeat
