"""Laws of command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.agent.launch import environment, flavour, mpirun_argv, replica_argv
from exahpc.deployment.spec import Launcher, Pool
from exahpc.errors import DeploymentError

PROGRAM = ("py", "-m", "exahpc.replica")


def test_a_rank_is_told_who_it_is() -> None:
    argv = replica_argv("/venv/bin/python", Path("/f"), "a", 3, 7, Path("/tmp/x/a.3.7.sock"))
    assert argv == (
        "/venv/bin/python", "-m", "exahpc.replica", "--folder", "/f", "--pool", "a", "--slot", "3",
        "--incarnation", "7", "--socket", "/tmp/x/a.3.7.sock",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "mpi"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", "openmpi"),
        ("mpirun (Open MPI) 5.0.11\n", "openmpi"),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n", "mpich"),
    ],
)
def test_mpi_is_told_from_its_version(version: str, mpi: str) -> None:
    assert flavour(version, "mpirun") == mpi


@pytest.mark.parametrize("version", ["", "slurm 22.05.8"])
def test_an_unknown_starter_is_refused_with_its_key(version: str) -> None:
    with pytest.raises(DeploymentError, match=r"launcher\.mpirun = 'x/mpirun'"):
        flavour(version, "x/mpirun")


def test_open_mpi_ranks_yield_and_are_bound_to_nothing() -> None:
    argv = mpirun_argv(Launcher(kind="local"), "openmpi", 4, PROGRAM)
    assert argv == (
        "mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", "-n", "4", *PROGRAM
    )  # fmt: skip


def test_only_root_says_that_it_is_root() -> None:
    assert "--allow-run-as-root" in mpirun_argv(Launcher(), "openmpi", 1, PROGRAM, root=True)
    assert "--allow-run-as-root" not in mpirun_argv(Launcher(), "mpich", 1, PROGRAM, root=True)


def test_the_sites_flags_come_after_ours_and_before_the_program() -> None:
    argv = mpirun_argv(Launcher(mpirun="/opt/mpirun", mpirun_flags=("-x", "Y")), "mpich", 2, PROGRAM)
    assert argv == ("/opt/mpirun", "-bind-to", "none", "-x", "Y", "-n", "2", *PROGRAM)


def test_threads_follow_the_pool_and_the_rest_is_kept() -> None:
    made = environment({"HOME": "/h", "OMP_NUM_THREADS": "64"}, Pool(name="a", threads_per_rank=3))
    assert (made["HOME"], made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"]) == ("/h", "3", "3")
