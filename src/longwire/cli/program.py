"""The root command: what there is, in sections, and the version.

What lives here: the table of commands. What must not: what any of them does.
"""

from __future__ import annotations

import click

from .terminal import Program

SECTIONS = {
    "Run": {
        "serve": "longwire.cli.serve",
        "demo": "longwire.cli.demo",
        "sim": "longwire.cli.sim",
        "local": "longwire.cli.local",
    },
    "Look": {
        "top": "longwire.cli.top",
        "streams": "longwire.cli.streams",
        "check": "longwire.cli.check",
        "bench": "longwire.cli.bench",
        "conform": "longwire.cli.conform",
    },
    "Keep": {
        "reload": "longwire.cli.reload",
        "drain": "longwire.cli.drain",
    },
    "Set up": {
        "config": "longwire.cli.config",
        "tenants": "longwire.cli.tenants",
        "completion": "longwire.cli.completion",
    },
}

EXAMPLES = """
longwire serve --engine http://127.0.0.1:8000    # a gateway before an engine that runs already
longwire local install && longwire serve         # no engine yet: a small model that runs here
longwire top                                     # how the gateway fares, live
longwire streams ls                              # what is being generated right now
longwire streams tail ID                         # follow one answer, from its first token on
longwire check                                   # is this machine ready for many streams?
"""


def version() -> str:
    """The installed version, or a word for a source tree that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("longwire")
    except metadata.PackageNotFoundError:
        return "0+source"


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"longwire {version()}")
        context.exit()


@click.command(
    "longwire",
    cls=Program,
    sections=SECTIONS,
    examples=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def program() -> None:
    """A streaming gateway for large language models that never loses a token.

    It stands between clients and inference engines with the OpenAI API, and keeps each answer as a stream that can be
    resumed from any event.
    """
