"""Command lines of replica steps, and the environment they run in. Pure, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from exahpc.deployment.spec import Launcher, Pool
from exahpc.errors import DeploymentError

Mpi = Literal["openmpi", "mpich"]


def replica_argv(
    python: str, folder: Path, pool: str, slot: int, incarnation: int, socket: Path, version: str = ""
) -> tuple[str, ...]:
    """One rank of a replica. The socket's path stands on it, so every process of a step can be found by it."""
    return (
        *(python, "-m", "exahpc.replica"),
        *("--folder", str(folder)),
        *("--pool", pool),
        *("--slot", str(slot)),
        *("--incarnation", str(incarnation)),
        *("--socket", str(socket)),
        *(("--version", version) if version else ()),
    )


def flavour(version: str, mpirun: str) -> Mpi:
    """Which MPI an `mpirun --version` belongs to. Raises DeploymentError for one that is not known."""
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return "openmpi"
    if any(name in version for name in ("HYDRA", "Hydra", "MPICH", "mpich", "Intel(R) MPI")):
        return "mpich"
    first = version.strip().splitlines()[0] if version.strip() else "nothing"
    raise DeploymentError(
        f"launcher.mpirun = {mpirun!r} is neither Open MPI nor MPICH (its --version says {first!r}): "
        f"name one of those"
    )


def mpirun_argv(
    launcher: Launcher, mpi: Mpi, ranks: int, program: tuple[str, ...], *, root: bool = False
) -> tuple[str, ...]:
    """All ranks on this machine. More ranks than cores are fine here, so waiting ranks must yield."""
    match mpi:
        case "openmpi":
            flags = (
                *(("--allow-run-as-root",) if root else ()),
                "--oversubscribe",
                *("--mca", "mpi_yield_when_idle", "1"),
                *("--bind-to", "none"),
            )
        case "mpich":
            flags = ("-bind-to", "none")
    return (launcher.mpirun, *flags, *launcher.mpirun_flags, "-n", str(ranks), *program)


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment(base: Mapping[str, str], pool: Pool) -> dict[str, str]:
    """The agent's environment with the thread count of a rank. Results must not lag in a buffer: unbuffered."""
    changed = dict.fromkeys(_THREADS, str(pool.threads_per_rank))
    return {**base, **changed, "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
