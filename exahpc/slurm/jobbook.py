"""Job ids of a deployment, in its folder: what `down` cancels and the broker asks Slurm about."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exahpc.errors import DeploymentError
from exahpc.wire.folder import write_atomic


class JobBook(msgspec.Struct, frozen=True):
    """head: job of the head, if it has one; pools: array ids of each pool, oldest first; chain: "pool/task" -> its
    successors that were submitted in advance ("<array>_<task>"), in their order."""

    head: str | None
    pools: dict[str, list[str]]
    chain: dict[str, list[str]] = {}

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

    @property
    def jobs(self) -> list[str]:
        """All ids: the head's first."""
        arrays = [job for jobs in self.pools.values() for job in jobs]
        chained = [job.partition("_")[0] for jobs in self.chain.values() for job in jobs]
        return [*([self.head] if self.head else []), *dict.fromkeys([*arrays, *chained])]

    def noting(self, pool: str, array: str) -> JobBook:
        """With one more array of this pool."""
        known = self.pools.get(pool, [])
        if array in known:
            return self
        return msgspec.structs.replace(self, pools={**self.pools, pool: [*known, array]})

    def without(self, arrays: set[str]) -> JobBook:
        """Without arrays that are over. The first of each pool stays: it names tasks that were never heard of."""
        pools = {
            pool: jobs[:1] + [job for job in jobs[1:] if job not in arrays] for pool, jobs in self.pools.items()
        }
        return msgspec.structs.replace(self, pools=pools)

    def save(self, folder: Path) -> None:
        """Replace the file whole. Job ids must survive anything, so it is written through to the disk."""
        path = _path(folder)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, msgspec.json.encode(self), durable=True)


def _path(folder: Path) -> Path:
    return folder / "slurm" / "jobs.json"
