"""Where deployments lie on disk, and how one is found by its name."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from exahpc.errors import DeploymentError
from exahpc.wire.folder import Folder


def home() -> Path:
    """Directory of all deployments of this user: $EXAHPC_HOME, else ~/.exahpc."""
    return Path(os.environ.get("EXAHPC_HOME") or "~/.exahpc").expanduser().absolute()


def cache() -> Path:
    """Directory of fetched models: $XDG_CACHE_HOME/exahpc/models, else ~/.cache/exahpc/models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "exahpc" / "models"


def names() -> list[str]:
    """All deployments, also ended ones whose folder was kept."""
    try:
        found = [entry.name for entry in os.scandir(home()) if Path(entry.path, "deployment.toml").is_file()]
    except FileNotFoundError:
        return []
    return sorted(found)


def folder_of(name: str) -> Folder:
    """The folder of a deployment, by its name or by the folder's own path.

    Raises DeploymentError that lists what there is.
    """
    path = Path(name).expanduser().absolute() if os.sep in name else home() / name
    if (path / "deployment.toml").is_file():
        return Folder(path)
    known = names()
    close = difflib.get_close_matches(name, known, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(known) or 'none'}"
    raise DeploymentError(f'no deployment "{name}" in {home()}: {hint} (start one with `exahpc up FILE`)')
