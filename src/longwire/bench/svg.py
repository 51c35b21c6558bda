"""Plots as SVG, drawn by hand: lines over an axis, and dots.

What lives here: scales, ticks, and the elements. Pure functions. What must not: what is plotted (page.py).

No library and no script: a report must open in ten years, from a mail, without a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 28, 40
"""Room for the labels."""
COLOURS = ("#0b6e99", "#d9730d", "#4d8b31", "#9b51a0", "#b5332e", "#7a6a53")
"""Told apart by most eyes, on white and in print; lines beyond use them again."""

FEW_POWERS = 300
"""Up to this ratio of an axis' ends, powers of ten alone would be too few ticks."""

Point = tuple[float, float]


class Line(NamedTuple):
    """A named series."""

    name: str
    points: Sequence[Point]


class Axis(NamedTuple):
    """One direction: its title, its ends, and whether it counts in powers."""

    title: str
    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value stands, from 0 to 1; what lies outside stands at the end."""
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.0

    def ticks(self) -> list[float]:
        """Round values, at most about seven."""
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            factors = (1,) if self.high / self.low > FEW_POWERS else (1, 2, 5)
            ticks = [math.pow(10, power) * factor for power in powers for factor in factors]
            return [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]
        step = _round_step((self.high - self.low) / 6)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 ... that is no less."""
    if least <= 0:
        return 1.0
    power = math.pow(10, math.floor(math.log10(least)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999999)


def line_plot(title: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """Lines, with their names above where there are several."""
    return _frame(title, across, up, [line.name for line in lines], _paths(across, up, lines))


def dot_plot(title: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """Dots."""
    return _frame(title, across, up, [line.name for line in lines], _dots(across, up, lines))


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _paths(across: Axis, up: Axis, lines: Sequence[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        places = " ".join(f"{_x(across, x):.1f},{_y(up, y):.1f}" for x, y in line.points)
        if places:
            colour = COLOURS[number % len(COLOURS)]
            yield f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _dots(across: Axis, up: Axis, lines: Sequence[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        for x, y in line.points:
            yield f'<circle cx="{_x(across, x):.1f}" cy="{_y(up, y):.1f}" r="3" fill="{colour}" fill-opacity="0.6"/>'


def _frame(title: str, across: Axis, up: Axis, names: Sequence[str], marks: Iterator[str]) -> str:
    """Title, grid, labels and legend around the marks."""
    bottom = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>',
    ]
    parts += _grid(
        across.ticks(), lambda tick: f'x1="{_x(across, tick):.1f}" x2="{_x(across, tick):.1f}" y1="{TOP}" y2="{bottom}"'
    )
    parts += _grid(
        up.ticks(), lambda tick: f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(up, tick):.1f}" y2="{_y(up, tick):.1f}"'
    )
    parts += [
        f'<text x="{_x(across, tick):.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>'
        for tick in across.ticks()
    ]
    parts += [
        f'<text x="{LEFT - 6}" y="{_y(up, tick) + 4:.1f}" text-anchor="end">{tick:g}</text>' for tick in up.ticks()
    ]
    parts += [f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(across.title)}</text>']
    parts += [f'<text x="{WIDTH - RIGHT}" y="16" text-anchor="end">{escape(up.title)}</text>']
    parts += [*marks, *(_legend(names) if len(names) > 1 else ()), "</svg>"]
    return "\n".join(parts)


def _grid(ticks: Sequence[float], ends: Callable[[float], str]) -> list[str]:
    return [f'<line {ends(tick)} class="grid"/>' for tick in ticks]


def _legend(names: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        y = TOP + 14 + 14 * number
        colour = COLOURS[number % len(COLOURS)]
        yield f'<rect x="{LEFT + 8}" y="{y - 8}" width="10" height="8" fill="{colour}"/>'
        yield f'<text x="{LEFT + 22}" y="{y}">{escape(name)}</text>'
