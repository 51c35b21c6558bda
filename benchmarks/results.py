"""RESULTS.md: what all parts of `make bench` found, whenever each was measured.

What lives here: the page. Pure functions of what the files in results/ hold.
What must not: measuring, files, or choosing what looks well: every goal and every peer has its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from cells import WHAT_THE_MARK_SAYS, cell, how_often, mark, number, one_line, table
from converted import CPU, SLOWEST, SUBJECT, convert, values
from parts import PARTS, PYTHON, Part
from work import INVALID, Round

Kept = Mapping[str, Any]
"""What side_by_side.py keeps of a part: when, how long, command, machine, what was missing, and what the script told."""

MANY_FIGURES = 9
"""From here on figures are rows and targets columns: no screen is wide enough for the other way."""
MAX_REMARKS, MAX_REMARK_CHARS = 20, 300
"""Of one part on the page; the file has all."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
VERDICTS = {True: "reached", False: "**not reached**", None: "not measured"}

OPENING = """\
# Side by side

What `make bench` measured, made from the files in `results/`, which hold every run. A figure is the median of the runs, with
the lowest and highest behind it. Compare what stands in one table, never the figures of two machines or of two tables.
[docs/benchmarks.md](../docs/benchmarks.md) says what each figure is.
"""


def told_of(kept: Kept | None) -> dict[str, Any] | None:
    """Rounds, goals and remarks, whichever script told them; None where there are none."""
    told = kept.get("told") if kept else None
    if not told:
        return None
    return convert(told) if "scenarios" in told else dict(told)


def page(kept: Mapping[str, Kept], plots: Sequence[tuple[str, str]] = ()) -> str:
    """All of it; ``kept`` by the part's name, ``plots`` as title and file beside docs/."""
    lines = [OPENING, *_machine(kept), "", "## Goals", "", *_goals(kept), ""]
    if plots:
        lines += ["## Plots", "", *(f"![{title}](../docs/plots/{name})\n" for title, name in plots)]
    for part in PARTS:
        lines += [f"## {_named(part)}", "", *_section(part, kept.get(part.name)), ""]
    lines += ["## How long it took", "", *_duration(kept), ""]
    return "\n".join(lines)


def _named(part: Part) -> str:
    return part.title if len(part.key) > 1 else f"({part.key}) {part.title}"


def _machine(kept: Mapping[str, Kept]) -> Iterator[str]:
    """Where it was measured, and what; of several machines or versions each, since results of other days are kept."""
    machines = {line: None for each in kept.values() if (line := _machine_line(each.get("machine") or {}))}
    yield from (f"- {line}" for line in machines)
    versions: dict[str, dict[str, None]] = {}
    for each in kept.values():
        for name, version in (each.get("versions") or {}).items():
            versions.setdefault(name, {})[version] = None
    missing = {name: why for each in kept.values() for name, why in (each.get("missing") or {}).items()}
    rows = [[name, "; ".join(found)] for name, found in versions.items()]
    rows += [[name, f"not here: {why}"] for name, why in missing.items() if name not in versions]
    if rows:
        yield from ["", *table(["measured", "version"], rows)]


def _machine_line(machine: Mapping[str, Any]) -> str:
    if not machine:
        return ""
    memory = f", {machine['memory_gib']:.0f} GiB" if "memory_gib" in machine else ""
    python = f"Python {machine['python']}" + (f", uvloop {machine['uvloop']}" if machine.get("uvloop") else "")
    first = f", at priority {machine['nice']}" if machine.get("nice") else ""
    return f"{machine['cpu']}, {machine['cores']} cores{memory}, Linux {machine['kernel']}, {python}{first}"


def _goals(kept: Mapping[str, Kept]) -> list[str]:
    rows = []
    for part in PARTS:
        each = kept.get(part.name)
        told = told_of(each)
        where = f"({part.key})" if len(part.key) == 1 else part.key
        command = f"`make bench ARGS='--only {part.key}'`"
        if told is None:
            rows.append([where, part.title, "", "", f"not measured: {why_not(part, each)}", command])
        else:
            beside = _beside_many(kept) if part.name == "a-litellm" else ""
            rows += [[where, *_goal(goal, beside), command] for goal in told.get("goals", ())]
    return table(["work", "figure", "goal", "measured", "", "command"], rows)


