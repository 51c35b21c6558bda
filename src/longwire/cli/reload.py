"""``longwire reload``: a new configuration or version, without cutting a connection.

What lives here: one request to the admin port. What must not: HTTP (admin_port.py).
"""

from __future__ import annotations

import click

from .admin_port import AdminPort
from .streams import with_url
from .terminal import Command

RELOAD_S = 70.0
"""The gateway answers when all is moved, or after a minute."""

EXAMPLES = """
longwire reload                              # after an edit of longwire.toml, or when a new version is installed
longwire reload --url http://127.0.0.1:9001
"""


@click.command("reload", cls=Command, examples=EXAMPLES)
@with_url
def command(url: str) -> None:
    """Move all streams to new processes with the configuration and code as they are now; no connection is cut."""
    AdminPort(url, RELOAD_S).fetch("/v1/reload", "POST")
    click.echo("reloaded")
