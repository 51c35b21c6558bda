"""What a command that kills or measures has found: rows with goals, as a table and as JSON.

What lives here: the table, the verdicts, the machine's description, progress, and the options that such commands share.
What must not: measuring.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from children import Child, RunFailed, raise_descriptor_limit
from proxy_cost import _cpu_model as cpu_model
from targets import use_this_checkout

MEASURES_NICE = -15
"""Whoever measures goes first, where we may say so: its own wait for a core is no delay of the gateway's."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``most`` is the goal; None: it is only shown."""

    label: str
    value: float
    unit: str = ""
    most: float | None = None
    digits: int = 1
    goal: str = ""
    """Words for a goal that is no number in the same unit."""

    @property
    def is_met(self) -> bool | None:
        return None if self.most is None else self.value <= self.most

    @property
    def verdict(self) -> str:
        if self.most is None:
            return self.goal
        words = self.goal or f"<= {self.most:g} {self.unit}".rstrip()
        return f"{words}: {'met' if self.is_met else 'MISSED'}"


@dataclass(slots=True)
class Outcome:
    """Everything that one command has to say. ``invalid`` is why it must not be cited."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    raw: dict[str, object] = field(default_factory=dict)

    def add(self, label: str, value: float, unit: str = "", most: float | None = None, **more: object) -> None:
        self.rows.append(Row(label, value, unit, most, **more))  # type: ignore[arg-type]

    def table(self) -> str:
        lines = [
            ("", "reached", "", "goal"),
            *((row.label, f"{row.value:,.{row.digits}f}", row.unit, row.verdict) for row in self.rows),
        ]
        wide = [max(len(line[column]) for line in lines) for column in range(4)]
        shown = [f"{a.ljust(wide[0])}  {b.rjust(wide[1])} {c.ljust(wide[2])}  {d}".rstrip() for a, b, c, d in lines]
        notes = [f"note: {note}" for note in self.notes] + [f"NOT VALID: {problem}" for problem in self.invalid]
        return "\n".join([self.title, "-" * len(self.title), *shown, *notes, ""])

    def as_json(self) -> dict[str, object]:
        rows = [
            {"label": row.label.strip(), "value": row.value, "unit": row.unit, "goal": row.verdict, "met": row.is_met}
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows, "notes": self.notes, "invalid": self.invalid, "raw": self.raw}


def command_line(doc: str, epilog: str) -> argparse.ArgumentParser:
    """A parser with what all these commands have: the first paragraphs of the module say what is done."""
    parser = argparse.ArgumentParser(
        description=doc, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured to FILE")
    return parser


def run_command(options: argparse.Namespace, measure: Callable[[], Sequence[Outcome]]) -> int:
    """Measure, show, and say by the exit code whether the figures are valid: 0 they are, 1 not, 2 it cannot run here."""
    if not sys.platform.startswith("linux"):
        say("this benchmark reads /proc and takes sockets over: it runs on Linux only")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every child is stopped on the way out
    raise_descriptor_limit()
    use_this_checkout()
    try:
        outcomes = measure()
    except KeyboardInterrupt:
        return 130
    except RunFailed as error:
        say(f"no figures: {error}")
        return 1
    machine = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }
    print(f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}\n")
    print(*(outcome.table() for outcome in outcomes), sep="\n")
    if options.json:
        told = {"machine": machine, "outcomes": [outcome.as_json() for outcome in outcomes]}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 1 if any(outcome.invalid for outcome in outcomes) else 0


def put_first(*children: Child) -> None:
    """Let those that measure have a core when they need one. Only root may; else their waiting is in the figures."""
    for child in children:
        try:
            os.setpriority(os.PRIO_PROCESS, child.pid, MEASURES_NICE)
        except PermissionError:
            say("not root: engine and load wait for a core like all others, and delays are a little too long")
            return


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
