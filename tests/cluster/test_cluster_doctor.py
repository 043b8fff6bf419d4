"""`exahpc doctor` on a real Slurm: through a short job on two nodes, joined with what the login node sees."""

from __future__ import annotations

import json

import pytest

from exahpc.launch.doctor.finding import CHECKS
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import home
from tests.live import Live, processes_of

pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.timeout(400)]

TOML = """
[slurm]
partition = "main"
time = "0:10:00"
memory = "2G"
gres = "gpu:tile:2"

[[pool]]
name = "a"
replicas = 2
"""


def test_the_doctor_sees_two_nodes_of_the_development_cluster(cluster: DevCluster) -> None:
    with home() as made:
        live = Live(made, "doctored", {"SLURM_CONF": cluster.conf})
        model = (
            f'name = "doctored"\n[model]\npath = "{made / "models" / "tiny"}"\ndtype = "float32"\ncontext = 2048\n'
        )
        file = made / "doctored.toml"
        file.write_text(model + TOML)
        done = live.run(
            "doctor", str(file), "--nodes", "2", "--json", "--gate", "few-nodes", check=False, seconds=240
        )
        assert done.returncode in (0, 3), f"{done.returncode}: {done.stderr}{done.stdout}"
        told = json.loads(done.stdout)
        found = {one["check"]: one for one in told["findings"]}
        assert list(found) == list(CHECKS)
        assert {name for name, one in found.items() if one["verdict"] == "fail"} == set(), told
        assert {name for name, one in found.items() if one["verdict"] == "skipped"} == set(), told
        assert "2 ranks on 2 node(s)" in found["mpi-across"]["detail"]
        assert "4 nodes have a known switch" in found["slurm-topology"]["detail"]
        assert found["slurm-processes"]["verdict"] == "warn", "this cluster has no cgroups"
        assert found["slurm-end"]["verdict"] == "warn", "KillWait is 5 s here"
        assert told["open"]
        assert done.returncode == 0
        assert not cluster.run("squeue", "-h", "-o", "%i").strip(), "no job is left"
        assert not list(made.glob(".doctor-*")), "no file is left"
        assert not processes_of(made)

        wrong = file.read_text().replace('partition = "main"', 'partition = "nobody"')
        file.write_text(wrong)
        refused = live.run("doctor", str(file), "--json", check=False)
        assert refused.returncode == 3
        submit = next(one for one in json.loads(refused.stdout)["findings"] if one["check"] == "slurm-submit")
        assert submit["verdict"] == "fail"
        assert "partition" in submit["detail"]
