"""``longwire drain``: end a gateway when its streams have finished.

What lives here: one request to the admin port. What must not: HTTP (admin_port.py).
"""

from __future__ import annotations

import click

from .admin_port import AdminPort
from .streams import with_url
from .terminal import Command

EXAMPLES = """
longwire drain                               # the same as SIGTERM to the gateway
longwire drain --url http://127.0.0.1:9001
"""


@click.command("drain", cls=Command, examples=EXAMPLES)
@with_url
def command(url: str) -> None:
    """Take no new streams, let those that run finish (drain_s), and end the gateway."""
    AdminPort(url).fetch("/v1/drain", "POST")
    click.echo("draining")
