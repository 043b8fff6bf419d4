"""The static scripts and the replicas' steps, run by Slurm itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from exahpc.deployment.spec import Deployment, Model, Pool, SlurmResources
from exahpc.slurm import scripts
from exahpc.slurm.cli import CommandLine
from exahpc.slurm.steps import replica_step
from exahpc.slurm.submission import head_submission, pool_submission

from .conftest import DevCluster, wait_for

pytestmark = pytest.mark.cluster

POOL = Pool(name="a", replicas=2, tensor_parallel=1)
DEPLOYMENT = Deployment(name="t", model=Model(path="/m"), pool=(POOL,), slurm=SlurmResources(gres="gpu:tile:12"))

PYTHON = """#!/bin/bash
# stands in for the interpreter: `-m MODULE ...` appends what happens to it to DIR/events
module=$2 directory={directory}
note() {{ echo "$module $SLURM_ARRAY_TASK_ID $*" >>"$directory/events"; }}
trap 'note TERM; exit 0' TERM
note "start $PYTHONUNBUFFERED $OMP_NUM_THREADS $(umask) $HOME"
echo $$ >"$directory/$module.$SLURM_ARRAY_TASK_ID.pid"
hostname >"$directory/$module.$SLURM_ARRAY_TASK_ID.node"
[ -e "$directory/step" ] || {{ touch "$directory/step"; setsid sleep 3333 & }}
while [ ! -e "$directory/$module.$SLURM_ARRAY_TASK_ID.end" ]; do sleep 0.1; done
note end
exit "$(cat "$directory/$module.$SLURM_ARRAY_TASK_ID.end")"
"""


class Site:
    """A folder, a stand-in for Python, and what was seen."""

    def __init__(self, directory: Path, cluster: DevCluster) -> None:
        self.directory, self.cluster = directory, cluster
        self.client = CommandLine()
        self.python = directory / "python"
        self.python.write_text(PYTHON.format(directory=directory))
        self.python.chmod(0o755)

    def events(self) -> list[str]:
        path = self.directory / "events"
        return path.read_text().splitlines() if path.exists() else []

    def sees(self, words: str, times: int = 1) -> None:
        wait_for(
            lambda: sum(words in event for event in self.events()) >= times, f"{words} in {self.events()}", 40
        )

    def node(self, process: str) -> str:
        return (self.directory / f"{process}.node").read_text().strip()

    def kill(self, process: str) -> None:
        """SIGKILL, on its node."""
        pid = (self.directory / f"{process}.pid").read_text().strip()
        self.cluster.exec(self.node(process), "kill", "-9", pid)

    def sleepers(self, node: str) -> list[str]:
        """Processes that stand for replica steps."""
        return self.cluster.exec(node, "bash", "-c", "pgrep -f '^sleep 3333' || true").split()

    def state(self, job: str) -> str:
        (record,) = self.client.jobs([job])
        return record.state

    def reaches(self, job: str, state: str) -> None:
        wait_for(lambda: self.state(job) == state, f"{job} is {state}, not {self.state(job)}", 40)


@pytest.fixture
def site(cluster: DevCluster, tmp_path: Path) -> Site:
    return Site(tmp_path, cluster)


def test_a_dead_agent_is_restarted_in_place_and_its_steps_live_on_until_the_tasks_end(site: Site) -> None:
    array = site.client.submit(
        pool_submission(DEPLOYMENT, POOL, site.directory, str(site.python), scripts.directory(), array="0")
    )
    site.sees("exahpc.agent 0 start 1 1 0077")
    node = site.node("exahpc.agent.0")
    wait_for(lambda: site.sleepers(node), "the step runs")
    site.kill("exahpc.agent.0")
    site.sees("exahpc.agent 0 start", 2)
    assert site.sleepers(node)
    (site.directory / "exahpc.agent.0.end").write_text("75")
    site.sees("exahpc.agent 0 end")
    (site.directory / "exahpc.agent.0.end").unlink()
    site.sees("exahpc.agent 0 start", 3)  # Slurm has requeued the task
    assert site.client.jobs([f"{array}_0"])[0].restarts == 1
    assert not site.sleepers(node)
    (site.directory / "exahpc.agent.0.end").write_text("0")
    site.reaches(f"{array}_0", "completed")


def test_cancelling_lets_the_agent_end_in_order(site: Site) -> None:
    array = site.client.submit(
        pool_submission(DEPLOYMENT, POOL, site.directory, str(site.python), scripts.directory())
    )
    site.sees("exahpc.agent 0 start")
    site.sees("exahpc.agent 1 start")
    site.client.cancel(f"{array}_1")
    site.sees("exahpc.agent 1 TERM")
    site.reaches(f"{array}_1", "failed")
    assert site.state(f"{array}_0") == "running"
    assert not any("agent 0 TERM" in event for event in site.events())


def test_the_heads_broker_comes_back_and_its_orderly_end_completes_the_job(site: Site) -> None:
    job = site.client.submit(head_submission(DEPLOYMENT, site.directory, str(site.python), scripts.directory()))
    site.sees("exahpc.entry  start", 2)
    site.sees("exahpc.broker  start")
    site.kill("exahpc.broker.")
    site.sees("exahpc.broker  start", 2)
    (site.directory / "exahpc.broker..end").write_text("0")
    site.reaches(job, "completed")
    assert sum(event == "exahpc.entry  TERM" for event in site.events()) == 2


MPI = """
import json, os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
told = world.gather((os.environ["SLURMD_NODENAME"], os.environ.get("CUDA_VISIBLE_DEVICES"),
                     int(os.environ["SLURM_LOCALID"])))
