"""The command line: one file per command, and what they share.

What lives here: how a person or a script starts, looks at and configures a gateway.
What must not: anything that a running gateway needs; every other room is imported inside the command that uses it, so that
``longwire --help`` answers at once.
"""

from __future__ import annotations


def main() -> None:
    """The ``longwire`` script."""
    from .program import program

    program.main(prog_name="longwire")


__all__ = ["main"]
