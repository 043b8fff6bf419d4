"""A deployment of two pools on the development cluster: real Slurm, real MPI, the official client.

Pool `a`: an array of two one-node tasks. Pool `b`: one task of two nodes that holds a 2x2 replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from exahpc.slurm.jobbook import JobBook
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.cluster.faults import Batch, void
from tests.live import Live, Load, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TOML = """
[slurm]
partition = "main"
time = "1:00:00"
extra = ["--exclude=sp1"]
[[pool]]
name = "a"
replicas = 2
max_sequences = 8
slurm.gres = "gpu:tile:7"
[[pool]]
name = "b"
nodes_per_replica = 2
tensor_parallel = 2
pipeline_parallel = 2
max_sequences = 4
slurm.gres = "gpu:tile:7"
[head]
entries = 2
slurm.extra = ["--nodelist=sp1"]
[recovery]
backoff_seconds = 0.2
beat_seconds = 1.0
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    """sp1 for the head, four for the replicas, one to spare."""
    with devcluster("sp", 6) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spine(nodes: DevCluster) -> Iterator[Live]:
    with home(layers=4) as made, deployed(nodes, made, "spine", TOML) as live:
        yield live
    for node in nodes.nodes:
        assert not nodes.exec(node, "ls", "/dev/shm").strip(), f"down leaves /dev/shm of {node} empty"


def under_load(live: Live, fault: Callable[[], None], seconds: float = 6) -> None:
    """No stream fails, and every text equals the undisturbed one."""
    load = Load(live, streams=4, tokens=400)
    time.sleep(1)
    fault()
    time.sleep(seconds)
    load.stop()
    assert load.texts
    for prompt in {p for p, _ in load.texts}:
        assert {t for p, t in load.texts if p == prompt} == {live.stream(prompt, 400)}


def node_of(live: Live, pool: str, task: int) -> str:
    agent = live.agent(pool, task)
    assert agent is not None
    return agent.node


def test_every_replica_gives_the_same_text_and_ready_means_all_answered(spine: Live) -> None:
    found = spine.status()
    assert found is not None
    assert (found.ready, found.wanted) == (3, 3)
    before = spine.tokens()
    assert len(before) == 3
    with ThreadPoolExecutor(9) as side_by_side:
        texts = side_by_side.map(lambda _: spine.stream("the same everywhere", 120), range(9))
        assert len(set(texts)) == 1
    until("every replica answered", lambda: all(n > before[key] for key, n in spine.tokens().items()), 20)


def test_a_key_never_crosses_the_fabric_in_clear_and_no_job_record_holds_a_secret(
    spine: Live, nodes: DevCluster
) -> None:
    endpoint = spine.folder.endpoint()
    assert endpoint is not None
    assert endpoint.url.startswith("https://")
    told = nodes.run("scontrol", "show", "jobs", "--details") + nodes.run("scontrol", "show", "steps")
    assert str(spine.folder.path) in told
    for secret in (spine.key, spine.folder.fleet_key().secret):
        assert secret not in told
        for path in (spine.folder.path / "logs").rglob("*"):
            assert path.is_dir() or secret.encode() not in path.read_bytes(), path


def test_tasks_are_array_elements_on_their_own_nodes(spine: Live, nodes: DevCluster) -> None:
    book = JobBook.load(spine.folder.path)
    lines = nodes.run("squeue", "-h", "-r", "-O", "ArrayJobID:20,ArrayTaskID:20,NumNodes:10,State:20").splitlines()
    tasks = {(job, task): int(nodes) for job, task, nodes, _ in (line.split() for line in lines) if task != "N/A"}
    a, b = book.pools["a"][0], book.pools["b"][0]
    assert tasks == {(a, "0"): 1, (a, "1"): 1, (b, "0"): 2}


def test_a_killed_rank_costs_no_request(spine: Live, nodes: DevCluster) -> None:
    before = spine.incarnation("b", 0, 0)
    node = node_of(spine, "b", 0)
    under_load(spine, lambda: void(nodes.exec(node, "pkill", "-9", "-o", "-f", "exahpc.replica.*--pool b")))
    until("the step is back", lambda: spine.incarnation("b", 0, 0) > before, 150)


def test_a_killed_agent_adopts_its_steps(spine: Live, nodes: DevCluster) -> None:
    before = spine.incarnation("a", 0, 0)
    node = node_of(spine, "a", 0)
    under_load(spine, lambda: void(nodes.exec(node, "pkill", "-9", "-f", "exahpc.agent.*--pool a --task 0")))
    until("all are ready", lambda: spine.ready() == 3, 60)
    assert spine.incarnation("a", 0, 0) == before


def test_a_killed_broker_is_back_in_place(spine: Live, nodes: DevCluster) -> None:
    record = spine.folder.head()
    assert record is not None

    def kill() -> None:
        nodes.exec(record.host, "pkill", "-9", "-f", "exahpc.broker")
        until("a higher epoch answers", lambda: (s := spine.status()) and s.epoch > record.epoch, 15)

    under_load(spine, kill)
    until("all are ready", lambda: spine.ready() == 3, 60)


def test_a_crashed_node_is_replaced_and_no_batch_row_is_lost(spine: Live, nodes: DevCluster) -> None:
    task = 1
    node = node_of(spine, "a", task)
    before = spine.incarnation("a", task, task)
    batch = Batch(spine, "node", 300)
    batch.has_begun()

    def crash() -> None:
        nodes.crash(node)
        nodes.fail(node)

    under_load(spine, crash, 8)
    until("the task is back elsewhere", lambda: spine.incarnation("a", task, task) > before, 200)
    assert node_of(spine, "a", task) != node
    agent = spine.agent("a", task)
    assert agent is not None
    assert agent.job == f"{JobBook.load(spine.folder.path).pools['a'][0]}_{task}", "requeued under its array id"
    assert batch.missing() == []
    nodes.start(node)


def test_a_requeued_head_finds_its_fleet_again(spine: Live, nodes: DevCluster) -> None:
    before = {(p, t, s): spine.incarnation(p, t, s) for p, t, s in (("a", 0, 0), ("a", 1, 1), ("b", 0, 0))}
    book = JobBook.load(spine.folder.path)
    record = spine.folder.head()
    assert record is not None
    assert book.head is not None
    batch = Batch(spine, "head", 300)
    batch.has_begun()
    nodes.run("scontrol", "requeue", book.head)
    until("a new broker", lambda: (s := spine.status()) and s.epoch > record.epoch, 60)
    until("all are ready", lambda: spine.ready() == 3, 60)
    assert {(p, t, s): spine.incarnation(p, t, s) for p, t, s in before} == before
    assert len(spine.stream("served again", 20)) == 20
    assert batch.missing() == []
