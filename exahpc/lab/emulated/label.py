"""EMULATED: what keeps an emulated engine from being taken for a real one.

Nothing in a deployment file starts one: only the programs of this room do, and they refuse a deployment whose
model is not *named* so. The name is what clients ask for, what the list of models shows, and what every answer
says; the node's name, in `exahpc status` and in the log, says it again.
"""

from __future__ import annotations

from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.wire.folder import Folder

LABEL = "emulated"


def require_label(deployment: Deployment) -> None:
    """Raises DeploymentError unless whoever asks this deployment's model is told that it is emulated."""
    name = deployment.served_name
    if not name.startswith(LABEL):
        raise DeploymentError(
            f"model.name = {name!r}: emulated engines answer with made-up text, and serve only models whose name "
            f'begins with "{LABEL}"'
        )


def labelled(folder: Folder) -> Deployment:
    """The deployment of this folder. Raises DeploymentError, also when it is not labelled."""
    deployment = load(folder.toml, str(folder.path / "deployment.toml"))
    require_label(deployment)
    return deployment


def node_name(task: int) -> str:
    """What `status` shows as the node of an emulated task."""
    return f"{LABEL}-{task}"
