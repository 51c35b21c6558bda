"""``longwire drain``: end a gateway when its streams have finished.

What lives here: requests to the admin port. What must not: HTTP (admin_port.py).
"""

from __future__ import annotations

import click

from .admin_port import AdminPort, PublicPort
from .streams import with_url
from .terminal import Command, Failure

LOOK_S = 2.0
"""How long the count of streams is waited for: nobody drains to be told it."""

EXAMPLES = """
longwire drain                               # the same as SIGTERM to the gateway
longwire drain --url http://127.0.0.1:9001
"""


@click.command("drain", cls=Command, examples=EXAMPLES)
@with_url
def command(url: str) -> None:
    """Have the gateway take no new streams, let those that run finish (for drain_s at most), and end; returns at once."""
    count = _streams(url)
    AdminPort(url).fetch("/v1/drain", "POST")
    if count == 0:
        click.echo("draining: no stream runs; the gateway ends by itself")
        return
    running = "the streams that run" if count is None else f"{count} stream{'' if count == 1 else 's'}"
    click.echo(f"draining: {running} may take up to drain_s (30 s unless it was set); the gateway ends by itself")


def _streams(url: str) -> int | None:
    """How many streams run; None where that is not to be had, for what cannot count may well be able to drain."""
    try:
        streams = AdminPort(url, LOOK_S).fetch("/v1/overview")["streams"]
        return int(streams["live"]) + int(streams["opening"])
    except PublicPort:
        raise  # what is posted there may go on to an engine
    except (Failure, LookupError, TypeError, ValueError):
        return None
