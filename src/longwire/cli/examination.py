"""``longwire check --engine``: what it says before, while and after an engine is asked what it can do.

What lives here: announcement, progress, table and JSON. What must not: questions (interview.py) and answers (abilities.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from longwire.engines.kinds import KINDS
from longwire.words.engine_specs import ENGINE_WORDS
from longwire.words.settings import EngineSettings

from .abilities import Judgement
from .asking import MAX_REQUESTS, REQUEST_LIMIT_S, WHOLE_LIMIT_S, Asker, Clock
from .finding import Finding
from .interview import ANNOUNCEMENT, interview
from .terminal import print_json, print_table

QUIET_S = 1.0
"""A quick examination shows no progress."""
PLAIN_EVERY_S = 5.0
"""Without a terminal, progress is a line now and then."""

COLUMNS = ("ABILITY", "", "FOUND", "BY")

Examined = list[tuple[EngineSettings, Judgement]]


class Progress:
    """What is being asked, on stderr: one line in place in a terminal, else a line now and then."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._in_place = sys.stderr.isatty()
        self._next_s = clock() + QUIET_S
        self._is_shown = False

    def tell(self, stage: str) -> None:
        """Show it, if it is time."""
        if self._clock() < self._next_s:
            return
        if self._in_place:
            click.echo(f"\r\x1b[K  {stage}", err=True, nl=False)
            self._is_shown = True
        else:
            click.echo(f"  {stage}", err=True)
            self._next_s = self._clock() + PLAIN_EVERY_S

    def clear(self) -> None:
        """Leave nothing in the terminal."""
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def examine(engines: Sequence[EngineSettings], model: str) -> Examined:
    """Ask each engine that has an address; the stand-in and the embedded engine are started by ``serve`` only."""
    examined: Examined = []
    for engine in engines:
        if engine.url in ENGINE_WORDS:
            continue
        click.echo(
            f"Asking {engine.url} for {ANNOUNCEMENT}: at most {MAX_REQUESTS} requests, {REQUEST_LIMIT_S:.0f} s each, "
            f"{WHOLE_LIMIT_S:.0f} s in all.",
            err=True,
        )
        progress = Progress()
        try:
            examined.append((engine, interview(Asker(engine), model, progress.tell)))
        finally:
            progress.clear()
    return examined


def show_examined(findings: Sequence[Finding], examined: Examined, as_json: bool) -> None:
    """As tables below the one of the machine, or everything as one JSON object."""
    if as_json:
        engines = [_as_json(engine, judgement) for engine, judgement in examined]
        print_json({"checks": [finding._asdict() for finding in findings], "engines": engines})
        return
    for engine, judgement in examined:
        click.echo()
        click.echo(f"{engine.name}, model {judgement.model or 'unknown'}")
        print_table(COLUMNS, judgement.abilities, wrap=("FOUND", "BY"))
        click.echo()
        click.echo("\n".join(suggestion(engine, judgement)))


def suggestion(engine: EngineSettings, judgement: Judgement) -> list[str]:
    """What to write into longwire.toml, and why."""
    if not judgement.kind:
        return [f"Nothing follows for [[engines]]: {judgement.why}."]
    lines = ["[[engines]]", f'url = "{engine.url}"', f'kind = "{judgement.kind}"', f"# {judgement.why}"]
    path = KINDS[judgement.kind].metrics_path
    return [*lines, f"# its load is read at {path}" if path else "# its load is not read"]


def _as_json(engine: EngineSettings, judgement: Judgement) -> dict[str, object]:
    return {
        "name": engine.name,
        "url": engine.url,
        "model": judgement.model,
        "answers": judgement.answers,
        "abilities": [row._asdict() for row in judgement.abilities],
        "kind": judgement.kind,
        "why": judgement.why,
    }
