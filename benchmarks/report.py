"""The results as a table and as JSON.

What lives here: medians over runs, ratios to nginx, the goals.
What must not: measuring.

A ratio is the median of the ratios within each round, not the ratio of two medians: a machine that is faster in one
round than in the next is so for all that ran in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from targets import DIRECT
from trial import Figures, Scenario

YARDSTICK = "nginx"
SUBJECT = "longwire"
MANY_STREAMS = 5000
"""From here on a scenario is about scale: the goal for p99 applies, and the kernel's memory can be told from noise."""

Round = dict[str, Figures]
"""What one round gave, by target; a run that failed is missing."""


@dataclass(frozen=True, slots=True)
class Goal:
    """At most so much, as it is or as a multiple of nginx."""

    most: float
    relative: bool = False

    def __str__(self) -> str:
        return f"<= {self.most:g} x {YARDSTICK}" if self.relative else f"<= {self.most:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: how a figure comes out of a round."""

    label: str
    value: Callable[[Round, str], float]
    digits: int = 1
    direct: bool = False  # whether it means anything without a gateway
    goal: Goal | None = None
    ratio: bool = True


def rows(scenario: Scenario) -> list[Row]:
    """What is shown of a scenario."""
    many = scenario.streams >= MANY_STREAMS
    p99_goal = Goal(1.0, relative=True) if many else None
    kernel = Row("kernel objects per stream, KiB", lambda each, name: each[name].kernel_kib, direct=True, ratio=False)
    return [
        Row("CPU per event, us", lambda each, name: each[name].cpu_us, goal=Goal(1.45, relative=True)),
        Row("  user", lambda each, name: each[name].user_us),
        Row("  system", lambda each, name: each[name].system_us),
        Row("delay p50, ms", lambda each, name: each[name].delays_ms["p50"], 3, direct=True),
        # The goal is one for the added delay; it stands here because the same is taken from both, and added can be below 0.
        Row("delay p99, ms", lambda each, name: each[name].delays_ms["p99"], 3, direct=True, goal=p99_goal),
        Row("added p50, ms (less direct)", lambda each, name: _added(each, name, "p50"), 3),
        Row("added p99, ms (less direct)", lambda each, name: _added(each, name, "p99"), 3),
        Row("memory per stream, KiB", lambda each, name: each[name].anonymous_kib, goal=Goal(14)),
        Row("log per stream, KiB", lambda each, name: each[name].shared_kib, ratio=False),
        *([kernel] if many else []),  # else lost in what the rest of the host allocates
        Row("socket buffers per stream, KiB", lambda each, name: each[name].sockets_kib, direct=True, ratio=False),
        Row("events per read of the load", lambda each, name: each[name].events_per_read, 2, direct=True, ratio=False),
        Row("gateway's core used, %", lambda each, name: each[name].core_share * 100, ratio=False),
        Row("  had by others or stolen, %", _lost_percent, ratio=False),
    ]


def _lost_percent(each: Round, name: str) -> float:
    return (each[name].waited_share + each[name].stolen_share) * 100


def _added(each: Round, name: str, share: str) -> float:
    return each[name].delays_ms[share] - each[DIRECT].delays_ms[share]


def table(scenario: Scenario, rounds: Sequence[Round], seconds: float) -> str:
    """The scenario's table, with what is wrong with it below."""
    names = _names(rounds)
    others = [name for name in names if name not in {DIRECT, YARDSTICK}] if YARDSTICK in names else []
    lines = [["", *names, *(f"{name}/{YARDSTICK}" for name in others), "goal"]]
    lines += [_line(row, rounds, names, others) for row in rows(scenario)]
    lines.insert(2, ["  lowest to highest", *(_span(rounds, name) for name in names), *("" for _ in others), ""])
    runs = f"median of {len(rounds)} runs" if len(rounds) > 1 else "one run"
    title = f"{scenario}, {runs} of {seconds:g} s"
    return "\n".join([title, "-" * len(title), *_aligned(lines), *_notes(rounds), ""])


def _line(row: Row, rounds: Sequence[Round], names: Sequence[str], others: Sequence[str]) -> list[str]:
    cells = [row.label]
    for name in names:
        value = _median(row, rounds, name) if row.direct or name != DIRECT else None
        cells.append("-" if value is None else f"{value:.{row.digits}f}")
    for name in others:
        ratio = ratio_to_nginx(row, rounds, name) if row.ratio else None
        cells.append("" if ratio is None else f"{ratio:.2f}")
    cells.append(_verdict(row, rounds) if row.goal else "")
    return cells


def _verdict(row: Row, rounds: Sequence[Round]) -> str:
    assert row.goal is not None
    value = ratio_to_nginx(row, rounds, SUBJECT) if row.goal.relative else _median(row, rounds, SUBJECT)
    if value is None:
        return str(row.goal)
    doubt = " (runs not valid)" if any(figures.invalid for each in rounds for figures in each.values()) else ""
    return f"{row.goal}: {'met' if value <= row.goal.most else 'MISSED'}{doubt}"


def _median(row: Row, rounds: Sequence[Round], name: str) -> float | None:
    values = [row.value(each, name) for each in rounds if name in each and DIRECT in each]
    return median(values) if values else None


def ratio_to_nginx(row: Row, rounds: Sequence[Round], name: str) -> float | None:
    """The median of the rounds' own ratios."""
    complete = [each for each in rounds if name in each and YARDSTICK in each and DIRECT in each]
    pairs = [(row.value(each, name), row.value(each, YARDSTICK)) for each in complete]
    ratios = [value / yardstick for value, yardstick in pairs if value > 0 and yardstick > 0]
    return median(ratios) if ratios else None


def _span(rounds: Sequence[Round], name: str) -> str:
    values = [each[name].cpu_us for each in rounds if name in each]
    return f"{min(values):.1f}-{max(values):.1f}" if values and name != DIRECT else "-"


def _names(rounds: Sequence[Round]) -> list[str]:
    return list(dict.fromkeys(name for each in rounds for name in each))


def _aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for label, *cells, goal in lines:
        middle = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True))
        yield f"{label.ljust(widths[0])}  {middle}  {goal}".rstrip()


def _notes(rounds: Sequence[Round]) -> Iterable[str]:
    for number, each in enumerate(rounds, 1):
        for name, figures in each.items():
            yield from (f"NOT VALID: {name}, run {number}: {text}" for text in figures.invalid)
            yield from (f"note: {name}, run {number}: {text}" for text in figures.remarks)


def as_json(scenario: Scenario, rounds: Sequence[Round]) -> dict[str, object]:
    """Everything that was measured, and what the table shows of it."""
    names = _names(rounds)
    shown = {
        row.label.strip(): {
            "median": {name: _median(row, rounds, name) for name in names if row.direct or name != DIRECT},
            "ratio_to_nginx": {
                name: ratio_to_nginx(row, rounds, name) for name in names if row.ratio and name != DIRECT
            },
            "goal": str(row.goal) if row.goal else None,
        }
        for row in rows(scenario)
    }
    runs = [{name: asdict(figures) for name, figures in each.items()} for each in rounds]
    return {"scenario": scenario.name, "streams": scenario.streams, "rate": scenario.rate, "shown": shown, "runs": runs}
