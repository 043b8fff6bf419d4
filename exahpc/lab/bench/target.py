"""A deployment as what the load client asks."""

from __future__ import annotations

import json
from pathlib import Path

from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, LinkError
from exahpc.lab.bench.wish import Target
from exahpc.wire.folder import Folder


def target_of(
    folder: Folder, deployment: Deployment, model: str | None = None, *, ignore_eos: bool = True
) -> tuple[Target, str]:
    """(target, key) of one that is up. Raises LinkError without an endpoint, DeploymentError without a key."""
    endpoint = folder.endpoint()
    if endpoint is None:
        name = folder.path.name
        raise LinkError(f"{name} has no endpoint yet: is it up? (`exahpc status {name}`)")
    try:
        key = next(iter(folder.api_keys()))
    except (FileNotFoundError, StopIteration):
        raise DeploymentError(f"{folder.path} holds no API key: run `exahpc up` again") from None
    vocabulary = vocabulary_of(Path(deployment.model.path))
    served = model or deployment.served_name
    return Target(endpoint.url, served, vocabulary, endpoint.ca or "", ignore_eos), key


def vocabulary_of(model: Path) -> int:
    """Of a model's folder; 0 where it cannot be read here: then prompts are words."""
    try:
        return int(json.loads((model / "config.json").read_text())["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
