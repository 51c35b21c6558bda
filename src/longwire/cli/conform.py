"""``longwire conform``: hold any gateway against the suite.

What lives here: the command line, files and the terminal. What must not: rows and how they are played (the conform room).

Exit codes: 0 all required rows pass, 1 some do not, 2 it could not be run.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .terminal import Command, Failure, NewFile, did_you_mean, print_table

if TYPE_CHECKING:
    from longwire.conform.playing import Result
    from longwire.conform.session import Plan

EXAMPLES = """
longwire conform --start 'longwire serve --port {port} --admin-port 0 --engine {upstream}'
longwire conform --start './my-gateway --listen 127.0.0.1:{port} --backend {upstream}' --only 'leaves-*'
longwire conform --url http://127.0.0.1:4000 --upstream-port 9000    # it runs already, before http://127.0.0.1:9000
longwire conform --list
longwire conform --explain split-code-points
"""


class CouldNotRun(Failure):
    """Nothing was tried: that is no verdict on the gateway."""

    exit_code = 2


@click.command("conform", cls=Command, examples=EXAMPLES)
@click.option(
    "--start", metavar="COMMAND", help="Start the gateway: {port} is where it is to listen, {upstream} its engine."
)
@click.option("--url", metavar="URL", help="A gateway that runs already.")
@click.option(
    "--upstream-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="With --url, or a COMMAND without {upstream}: the port of 127.0.0.1 that it takes for its engine.",
)
@click.option("--model", metavar="NAME", default="conform", show_default=True, help="The model to ask for.")
@click.option(
    "--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="A field for every request; may be repeated."
)
@click.option("--only", metavar="PATTERN", default="", help="Only rows or groups of this name or pattern.")
@click.option(
    "--beside", metavar="N", type=int, default=0, help="Keep so many streams running beside, and check them too."
)
@click.option(
    "--ready-s", metavar="S", type=float, default=60.0, show_default=True, help="How long it may take to be ready."
)
@click.option(
    "--pace", metavar="X", type=float, default=1.0, show_default=True, help="Multiply every bound on waiting."
)
@click.option("--junit", metavar="FILE", type=NewFile(Path), help="Write JUnit XML.")
@click.option("--json", "json_file", metavar="FILE", type=NewFile(Path), help="Write JSON.")
@click.option("--log", metavar="FILE", type=NewFile(Path), help="With --start: what it says.")
@click.option("-v", "--verbose", is_flag=True, help="What was sent and what came, for rows that are well too.")
@click.option("--list", "wants_list", is_flag=True, help="List the rows, and stop.")
@click.option("--explain", metavar="NAME", help="Say what a row is about and where it was seen, and stop.")
def command(only: str, explain: str | None, wants_list: bool, **flags: Any) -> int:
    """Try any gateway for language models with an engine that breaks in every known way."""
    from longwire.conform.rows import choose

    rows = choose(only)
    if not rows:
        _no_such_row(only)
    if wants_list:
        print_table(("GROUP", "ROW", "SENT"), ((row.group, row.name, row.sent) for row in rows), wrap=("SENT",))
        return 0
    if explain is not None:
        return _explain(explain)
    files = {name: flags.pop(name) for name in ("junit", "json_file")}
    return _run(_plan(**flags), only, flags["verbose"], **files)


def _plan(start: str | None, url: str | None, upstream_port: int | None, **flags: Any) -> Plan:
    from longwire.conform.session import Plan

    _check_target(start, url, upstream_port)
    fields = tuple(_field(header) for header in flags["headers"])
    for flag, text in (("--model", flags["model"]), *(("--header", header) for header in flags["headers"])):
        _check_text(flag, text)
    return Plan(
        start or "",
        url or "",
        upstream_port or 0,
        model=flags["model"],
        fields=fields,
        ready_s=flags["ready_s"],
        pace_s=flags["pace"],
        beside=flags["beside"],
        log=flags["log"],
    )


def _check_target(start: str | None, url: str | None, upstream_port: int | None) -> None:
    """Refuse now what would only be found by waiting in vain: the ports are others with each run."""
    if (start is None) == (url is None):
        raise click.UsageError("Name a gateway: either --start COMMAND, or --url URL with --upstream-port N.")
    if url is not None and upstream_port is None:
        raise click.UsageError(
            "--url needs --upstream-port: the port of 127.0.0.1 that the gateway takes for its engine."
        )
    if start is not None and "{port}" not in start:
        raise click.UsageError("--start needs {port} in COMMAND, where the gateway is told which port to listen on.")
    if start is not None and "{upstream}" not in start and upstream_port is None:
        raise click.UsageError(
            "--start needs {upstream} in COMMAND, where the gateway is told its engine's URL; "
            "where a file tells it that, give the URL's port as --upstream-port N."
        )
    if start is not None:
        _check_words(start)


def _check_words(start: str) -> None:
    from longwire.conform.subject import command_line

    try:
        command_line(start, 0, "")
    except ValueError as error:
        raise click.UsageError(
            f"--start {start!r} cannot be split into words ({error}): close every quote in COMMAND, and write "
            "a backslash that is meant as it is twice."
        ) from None


def _run(plan: Plan, only: str, verbose: bool, junit: Path | None, json_file: Path | None) -> int:
    import asyncio

    from longwire.conform import report
    from longwire.conform.rows import choose
    from longwire.conform.session import NotReady, hold

    def tell(result: Result) -> None:
        for line in report.lines(result, verbose=verbose):
            click.echo(line)

    # Asked to end, it ends the gateway that it has started too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results, took_s = asyncio.run(hold(plan, choose(only), tell))
    except (NotReady, OSError) as error:
        raise CouldNotRun(f"It could not be run: {error}") from error
    if junit is not None:
        junit.write_text(report.to_junit(results, plan.subject, took_s), encoding="utf-8")
    if json_file is not None:
        whole = report.to_json(results, plan.subject, took_s)
        json_file.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    click.echo(report.summary(results, took_s))
    return 1 if report.has_failed(results) else 0


def _explain(name: str) -> int:
    from longwire.conform import report
    from longwire.conform.rows import choose

    rows = choose(name)
    if not rows:
        _no_such_row(name)
    click.echo("\n\n".join(report.explain(row) for row in rows))
    return 0


def _no_such_row(name: str) -> NoReturn:
    from longwire.conform.rows import ROWS

    hint = did_you_mean(name, [row.name for row in ROWS])
    raise click.UsageError(f"There is no row {name!r}{hint}; --list shows them all.")


def _check_text(flag: str, text: str) -> None:
    """What the terminal could not read is text that cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{flag} {text!r} is no UTF-8: write it in that encoding.") from None


def _field(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f"--header {header!r} is not NAME: VALUE.")
    return name.strip(), value.strip()
