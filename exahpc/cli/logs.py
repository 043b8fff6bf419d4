"""`exahpc logs`: what the processes of a deployment wrote."""

from __future__ import annotations

import time

import click

from exahpc.cli.common import deployment_argument, opened
from exahpc.errors import DeploymentError
from exahpc.launch.tail import Follower, log_files


@click.command()
@deployment_argument()
@click.argument("what", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="Lines of each file.")
@click.option("--list", "only_list", is_flag=True, help="Print the files' paths only.")
def logs(name: str, what: tuple[str, ...], follow: bool, lines: int, only_list: bool) -> None:
    """Show the logs of NAME.

    WHAT picks files whose path holds one of these texts: head, entry, agent, a pool, a task (gpu-3), replica-0.
    """
    folder, _ = opened(name)
    root = folder.path / "logs"
    files = log_files(root, what)
    if not files and not follow:
        wanted = f" with {' or '.join(what)} in their path" if what else " yet"
        raise DeploymentError(f"{name} has no logs{wanted}")
    if only_list:
        click.echo("\n".join(map(str, files)))
        return
    follower = Follower(root, lines)
    while True:
        for path, text in follower.news(log_files(root, what)):
            click.echo(click.style(f"==> {path.relative_to(root)} <==", bold=True))
            click.echo(text, nl=not text.endswith("\n"))
        if not follow:
            return
        time.sleep(0.5)
