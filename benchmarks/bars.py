"""The plots of RESULTS.md: lying bars, one a target, each file complete in itself.

What lives here: a bar plot as SVG. Pure functions; scales and colours are those of `longwire bench`.
What must not: which figures are plotted (plots.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from longwire.bench.svg import COLOURS, Axis

WIDTH = 640
LEFT, RIGHT, TOP, BOTTOM = 170, 110, 34, 30
STEP, THICK = 26, 16
"""From bar to bar, and of one."""
OUTLIER = 4.0
"""A bar of so many times the next longest is cut, and says so: else the others could not be told apart."""
CUT = 1.25
"""Where a cut bar ends, of the next longest."""
OURS, OTHERS = COLOURS[1], COLOURS[0]
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:bold;font-size:13px}"
    ".grid{stroke:#e5e5e5}.span{stroke:#222;stroke-width:1.2}.cut{stroke:#fff;stroke-width:3}"
)


class Bar(NamedTuple):
    """Median, lowest and highest of one target's runs."""

    name: str
    middle: float
    low: float
    high: float
    is_ours: bool = False


def bar_plot(title: str, unit: str, bars: Sequence[Bar], *, is_log: bool = False) -> str:
    """Bars in the order given, with the lowest and highest run as a line over each."""
    height = TOP + STEP * len(bars) + BOTTOM
    axis = _log_axis(unit, bars) if is_log else _axis(unit, bars)
    bottom = height - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="20" class="title">{escape(title)}</text>',
    ]
    for tick in axis.ticks():
        x = _x(axis, tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{bottom + 16}" text-anchor="end">{escape(unit)}</text>')
    for number, bar in enumerate(bars):
        parts += _drawn(axis, bar, TOP + STEP * number + (STEP - THICK) / 2)
    return "\n".join([*parts, "</svg>", ""])


def _axis(unit: str, bars: Sequence[Bar]) -> Axis:
    longest, *others = sorted((bar.high for bar in bars), reverse=True)
    cut = bool(others) and others[0] > 0 and longest > OUTLIER * others[0]
    return Axis(unit, 0.0, others[0] * CUT if cut else max(longest, 1e-9) * 1.02)


def _log_axis(unit: str, bars: Sequence[Bar]) -> Axis:
    """Whole powers of ten; what is zero or below, as an added delay can be, has no bar."""
    shown = [value for bar in bars for value in (bar.low, bar.high) if value > 0] or [1.0]
    low, high = 10.0, 0.01
    while low > min(shown):
        low /= 10
    while high < max(shown):
        high *= 10
    return Axis(unit, low, max(high, low * 10), is_log=True)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT) if value > 0 or not axis.is_log else LEFT


def _drawn(axis: Axis, bar: Bar, y: float) -> list[str]:
    end, middle = _x(axis, bar.middle), y + THICK / 2
    colour = OURS if bar.is_ours else OTHERS
    drawn = [
        f'<text x="{LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{LEFT}" y="{y:.1f}" width="{max(1.0, end - LEFT):.1f}" height="{THICK}" fill="{colour}"/>',
    ]
    is_cut = bar.middle > axis.high
    if is_cut:
        x = end - 26
        drawn.append(f'<line x1="{x:.1f}" x2="{x + 8:.1f}" y1="{y + THICK + 2:.1f}" y2="{y - 2:.1f}" class="cut"/>')
    elif bar.high > bar.low:
        ends = f'x1="{_x(axis, bar.low):.1f}" x2="{_x(axis, bar.high):.1f}"'
        drawn.append(f'<line {ends} y1="{middle:.1f}" y2="{middle:.1f}" class="span"/>')
    right = max(end, _x(axis, bar.high)) + 6
    text = f"{bar.middle:.3g}" if abs(bar.middle) < 100 else f"{bar.middle:,.0f}"
    drawn.append(f'<text x="{right:.1f}" y="{middle + 4:.1f}">{text}{" (cut)" if is_cut else ""}</text>')
    return drawn
