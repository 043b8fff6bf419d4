"""The looks at a node, its files and Slurm's answers, against stand-ins for both good and bad ones."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from exahpc.launch.doctor import node
from exahpc.launch.doctor.slurm_facts import plugins


def test_a_local_file_system_is_sound(tmp_path: Path) -> None:
    found = node.files(tmp_path, 1, 0.0)
    assert (found.torn, found.twice, found.locks, found.won, found.missing) == (0, False, "", None, ())
    assert found.fsync > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_files_that_are_replaced_in_place_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_rewrite", lambda path, versions: [path.write_bytes(b"") for _ in range(2000)])
    assert node._torn(tmp_path / "file") > 0


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(file: Any, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert node._locks(tmp_path / "lock") == os.strerror(code)


def test_locks_that_keep_nobody_out_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    assert node._locks(tmp_path / "lock") == "two holders at once"


def test_of_nodes_that_want_one_name_one_gets_it_and_lost_ones_are_counted(tmp_path: Path) -> None:
    assert node._among(tmp_path, "n1", 2, 0.0) == (True, ("1 of 2 nodes",))
    assert node._among(tmp_path, "n2", 2, 0.0) == (False, ())


def test_ports_of_a_fabric_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    for name, state, rate in (("mlx5_0", "4: ACTIVE", "200 Gb/sec (4X HDR)"), ("hfi1_0", "1: DOWN", "2.5 Gb/sec")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text(rate + "\n")
    assert [(port.device, port.active, port.rate) for port in node.fabric_ports(tmp_path)] == [
        ("hfi1_0", False, 2.5),
        ("mlx5_0", True, 200.0),
    ]
    assert node.fabric_ports(tmp_path / "none") == ()


def test_slurms_commands_are_not_tried_outside_a_job() -> None:
    assert node.commands({}) is None


def test_a_node_without_slurms_commands_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "scontrol is not on PATH" in (node.commands({"SLURM_JOB_ID": "7"}) or "")


@pytest.mark.parametrize(
    "text",
    [
        "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\n",
        "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n",
    ],
)
def test_mpi_plugins_are_read_in_both_forms(text: str) -> None:
    assert plugins(text) == ("none", "pmi2", "pmix")
