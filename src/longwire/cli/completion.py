"""``longwire completion``: print the script that makes a shell complete commands and flags.

What lives here: the choice of shell. What must not: the completion itself (click's).
"""

from __future__ import annotations

import click

from .terminal import Command

EXAMPLES = """
longwire completion bash >> ~/.bashrc
longwire completion zsh >> ~/.zshrc
longwire completion fish > ~/.config/fish/completions/longwire.fish
"""


@click.command("completion", cls=Command, examples=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(context.find_root().command, {}, "longwire", "_LONGWIRE_COMPLETE").source())
