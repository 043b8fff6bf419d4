"""Where the static batch scripts lie."""

from __future__ import annotations

from pathlib import Path

from exahpc.errors import DeploymentError

_NAMES = ("head.sbatch", "replica.sbatch", "doctor.sbatch", "supervise.sh")


def directory() -> Path:
    """Folder with the batch scripts and supervise.sh: in the installed package, or in a checkout.

    Raises DeploymentError when neither has them.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "_scripts", package.parent / "slurm"):
        if all((candidate / name).is_file() for name in _NAMES):
            return candidate
    raise DeploymentError(f"{package} was installed without its batch scripts ({', '.join(_NAMES)}): reinstall it")
