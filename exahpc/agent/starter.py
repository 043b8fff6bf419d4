"""Starts the step of a slot: the one place that knows both launchers. Its methods block; `main` calls them in
threads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from exahpc.agent import launch
from exahpc.agent.steps import Step, adoptable, socket_path
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import DeploymentError, ExahpcError
from exahpc.models import copies
from exahpc.slurm import here
from exahpc.slurm.steps import replica_step
from exahpc.wire.folder import Folder, runtime_directory


class Starter:
    """Steps of one task of `pool`. version: label of the deployment file that they serve."""

    def __init__(self, folder: Folder, deployment: Deployment, pool: Pool, task: int, version: str = "") -> None:
        self._folder, self._deployment, self._pool, self._task = folder, deployment, pool, task
        self._version = version
        self._digest = hashlib.sha256(folder.version_toml(version).encode()).hexdigest()[:16]

    @property
    def node(self) -> str:
        """Name of the node that the steps run on."""
        return socket.gethostname()

    @property
    def runtime(self) -> Path:
        """Asked for anew each time: an agent beside us removes it when it leaves it empty."""
        job = here.task_id() if self._deployment.launcher.kind == "slurm" else None
        return runtime_directory(self._folder.path, socket.gethostname(), job or "")

    def adoptable(self, slots: Sequence[int]) -> list[Step]:
        return adoptable(self.runtime, self._pool.name, slots, self._digest, self._folder.path)

    def start(self, slot: int) -> Step:
        """Claim an incarnation and start its step. Raises OSError and ExahpcError."""
        pool = self._pool
        incarnation = self._folder.claim_incarnation(pool.name, str(slot))
        listen = socket_path(self.runtime, pool.name, slot, incarnation)
        name = f"{pool.name}.{slot}.{incarnation}"
        program = launch.replica_argv(
            here.interpreter(), self._folder.path, pool.name, slot, incarnation, listen, self._version
        )
        return Step.start(
            self._argv(name, program),
            self._environment(),
            pool=pool.name,
            slot=slot,
            incarnation=incarnation,
            socket=listen,
            log_file=self._folder.logs(f"{pool.name}-{self._task}", f"replica-{slot}.{incarnation}.log"),
            deployment=self._digest,
            scratch=listen.with_suffix(".tmp") if self._deployment.launcher.kind == "local" else None,
        )

    def _argv(self, name: str, program: tuple[str, ...]) -> tuple[str, ...]:
        launcher = self._deployment.launcher
        if launcher.kind == "slurm":
            return (*replica_step(self._deployment, self._pool, os.environ, name), *program)
        ranks = self._pool.ranks_per_replica
        return launch.mpirun_argv(launcher, flavour_of(launcher.mpirun), ranks, program, root=os.geteuid() == 0)

    def _environment(self) -> dict[str, str]:
        """With what `model.stage` means here: a step may have another TMPDIR, but replicas share their copy."""
        stage = str(copies.directory(self._deployment.model.stage, os.environ))
        return {**launch.environment(os.environ, self._pool), copies.DIRECTORY: stage}

    def leave(self) -> None:
        """Remove the copies of weights that nobody uses any more, and the runtime directory when it is empty."""
        with contextlib.suppress(ExahpcError):
            copies.Store(copies.directory(self._deployment.model.stage, os.environ)).sweep()
        try:
            self.runtime.rmdir()
        except OSError:
            return  # an agent beside us still needs it


@functools.cache
def flavour_of(mpirun: str) -> launch.Mpi:
    """Which MPI this starter belongs to. Raises DeploymentError when it cannot be run or is not known."""
    try:
        told = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeploymentError(
            f"launcher.mpirun = {mpirun!r} cannot be run ({error}): install Open MPI or MPICH, or name its mpirun"
        ) from None
    return launch.flavour(told.stdout + told.stderr, mpirun)
