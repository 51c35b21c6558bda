"""``longwire config``: what settings hold, and what settings there are.

What lives here: the three commands that print settings. What must not: how they are read (words/config.py) or rendered
as pages (reference.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from longwire.words.config import Loaded, declared
from longwire.words.settings import Settings

from .configuration import configured, load_configuration
from .reference import render_example, render_reference, toml_value
from .terminal import Command, Group, print_json

MASK = "********"
EXAMPLES = """
longwire config show --changed             # what differs from the defaults, and where it was set
longwire config example > longwire.toml    # a file to start from
longwire config reference | less           # every setting, with its default and bounds
"""


class Shown(NamedTuple):
    """One setting as it is printed; a secret's value is already masked."""

    path: str
    value: object
    origin: str


@click.group("config", cls=Group, examples=EXAMPLES)
def command() -> None:
    """Show the settings that hold, or every setting that there is."""


@command.command("show", cls=Command)
@configured
@click.option("--changed", is_flag=True, help="Only what differs from the defaults.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: str | None, changed: bool, as_json: bool, **flags: Any) -> None:
    """Print the settings that hold and where each came from; secrets are masked."""
    loaded = load_configuration(file, flags)
    rows = [row for row in walk(loaded) if not changed or row.origin != "default"]
    if as_json:
        print_json([row._asdict() for row in rows])
        return
    lines = [f"{row.path} = {toml_value(row.value)}" for row in rows]
    width = min(60, max(map(len, lines), default=0))
    for line, row in zip(lines, rows, strict=True):
        click.echo(f"{line.ljust(width)}  # {row.origin}")


def walk(loaded: Loaded) -> Iterator[Shown]:
    """Every setting that holds, the tables last, as in a TOML file."""
    tables = []
    for setting in declared(Settings).values():
        if setting.table is None:
            yield _shown(loaded, setting.name, setting.secret, getattr(loaded.settings, setting.name))
        else:
            tables.append(setting)
    for setting in tables:
        assert setting.table is not None
        for index, entry in enumerate(getattr(loaded.settings, setting.name)):
            for inner in declared(setting.table).values():
                path = f"{setting.name}[{index}].{inner.name}"
                yield _shown(loaded, path, inner.secret, getattr(entry, inner.name))


def _shown(loaded: Loaded, path: str, secret: bool, value: object) -> Shown:
    fallback = "default"
    if path.endswith((".name", ".url")):
        fallback = loaded.origins.get(path.partition("[")[0], "default")  # made from the URL, or given in one SPEC
    return Shown(path, MASK if secret and value else value, loaded.origins.get(path, fallback))


@command.command("reference", cls=Command)
@click.option("-o", "--output", metavar="FILE", help="Write it there, as for docs/settings.md.")
def reference(output: str | None) -> None:
    """Print the reference page of all settings."""
    if output:
        Path(output).write_text(render_reference(), encoding="utf-8")
    else:
        click.echo(render_reference(), nl=False)


@command.command("example", cls=Command)
def example() -> None:
    """Print a commented TOML file to start from."""
    click.echo(render_example(), nl=False)
