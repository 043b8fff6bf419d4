"""What several commands share: consoles, the NAME argument, access to a live deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem
from rich.console import Console

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, LinkError
from exahpc.launch import place
from exahpc.slurm.api import SlurmClient
from exahpc.slurm.choose import choose
from exahpc.wire.folder import Endpoint, Folder

F = TypeVar("F", bound=Callable[..., Any])

notes = Console(stderr=True, highlight=False)
"""For people: progress, hints. Results go to standard output through `click.echo`."""


class _DeploymentName(click.ParamType[str]):
    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in place.names() if name.startswith(incomplete)]


def deployment_argument(*, required: bool = True) -> Callable[[F], F]:
    return click.argument("name", type=_DeploymentName(), required=required)


def opened(name: str) -> tuple[Folder, Deployment]:
    """A deployment's folder and what was submitted. Raises DeploymentError when there is none."""
    folder = place.folder_of(name)
    return folder, parse.load(folder.toml, str(folder.path / "deployment.toml"))


def slurm_client(deployment: Deployment) -> SlurmClient | None:
    """None for the local launcher. Raises SlurmError when there is no Slurm to be asked."""
    return None if deployment.launcher.kind == "local" else choose()[0]


def live_endpoint(folder: Folder) -> Endpoint:
    """Where clients go. Raises LinkError while no entry has published it."""
    endpoint = folder.endpoint()
    if endpoint is None:
        name = folder.path.name
        raise LinkError(f"{name} has no endpoint yet: is it up? (`exahpc status {name}`)")
    return endpoint


def first_key(folder: Folder) -> str:
    """An API key of this deployment. Raises DeploymentError when there is none."""
    try:
        return next(iter(folder.api_keys()))
    except (FileNotFoundError, StopIteration):
        raise DeploymentError(f"{folder.path} holds no API key: run `exahpc up` again") from None


def json_text(value: Any) -> str:
    """Indented JSON of any of our values, with the names of their fields (on the wire most of them go without)."""
    return msgspec.json.format(msgspec.json.encode(_named(value)), indent=2).decode()


def _named(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return {name: _named(field) for name, field in msgspec.structs.asdict(value).items()}
        case list() | tuple():
            return [_named(item) for item in value]
        case _:
            return value


def readable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of a text parameter: what the shell gave must be text."""
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter(f"character {error.start + 1} is not valid UTF-8: write it in UTF-8") from None
    return value
