"""Which plots RESULTS.md and the README show, and what is in each.

What lives here: figures of the results as bars. Pure functions.
What must not: drawing (bars.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from bars import Bar, bar_plot
from converted import ADDED_P99, CPU, DIRECT, MEMORY, SUBJECT, values
from parts import PARTS
from results import Kept, told_of


class Plot(NamedTuple):
    """One file: a figure of some parts; of a target that is in several of them, the first counts."""

    file: str
    title: str
    unit: str
    figure: str
    parts: tuple[str, ...]
    is_log: bool = False


PLOTS = (
    Plot("cpu.svg", "CPU time per event, 500 streams at 20 events/s", "us", CPU, ("a", "a-litellm")),
    Plot("delay.svg", "Added delay p99, 500 streams at 20 events/s", "ms", ADDED_P99, ("a", "a-litellm"), is_log=True),
    Plot("delay-many.svg", "Added delay p99, 9,000 streams at 2 events/s", "ms", ADDED_P99, ("b",), is_log=True),
    Plot("memory.svg", "Memory per stream besides the log, 9,000 streams", "KiB", MEMORY, ("b",)),
)
FEWER = " (100 streams)"
"""Added to the name of what was measured with fewer streams than the title says."""


def draw(kept: Mapping[str, Kept]) -> dict[str, tuple[str, str]]:
    """Title and SVG by file name, of every plot that there are figures for."""
    drawn = {}
    for plot in PLOTS:
        bars = _bars(plot, kept)
        if len(bars) > 1:
            drawn[plot.file] = (plot.title, bar_plot(plot.title, plot.unit, bars, is_log=plot.is_log))
    return drawn


def _bars(plot: Plot, kept: Mapping[str, Kept]) -> list[Bar]:
    found: dict[str, Bar] = {}
    for part in PARTS:
        told = told_of(kept.get(part.name)) if part.name in plot.parts else None
        rounds = told["rounds"] if told else []
        for target in dict.fromkeys(name for each in rounds for name in each):
            runs = values(rounds, target, plot.figure)
            if runs and target not in found and target != DIRECT:
                name = target + (FEWER if part.name == "a-litellm" else "")
                found[target] = Bar(name, median(runs), min(runs), max(runs), target == SUBJECT)
    return sorted(found.values(), key=lambda bar: bar.middle)
