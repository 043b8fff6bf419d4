"""`exahpc logs`: what the processes of a deployment wrote."""

from __future__ import annotations

import contextlib
import time

import click

from exahpc.cli.common import deployment_argument, opened
from exahpc.errors import DeploymentError
from exahpc.launch.tail import Follower, log_files
from exahpc.telemetry.story import story


@click.command()
@deployment_argument()
@click.argument("what", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=20, show_default=True, help="Lines of each file.")
@click.option("--list", "only_list", is_flag=True, help="Print the files' paths only.")
@click.option("--request", metavar="ID", help="The story of one request, in order, from all files.")
def logs(name: str, what: tuple[str, ...], follow: bool, lines: int, only_list: bool, request: str | None) -> None:
    """Show the logs of NAME.

    WHAT picks files whose path holds one of these texts: head, entry, agent, a pool, a task (gpu-3), replica-0.

    ID is the id of an answer (its `id`, or the header x-request-id), or what the client sent as x-request-id or
    trace id. A request is logged when something went wrong, and from end to end when its client sent a
    `traceparent` with the sampled flag.
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
    if request is not None:
        found = story(files, request)
        if not found:
            raise DeploymentError(
                f"no line about {request!r}: a request is logged when something went wrong, or when its client "
                "sends `traceparent` with the sampled flag"
            )
        for path, line in found:
            click.echo(f"{click.style(str(path.relative_to(root)), dim=True)}  {line}")
        return
    follower = Follower(root, lines)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for path, text in follower.news(log_files(root, what)):
                click.echo(click.style(f"==> {path.relative_to(root)} <==", bold=True))
                click.echo(text, nl=not text.endswith("\n"))
            if not follow:
                return
            time.sleep(0.5)
