"""How the command line speaks: groups, tables, failures.

What lives here: the click classes that make help teach and errors one sentence, and the one way to print a table.
What must not: any command.

Exit codes: 0 done, 1 it failed, 2 the command line or the settings are wrong, 130 interrupted.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from longwire.words.errors import LongwireError, SettingsError

WIDE_COLUMNS = 220
"""Width of a table that goes to a file or a pipe: wide enough that no id is ever cut."""


class Failure(click.ClickException):
    """The command was understood and failed; the message is one sentence that says what to do."""

    exit_code = 1


class Group(click.Group):
    """A group that shows its help when called alone, and offers the nearest command for a mistyped one."""

    def __init__(self, *args: Any, examples: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args and not context.resilient_parsing:
            click.echo(context.get_help())
            context.exit()
        return super().parse_args(context, args)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(context, name) is None:
            hint = did_you_mean(name, self.list_commands(context))
            raise click.UsageError(f"There is no command {name!r}{hint}", context)
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        write_commands("Commands", self, context, formatter)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.examples, formatter)


class Command(click.Command):
    """A command with examples, printed as they were written."""

    def __init__(self, *args: Any, examples: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.examples, formatter)


class Program(Group):
    """The root: commands in sections, each imported when it is needed, and the one place where errors become exit codes."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, str]], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.sections = sections

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for names in self.sections.values() for name in names]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        module = next((names[name] for names in self.sections.values() if name in names), None)
        if module is None:
            return None
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections.items():
            write_commands(title, self, context, formatter, names)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run one command line and exit; with ``standalone_mode=False`` errors are the caller's."""
        run: Any = super().main
        if not options.pop("standalone_mode", True):
            return run(*args, standalone_mode=False, **options)
        try:
            code = run(*args, standalone_mode=False, **options)
        except click.Abort:
            code = 130
        except BrokenPipeError:
            # The reader of a pipe (head) has had enough. Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except (click.ClickException, LongwireError) as error:
            click.echo(f"longwire: {sentence(error)}", err=True)
            code = exit_code(error)
        sys.exit(code if isinstance(code, int) else 0)


def exit_code(error: click.ClickException | LongwireError) -> int:
    if isinstance(error, click.ClickException):
        return error.exit_code
    return 2 if isinstance(error, SettingsError) else 1


def sentence(error: click.ClickException | LongwireError) -> str:
    """The error as one line; a wrong command line also says where its help is."""
    if not isinstance(error, click.ClickException):
        return str(error)
    message = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return message
    if isinstance(error, click.NoSuchOption):
        flags = [flag for option in context.command.params for flag in (*option.opts, *option.secondary_opts)]
        message = f"There is no option {error.option_name}{did_you_mean(error.option_name, flags)}"
    return f"{message.rstrip('.')}; see {context.command_path} --help."


class NewFile(click.Path):
    """A file for what is found: that it cannot be written is said now, and not when the work is done."""

    name = "file"

    def __init__(self, path_type: type | None = None) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        folder = Path(value).parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            self.fail(f"{str(folder)!r} is no directory that can be written to.", param, ctx)
        return super().convert(value, param, ctx)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


# Help.


def write_commands(
    title: str,
    group: click.Group,
    context: click.Context,
    formatter: click.HelpFormatter,
    names: Iterable[str] | None = None,
) -> None:
    """A section of commands, each with its whole first sentence; the sections of one page are aligned."""
    width = max(map(len, group.list_commands(context)))
    found = ((name, group.get_command(context, name)) for name in names or group.list_commands(context))
    with formatter.section(title):
        formatter.write_dl(
            [(name.ljust(width), command.get_short_help_str(limit=200)) for name, command in found if command]
        )


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n" if line.strip() else "\n")


# Printing.


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "yes": "green", "no": "yellow", "unknown": "dim"}


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, wrap: Sequence[str] = ()) -> None:
    """A table without lines: it can be read by eye and cut by ``awk``. Only the columns in ``wrap`` are ever broken."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream: IO[str] = sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else WIDE_COLUMNS, highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column not in wrap, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        click.echo(line.rstrip())  # rich fills every line to its full width
