"""``longwire local``: the embedded engine.

What lives here: its two commands as thin wrappers. What must not: how it is installed or run (engines/local.py).
"""

from __future__ import annotations

from typing import Any

import click

from longwire.words.settings import Settings

from .configuration import load_configuration, local_is_installed
from .options import settings_flags
from .terminal import Failure, Group

EXAMPLES = """
longwire local install     # once: about 130 MB
longwire serve             # the gateway starts and watches the engine by itself
longwire local serve       # the engine alone, for other tools
"""
DEFAULT_PORT = 8002
LOCAL_FLAGS = ("local_model_path", "local_context_tokens", "local_slots", "local_threads")


@click.group("local", cls=Group, examples=EXAMPLES)
def command() -> None:
    """Install or run the embedded engine, a small real model on this machine's CPU."""


@command.command("install")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def install(quiet: bool) -> int:
    """Download and install the embedded engine and its model into this Python environment."""
    from longwire.engines import local

    return local.install(progress=not quiet)


@command.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="TEXT", help="Address to listen on.")
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65_535), metavar="N", help="Port."
)
@settings_flags(Settings, only=LOCAL_FLAGS)
def serve(host: str, port: int, **flags: Any) -> int:
    """Run the embedded engine alone, with the OpenAI API."""
    settings = load_configuration(None, flags).settings
    if not local_is_installed(settings):
        raise Failure("The embedded engine is not installed: run `longwire local install` first.")
    from longwire.engines import local

    return local.serve(host, port, settings)
