"""A packed environment on a real Slurm: each node unpacks it once, and Python comes from there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.deployment.spec import Deployment, Launcher, Model, Pool
from exahpc.launch.pack import pack
from exahpc.slurm import scripts
from exahpc.slurm.cli import CommandLine
from exahpc.slurm.submission import pool_submission
from tests.cluster.conftest import DevCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

AGENT = """
import os, subprocess, sys, pathlib, socket, noted
folder, task = pathlib.Path(sys.argv[sys.argv.index("--folder") + 1]), os.environ["SLURM_ARRAY_TASK_ID"]
rank = "import os, noted; print(os.environ['SLURMD_NODENAME'], noted.__file__)"
nodes = os.environ["SLURM_JOB_NUM_NODES"]
step = ["srun", "--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1", "--mpi=none", "--export=ALL"]
told = subprocess.run([*step, sys.executable, "-c", rank], capture_output=True, text=True)
words = f"{socket.gethostname()} {noted.__file__}\\n{told.stdout}{told.stderr}"
(folder / f".{task}").write_text(words)
(folder / f".{task}").rename(folder / f"told-{task}")
"""


@pytest.fixture
def site() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="exahpc-packed-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_each_node_unpacks_the_environment_once_and_imports_from_its_copy(cluster: DevCluster, site: Path) -> None:
    prefix = site / "env"
    venv.create(prefix, symlinks=True)
    found = prefix / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (found / "noted.py").write_text("")
    pack(site / "whole.tar.gz", ["*/exahpc/agent/*"], prefix)
    # a stand-in for the agent, in the file alone: what runs can only have come from a copy
    (site / "more" / "exahpc" / "agent").mkdir(parents=True)
    (site / "more" / "exahpc" / "agent" / "__main__.py").write_text(AGENT)
    shutil.unpack_archive(site / "whole.tar.gz", site / "again", filter="fully_trusted")
    inside = site / "again" / found.relative_to(prefix) / "exahpc" / "agent"
    shutil.copytree(site / "more" / "exahpc" / "agent", inside)
    shutil.make_archive(str(site / "packed"), "gztar", site / "again")
    for name in ("again", "env"):
        shutil.rmtree(site / name)
    for node in cluster.nodes:
        (site / f"disk-{node}").mkdir()

    launcher = Launcher(environment=str(site / "packed.tar.gz"), environment_in=f"{site}/disk-$SLURMD_NODENAME")
    pool = Pool(name="a", replicas=6)
    deployment = Deployment(name="packed", model=Model(path="/m"), pool=(pool,), launcher=launcher)
    client, where = CommandLine(), scripts.directory()
    client.submit(pool_submission(deployment, pool, site, "/nowhere/python", where))
    wait_for(lambda: len(list(site.glob("told-*"))) == 6, "all tasks told", 120, cluster)
    told = {file.name: file.read_text() for file in site.glob("told-*")}
    for words in told.values():
        for line in words.splitlines():
            node, path = line.split(" ", 1)
            assert path.startswith(f"{site}/disk-{node}/exahpc-env-{os.getuid()}/packed-"), words
    used = {words.split()[0] for words in told.values()}
    logs = "".join(file.read_text() for file in (site / "logs" / "slurm").glob("*"))
    assert logs.count(": unpacked ") == len(used), logs
    copies = [copy for node in cluster.nodes for copy in (site / f"disk-{node}").glob("*/packed-*")]
    assert len(copies) == len(used), "one copy a node, however many tasks"