if world.rank == 0:
    print(json.dumps({"size": world.size, "ranks": told, "time": time.time()}), flush=True)
time.sleep(float(sys.argv[1]))
"""


def run_steps(
    site: Site, pool: Pool, steps: Callable[[tuple[str, ...]], str], *, memory: str | None = None
) -> list[dict[str, object]]:
    """Run a job of the pool's shape whose script is `steps(argv of one replica's step)`; what the steps said."""
    resources = msgspec.structs.replace(DEPLOYMENT.slurm, memory=memory)
    deployment = msgspec.structs.replace(DEPLOYMENT, slurm=resources, pool=(pool,))
    environ = {"SLURM_MEM_PER_NODE": memory.rstrip("M")} if memory else {}
    program = site.directory / "mpi.py"
    program.write_text(MPI)
    argv = (*replica_step(deployment, pool, environ, "step"), sys.executable, str(program))
    script = site.directory / "job"
    script.write_text(f"#!/bin/bash\ncd {site.directory}\n{steps(argv)}\nwait\n")
    made = pool_submission(deployment, pool, site.directory, "python", Path("/"), array="0")
    job = site.client.submit(msgspec.structs.replace(made, script=str(script)))
    wait_for(lambda: site.state(f"{job}_0") in ("completed", "failed"), "the steps have run", 60)
    return [
        msgspec.json.decode(line)
        for file in sorted(site.directory.glob("step*.out"))
        for line in file.read_text().splitlines()
        if line.startswith("{")
    ]


def test_one_replica_spans_two_nodes_as_one_mpi_world(site: Site) -> None:
    pool = Pool(name="b", nodes_per_replica=2, tensor_parallel=2, pipeline_parallel=2)
    (told,) = run_steps(site, pool, lambda argv: f"{' '.join(argv)} 0 >step.out 2>&1")
    assert told["size"] == 4
    first, second = told["ranks"][0][0], told["ranks"][2][0]
    assert first != second
    assert told["ranks"] == [[first, "0,1", 0], [first, "0,1", 1], [second, "0,1", 0], [second, "0,1", 1]]


def test_replicas_of_a_node_run_side_by_side_on_devices_of_their_own(site: Site) -> None:
    pool = Pool(name="c", replicas=3, replicas_per_task=3, tensor_parallel=2, devices_per_rank=2)
    told = run_steps(
        site,
        pool,
        lambda argv: "\n".join(f"{' '.join(argv)} 4 >step{n}.out 2>&1 &" for n in range(3)),
        memory="3000M",  # counted per node: without its own share each step would take all of it
    )
    assert [answer["size"] for answer in told] == [2, 2, 2]
    assert len({answer["ranks"][0][1] for answer in told}) == 3
    assert sorted(",".join(answer["ranks"][0][1] for answer in told).split(","), key=int) == [
        str(device) for device in range(12)
    ]
    times = [answer["time"] for answer in told]
    assert max(times) - min(times) < 4, "the steps ran one after another"
