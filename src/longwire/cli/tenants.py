"""``longwire tenants``: keys for tenants.

What lives here: reading or making a key and printing its hash. What must not: how a hash is made (admission/tenants.py).
"""

from __future__ import annotations

import secrets
import sys

import click

from .terminal import Failure, Group

KEY_BYTES = 32
MIN_KEY_CHARS = 20
"""The hash is a fast one, which is right for random keys and wrong for words: a key that people could choose is refused."""

EXAMPLES = """
longwire tenants hash --generate          # a new key and its hash
longwire tenants hash                     # asks for a key that you have already
printenv TENANT_KEY | longwire tenants hash
"""


@click.group("tenants", cls=Group, examples=EXAMPLES)
def command() -> None:
    """Make and hash the keys that tenants come in with."""


@command.command("hash")
@click.option("--generate", is_flag=True, help="Make a new key; it is printed once and kept nowhere.")
def hash_(generate: bool) -> None:
    """Print the hash of a key, for key_hashes in [[tenants]] or for keys_file."""
    key = f"lwk-{secrets.token_urlsafe(KEY_BYTES)}" if generate else _read_key()
    if len(key) < MIN_KEY_CHARS:
        raise Failure(f"A key must have {MIN_KEY_CHARS} characters or more: use --generate for a good one.")
    from longwire.admission.tenants import hash_key

    if generate:
        click.echo(f"key   {key}\nhash  {hash_key(key)}")
        click.echo("Give the key to the tenant now: it is not shown again. The hash goes into the settings.", err=True)
    else:
        click.echo(hash_key(key))


def _read_key() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Key", hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")
