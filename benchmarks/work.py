"""What the works beside proxy_cost.py have in common: their command line, the cores, the goals, and the file of results.

What lives here: options, medians over rounds, goals and how they are shown and written.
What must not: anything about one work (short.py, channels.py, held.py, soak.py), or measuring.

A round has the figures of every target, taken in turn. A run that must not be cited has the figure ``invalid``: it is
written to the file as all others are, but no median is made of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

Figures = dict[str, float]
Round = dict[str, Figures]
INVALID = "invalid"
Absent = Callable[[Sequence[Round], str, str], str]
"""What stands in a table for the figure that a target has not got."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached, and what was. ``value`` is None where nothing could be measured."""

    name: str
    unit: str
    goal: str
    value: float | None
    met: bool | None
    note: str = ""

    @classmethod
    def most(
        cls, name: str, unit: str, value: float | None, bound: float | None, goal: str = "", note: str = ""
    ) -> Goal:
        """At most so much; without a bound (its yardstick did not run) there is no verdict."""
        words = goal or f"<= {bound:g} {unit}"
        met = None if value is None or bound is None else value <= bound
        return cls(name, unit, words, value, met, note)

    @classmethod
    def least(cls, name: str, unit: str, value: float | None, bound: float, note: str = "") -> Goal:
        """At least so much."""
        return cls(name, unit, f">= {bound:,g} {unit}".strip(), value, None if value is None else value >= bound, note)


@dataclass(slots=True)
class Work:
    """One work's results."""

    name: str
    title: str
    rounds: list[Round] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def remark(self, text: str) -> None:
        """Say it now and in the results."""
        say(text)
        self.remarks.append(text)

    @property
    def is_valid(self) -> bool:
        return bool(self.rounds) and not any(INVALID in figures for each in self.rounds for figures in each.values())

    def as_json(self) -> dict[str, object]:
        return {
            "work": self.name,
            "title": self.title,
            "command": f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
            "machine": machine() | {"targets": self.versions},
            "rounds": self.rounds,
            "goals": [asdict(goal) for goal in self.goals],
            "remarks": self.remarks,
        }


def middle(rounds: Sequence[Round], target: str, figure: str) -> float | None:
    """The median over the valid rounds; None where there is none."""
    values = [
        figures[figure]
        for each in rounds
        if (figures := each.get(target)) and figure in figures and INVALID not in figures
    ]
    return median(values) if values else None


def dash(_rounds: Sequence[Round], _target: str, _figure: str) -> str:
    """Where there is nothing to say about it."""
    return "-"


def table(rounds: Sequence[Round], columns: Sequence[tuple[str, str, int]], absent: Absent = dash) -> str:
    """Medians, a line for each target. A column is a figure, its heading, and its digits."""
    targets = list(dict.fromkeys(name for each in rounds for name in each))
    lines = [["median of runs", *(heading for _, heading, _ in columns)]]
    for target in targets:
        line = [target]
        for figure, _, digits in columns:
            value = middle(rounds, target, figure)
            line.append(absent(rounds, target, figure) if value is None else f"{value:,.{digits}f}")
        lines.append(line)
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns; the first to the left, all others to the right."""
    wide = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, wide, strict=True))
        )
        for line in lines
    )


def show(work: Work, columns: Sequence[tuple[str, str, int]], file: Path | None, absent: Absent = dash) -> None:
    """The table on stdout, and the file."""
    print(f"{work.title}\n{'-' * len(work.title)}")
    print(table(work.rounds, columns, absent), "", sep="\n")
    for goal in work.goals:
        value = "not measured" if goal.value is None else f"{goal.value:,.4g} {goal.unit}"
        verdict = {True: "met", False: "MISSED", None: "no verdict"}[goal.met]
        print(f"{goal.name}: {value}; goal {goal.goal}: {verdict}{f' ({goal.note})' if goal.note else ''}")
    print(*(f"note: {remark}" for remark in work.remarks), sep="\n")
    if file:
        file.write_text(json.dumps(work.as_json(), indent=1) + "\n")


def command_line(doc: str, targets: Sequence[str], *, seconds: float, runs: int) -> argparse.ArgumentParser:
    """The options that all works share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(targets), help=f"what is measured ({' '.join(targets)})")
    parser.add_argument("--runs", type=int, default=runs, help=f"runs of each target, interleaved ({runs})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of each window ({seconds:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured to FILE")
    parser.add_argument("--quick", action="store_true", help="short and small: to see that it works, not to be cited")
    return parser


def run_command(measure: Callable[[], int]) -> int:
    """Measure; 0: all is valid, 1: it is not, 2: it cannot run here."""
    from children import RunFailed, raise_descriptor_limit
    from targets import use_this_checkout

    if not sys.platform.startswith("linux"):
        say("this benchmark reads /proc and pins processes to cores: it runs on Linux only")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every child is stopped on the way out
    raise_descriptor_limit()
    use_this_checkout()
    try:
        return measure()
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        say(str(error))
        return 2
    except RunFailed as error:
        say(f"no figures: {error}")
        return 1


def two_cores() -> tuple[int | None, int | None]:
    """One for the gateway and one for the rest; none where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("only one core: gateway, engine and load share it, and the delays mean little")
        return None, None
    return cores[0], cores[1]


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    from proxy_cost import _cpu_model as cpu_model

    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
