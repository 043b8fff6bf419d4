"""Job ids of a deployment, in its folder: what `down` cancels and the broker asks Slurm about."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exahpc.errors import DeploymentError
from exahpc.wire.folder import write_atomic


class JobBook(msgspec.Struct, frozen=True):
    """head: job of the head, if it has one; pools: array ids of each pool, oldest first."""

    head: str | None
    pools: dict[str, list[str]]

    @staticmethod
    def load(folder: Path) -> JobBook:
        """An empty book when nothing was submitted. Raises DeploymentError when the file cannot be read."""
        path = _path(folder)
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobBook)
        except FileNotFoundError:
            return JobBook(None, {})
        except msgspec.MsgspecError as error:
            raise DeploymentError(
                f"{path} is damaged ({error}): find the jobs with `squeue --me`, cancel them, and remove the file"
            ) from None

    def save(self, folder: Path) -> None:
        """Replace the file whole. Job ids must survive anything, so it is written through to the disk."""
        path = _path(folder)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, msgspec.json.encode(self), durable=True)


def _path(folder: Path) -> Path:
    return folder / "slurm" / "jobs.json"
