"""`exahpc ladder --simulate`: files, resuming, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest
from click.testing import CliRunner, Result

from exahpc.cli import main

TOML = """
name = "rungs"
[model]
path = "/nowhere/model"
[[pool]]
name = "a"
replicas = 2
replicas_per_task = 2
max_sequences = 4
[launcher]
kind = "local"
"""


def climb(folder: Path, *more: str) -> Result:
    file = folder / "rungs.toml"
    file.write_text(TOML)
    arguments = [
        "--nodes",
        "1,2",
        "--rate",
        "4",
        "--seconds",
        "5",
        "--ramp",
        "1",
        "--drain",
        "5",
        "-o",
        str(folder / "out"),
    ]
    return CliRunner().invoke(main, ["ladder", str(file), *arguments, *more])


def test_a_simulated_ladder_is_written_as_json_and_hdf5_and_says_that_it_is_emulated(tmp_path: Path) -> None:
    done = climb(tmp_path, "--simulate", "--arrivals", "fixed", "--slo", "ttft=2s")
    assert done.exit_code == 0, done.output
    assert "EMULATED" in done.output
    assert "EXTRAPOLATED to 4 nodes" in done.output
    found = json.loads((tmp_path / "out" / "ladder.json").read_text())
    assert [step["nodes"] for step in found["steps"]] == [1, 2]
    assert [step["replicas"] for step in found["steps"]] == [2, 4]
    assert [step["requests_per_second"] for step in found["steps"]] == pytest.approx([4, 8], rel=0.15)
    assert all(step["goodput"] > 0 for step in found["steps"])
    with h5py.File(tmp_path / "out" / "ladder.h5") as file:
        assert list(file["nodes"]) == [1, 2]
        assert file.attrs["emulated"]
        assert file["tokens_per_second"][1] == found["steps"][1]["tokens_per_second"]


def test_the_same_command_goes_on_after_the_steps_that_are_done(tmp_path: Path) -> None:
    assert climb(tmp_path, "--simulate").exit_code == 0
    path = tmp_path / "out" / "ladder.json"
    found = json.loads(path.read_text())
    found["steps"] = found["steps"][:1]
    found["steps"][0]["replicas"] = 77
    path.write_text(json.dumps(found))
    done = climb(tmp_path, "--simulate")
    assert "going on after 1 of 2 steps" in done.output
    assert [step["replicas"] for step in json.loads(path.read_text())["steps"]] == [77, 4]


def test_another_question_is_not_mixed_with_the_first(tmp_path: Path) -> None:
    assert climb(tmp_path, "--simulate").exit_code == 0
    done = climb(tmp_path, "--simulate", "--seed", "2")
    assert done.exit_code == 2
    assert "another --output" in done.output


def test_all_figures_as_json(tmp_path: Path) -> None:
    done = climb(tmp_path, "--simulate", "--json")
    assert json.loads(done.stdout)["fit"]["first"] == 1


def test_clients_that_wait_cannot_be_simulated_and_a_model_must_exist_to_run(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(TOML)
    run = CliRunner().invoke
    done = run(main, ["ladder", str(file), "--concurrency", "4", "--simulate", "-o", str(tmp_path / "a")])
    assert (done.exit_code, "give --rate" in done.output) == (2, True)
    done = run(main, ["ladder", str(file), "--rate", "4", "-o", str(tmp_path / "b")])
    assert (done.exit_code, "there is no such folder" in done.output) == (2, True)
    done = run(main, ["ladder", str(file), "--rate", "4", "--nodes", "4,2"])
    assert (done.exit_code, "rising" in done.output) == (2, True)
    assert run(main, ["ladder", str(file)]).exit_code == 2
