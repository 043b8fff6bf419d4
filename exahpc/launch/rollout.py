"""`rollout`: everything between a new deployment file and the broker's promise to bring it into force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from exahpc.deployment import parse, render, versions
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, LinkError
from exahpc.launch import prepare
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask

_PATIENCE = 60.0
"""Seconds in which no broker may answer before a look at a rollout gives up: one may be restarting."""


def read(base: Deployment, file: Path) -> Deployment:
    """A deployment file that may replace `base` while its jobs run, checked as `up` would.

    Raises DeploymentError.
    """
    found = prepare.read(file, base.name)
    if parse.load(file.read_text(), str(file)).launcher.python is None:  # else whoever calls us would settle it
        found = msgspec.structs.replace(
            found, launcher=msgspec.structs.replace(found.launcher, python=base.launcher.python)
        )
    versions.check(base, found, str(file))
    prepare.check_stage(found)
    prepare.check_model(found)
    prepare.check_programs(found)
    return found


def add(folder: Folder, new: Deployment, label: str | None) -> str:
    """Put the file of a version into the folder; returns its label, which is a hash of the file unless given.

    Raises DeploymentError when the label is another file's, or the version in force is the same.
    """
    toml = render.toml(new)
    if toml == folder.version_toml(folder.version_in_force()):
        raise DeploymentError(f"this file is in force in {folder.path.name} already: there is nothing to change")
    if label is None:
        label = "" if toml == folder.toml else versions.label_of(toml)
    else:
        versions.check_label(label)
        if label in folder.versions() and folder.version_toml(label) != toml:
            raise DeploymentError(f"--label {label}: another file has this label: choose another one")
    if label:
        folder.add_version(label, toml)
    return label


def known(folder: Folder, label: str) -> str:
    """A label of this deployment as processes know it. Raises DeploymentError that lists what there is."""
    if label == versions.BASE:
        return ""
    versions.check_label(label)
    folder.version_toml(label)
    return label


def tell(folder: Folder, message: m.Message) -> m.RolloutStatus:
    """Ask the broker. Raises LinkError when none answers, DeploymentError when it refuses."""
    record = folder.head()
    if record is None:
        name = folder.path.name
        raise LinkError(f"{name} has no head: is it up? (`exahpc status {name}`)")
    answer = ask(folder.fleet_key(), record.address, message, m.BrokerToClient)
    if isinstance(answer, m.Refused):
        raise DeploymentError(answer.reason)
    if not isinstance(answer, m.RolloutStatus):
        raise LinkError(f"the broker answered {type(answer).__name__}: is it of another version of exahpc?")
    return answer


def start(folder: Folder, version: str, *, fresh: bool) -> None:
    """Have the broker bring a version into force. fresh: its file was added for this, and goes again when the
    broker refuses.

    Raises what `tell` does.
    """
    try:
        tell(folder, m.RolloutStart(version))
    except DeploymentError:
        if fresh:
            folder.drop_version(version)
        raise


def follow(
    folder: Folder, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[m.RolloutStatus]:
    """Looks once a second until the rollout has ended; a broker may restart meanwhile. Raises LinkError."""
    heard = clock()
    while True:
        try:
            status = tell(folder, m.RolloutQuery())
        except LinkError:
            if clock() - heard > _PATIENCE:
                raise
        else:
            heard = clock()
            yield status
            if status.phase in ("idle", "done", "reverted"):
                return
        sleep(1.0)