def _beside_many(kept: Mapping[str, Kept]) -> str:
    """LiteLLM's cost with 100 streams over ours with 500, at which every gateway is cheaper per event."""
    few, many = told_of(kept.get("a-litellm")), told_of(kept.get("a"))
    theirs = values(few["rounds"], SLOWEST, CPU) if few else []
    ours = values(many["rounds"], SUBJECT, CPU) if many else []
    return f"both with 100 streams; {median(theirs) / median(ours):.1f} x ours with 500" if theirs and ours else ""


def _goal(goal: Mapping[str, Any], beside: str = "") -> list[str]:
    value = "-" if goal["value"] is None else f"{number(goal['value'])} {goal['unit']}".strip()
    verdict = VERDICTS[goal["met"]] if goal["value"] is not None or goal["met"] is not None else VERDICTS[None]
    if goal["value"] is not None and goal["met"] is None:
        verdict = "no verdict"
    return [goal["name"], goal["goal"], value, "; ".join(filter(None, [verdict, beside, goal.get("note")]))]


def why_not(part: Part, kept: Kept | None) -> str:
    """Why a part has no figures."""
    if kept and kept.get("failure"):
        return str(kept["failure"])
    return f"benchmarks/{part.script} " + ("has not been run" if part.has_script else "is not there")


def _section(part: Part, kept: Kept | None) -> Iterator[str]:
    told = told_of(kept)
    if kept:
        yield f"Measured {kept['measured']}, in {_minutes(kept['took_s'])}:"
        yield f"\n```sh\n{PYTHON} {kept['command']}\n```\n"
    if kept is None or told is None:
        yield f"No figures: {why_not(part, kept)}"
        return
    silent = dict.fromkeys(kept.get("versions") or {}, "gave no figures: see below")
    missing = {**(kept.get("missing") or {}), **part.elsewhere, **silent}
    if told["rounds"]:
        yield from (part.show or _figures)(told["rounds"], missing)
    remarks = [*told.get("remarks", ()), *(kept.get("said") or ())]
    if remarks:
        yield ""
        yield from (f"- {one_line(COLOURS.sub('', remark))[:MAX_REMARK_CHARS]}" for remark in remarks[:MAX_REMARKS])
    if len(remarks) > MAX_REMARKS:
        yield f"- and {len(remarks) - MAX_REMARKS} more, in `results/{part.name}.json`"


def _figures(rounds: Sequence[Round], missing: Mapping[str, str]) -> Iterator[str]:
    """One table, either way round; a target whose runs are all not valid is marked."""
    targets = list(dict.fromkeys(name for each in rounds for name in each))
    figures = list(dict.fromkeys(name for each in rounds for found in each.values() for name in found))
    # The control comes first and has fewer of them: the order is that of the target that has most.
    fullest = max((list(found) for each in rounds for found in each.values()), key=len, default=[])
    figures = [name for name in [*fullest, *(each for each in figures if each not in fullest)] if name != INVALID]
    heads = [name + mark(rounds, name) for name in targets]
    yield how_often(rounds)
    if len(figures) < MANY_FIGURES or len(targets) > len(figures):
        rows = [
            [head, *(cell(rounds, name, each) for each in figures)] for head, name in zip(heads, targets, strict=True)
        ]
        rows += [[name, why, *("" for _ in figures[1:])] for name, why in missing.items() if name not in targets]
        yield from table(["", *figures], rows)
    else:
        yield from table(["", *heads], [[each, *(cell(rounds, name, each) for name in targets)] for each in figures])
        yield from (f"\n{name}: {one_line(why)}" for name, why in missing.items() if name not in targets)
    if any("†" in head for head in heads):
        yield WHAT_THE_MARK_SAYS


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _duration(kept: Mapping[str, Kept]) -> Iterator[str]:
    took = [(part, kept[part.name]["took_s"]) for part in PARTS if part.name in kept]
    yield f"{_minutes(sum(seconds for _, seconds in took))} in all, peers' installation aside" + (
        ": " + ", ".join(f"{part.name} {_minutes(seconds)}" for part, seconds in took) + "." if took else "."
    )
