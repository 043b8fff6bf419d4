"""Where the static batch scripts lie."""

from __future__ import annotations

import os
from pathlib import Path

from exahpc.errors import DeploymentError

NAMES = ("head.sbatch", "replica.sbatch", "doctor.sbatch", "supervise.sh")
GIVEN = "EXAHPC_SCRIPTS"
"""Environment variable of what runs from a packed environment: the scripts that all nodes see, not its copy's."""


def directory() -> Path:
    """Folder with the batch scripts and supervise.sh: in the installed package, or in a checkout.

    Raises DeploymentError when neither has them.
    """
    given = os.environ.get(GIVEN)
    package = Path(__file__).resolve().parents[1]
    for candidate in (*([Path(given)] if given else []), package / "_scripts", package.parent / "slurm"):
        if all((candidate / name).is_file() for name in NAMES):
            return candidate
    raise DeploymentError(f"{package} was installed without its batch scripts ({', '.join(NAMES)}): reinstall it")
