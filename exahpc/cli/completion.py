"""`exahpc completion`: what a shell needs to complete our commands, options and names of deployments."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_EXAHPC_COMPLETE"
"""By which the shell asks: click's own convention."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, to be read by it at its start.

    \b
    exahpc completion bash > ~/.local/share/bash-completion/completions/exahpc
    exahpc completion zsh >> ~/.zshrc
    exahpc completion fish > ~/.config/fish/completions/exahpc.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows all of SHELLS"
    click.echo(made(ctx.find_root().command, {}, "exahpc", VARIABLE).source())
