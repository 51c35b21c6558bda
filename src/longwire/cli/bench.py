"""``longwire bench``: flags to settings, results to files and exit codes.

What lives here: the two commands and what they print. What must not: measuring, or the form of a report (the bench room).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwire.words.bench_settings import BenchSettings

from .options import build, settings_flags
from .terminal import Command, Failure, Group, NewFile

if TYPE_CHECKING:
    from longwire.bench.conditions import Condition
    from longwire.bench.result import Result
    from longwire.bench.run import Run

INTERRUPTED = 130

EXAMPLES = """
longwire bench sim                                                # the built-in stand-in: is this machine able?
longwire bench http://127.0.0.1:8080 --rate 20 --html run.html    # 20 requests a second, whatever is answered
longwire bench http://127.0.0.1:8080 --concurrency 500 --processes 2 --control http://127.0.0.1:8000
longwire bench http://127.0.0.1:8080 --fail-if 'ttft.p99_ms > 500' --fail-if 'ir.share > 0'
longwire bench http://127.0.0.1:8080 --chaos reset-clients=5 --verify
longwire bench compare before.json after.json --html both.html
"""


class BenchGroup(Group):
    """``longwire bench URL`` is short for ``longwire bench run URL``."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in context.help_option_names:
            args = ["run", *args]
        return super().parse_args(context, args)


@click.command("bench", cls=BenchGroup, examples=EXAMPLES)
def command() -> None:
    """Measure how an endpoint streams, and compare two runs; `longwire bench URL` is short for `longwire bench run URL`."""


def _file(flag: str, help: str) -> Callable[[Any], Any]:
    return click.option(flag, metavar="FILE", type=NewFile(), help=help)


@command.command("run", cls=Command, examples=EXAMPLES)
@click.argument("url")
@settings_flags(BenchSettings)
@click.option(
    "--fail-if", "fail_if", multiple=True, metavar="CONDITION", help="Exit with 1 where it holds: 'itl.p99_ms > 80'."
)
@_file("--json", "Write the result as JSON.")
@_file("--markdown", "Write the report as Markdown.")
@_file("--html", "Write the report with plots as one HTML file.")
def run(
    url: str, fail_if: tuple[str, ...], json: str | None, markdown: str | None, html: str | None, **flags: Any
) -> int:
    """Measure one endpoint with OpenAI's API, or `sim`, the built-in stand-in.

    What each figure is, docs/bench.md says.
    The key, if one is needed, comes from LONGWIRE_API_KEY. Ctrl-C ends it, with the report so far. With --fail-if, a run
    that is not valid fails too.
    """
    from longwire.bench.conditions import failed, parse_condition
    from longwire.bench.markdown import result_markdown
    from longwire.bench.page import result_page
    from longwire.bench.result import write_result
    from longwire.bench.run import Run

    conditions = [parse_condition(text) for text in fail_if]
    result = measure(url, build(BenchSettings, flags), Run)
    if json:
        write_result(result, json)
    write(markdown, result_markdown(result))
    if html:
        write(html, result_page(result))
    click.echo(result_markdown(result))
    if result["stopped"]:
        return INTERRUPTED
    return judge(conditions, result, failed)


def judge(conditions: list[Condition], result: Result, failed: Callable[[list[Condition], Any], list[str]]) -> int:
    """The exit code; what has failed goes to stderr."""
    if not conditions:
        return 0
    sentences = failed(conditions, result["metrics"])
    if not result["valid"]:
        sentences.append("The run is not valid, so nothing can be said by it.")
    for sentence in sentences:
        click.echo(f"longwire: {sentence}", err=True)
    return 1 if sentences else 0


def measure(url: str, settings: BenchSettings, make_run: type[Run]) -> Result:
    """Run it with whatever there is to look at it with."""
    import asyncio

    from longwire.bench.endpoint import RunFailed
    from longwire.bench.live import LiveView, PlainView

    try:
        if not sys.stdout.isatty():
            plain = PlainView(lambda line: click.echo(line, err=True))
            return asyncio.run(until_stopped(make_run(url, settings, os.environ, plain.show)))
        from rich.live import Live

        with Live(auto_refresh=False, transient=True) as live:
            return asyncio.run(until_stopped(make_run(url, settings, os.environ, LiveView(live).show)))
    except RunFailed as failure:
        raise Failure(str(failure)) from None


async def until_stopped(run: Run) -> Result:
    """The first Ctrl-C asks for the report so far, the second ends it without one."""
    import asyncio

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    assert main is not None

    def interrupted() -> None:
        if stop.is_set():
            main.cancel()
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        return await run.run(stop)
    except asyncio.CancelledError:
        raise click.Abort from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@command.command("compare", cls=Command, examples="longwire bench compare before.json after.json --html both.html")
@click.argument("before", type=click.Path(dir_okay=False))
@click.argument("after", type=click.Path(dir_okay=False))
@_file("--markdown", "Write the comparison as Markdown.")
@_file("--html", "Write it with both runs' plots as one HTML file.")
def compare(before: str, after: str, markdown: str | None, html: str | None) -> int:
    """Compare two results, repeat by repeat."""
    from longwire.bench.comparison import compare as differences
    from longwire.bench.comparison import not_alike
    from longwire.bench.markdown import comparison_markdown
    from longwire.bench.page import comparison_page
    from longwire.bench.result import read_result

    results = read_result(before), read_result(after)
    names = (Path(before).stem, Path(after).stem)
    if names[0] == names[1]:
        names = (before, after)
    found, doubts = differences(*results), not_alike(*results)
    text = comparison_markdown(names, found, doubts)
    write(markdown, text)
    if html:
        write(html, comparison_page(list(zip(names, results, strict=True)), found, doubts))
    click.echo(text)
    return 0


def write(path: str | None, text: str) -> None:
    if path:
        Path(path).write_text(text, encoding="utf-8")
