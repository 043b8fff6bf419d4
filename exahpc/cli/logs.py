"""`exahpc logs`: what the processes of a deployment wrote."""

from __future__ import annotations

import time
from pathlib import Path

import click

from exahpc.cli.common import deployment_argument, opened
from exahpc.errors import DeploymentError
from exahpc.launch.tail import Follower


@click.command()
@deployment_argument()
@click.argument("what", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="Lines of each file.")
@click.option("--list", "only_list", is_flag=True, help="Print the files' paths only.")
def logs(name: str, what: str | None, follow: bool, lines: int, only_list: bool) -> None:
    """Show the logs of NAME.

    WHAT picks files whose path holds this text: "head", "entry", "agent", a pool, a task ("gpu-3"), "replica-0".
    """
    folder, _ = opened(name)
    root = folder.path / "logs"

    def files() -> list[Path]:
        return [
            path for path in sorted(root.rglob("*.log")) if what is None or what in str(path.relative_to(root))
        ]

    if not files() and not follow:
        raise DeploymentError(f'no log of {name} has "{what}" in its path' if what else f"{name} has no logs yet")
    if only_list:
        click.echo("\n".join(map(str, files())))
        return
    follower = Follower(root, lines)
    while True:
        for path, text in follower.news(files()):
            click.echo(click.style(f"==> {path.relative_to(root)} <==", bold=True))
            click.echo(text, nl=not text.endswith("\n"))
        if not follow:
            return
        time.sleep(0.5)
