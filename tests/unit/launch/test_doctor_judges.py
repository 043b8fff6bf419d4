"""What facts mean: each bad fact is found, and told with a remedy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from exahpc.deployment.spec import Deployment, Launcher, Model, Pool, SlurmResources
from exahpc.launch.doctor import judge_nodes, judge_ranks, judge_slurm
from exahpc.launch.doctor.facts import Files, Node, Port, SlurmFacts
from exahpc.launch.doctor.finding import CHECKS, Finding
from exahpc.replica.probe import Rank, World

DEPLOYMENT = Deployment(name="t", model=Model(path="/m"), pool=(Pool(name="a"),))
CONFIG = {
    "RequeueExit": "75",
    "JobRequeue": "1",
    "MaxArraySize": "1001",
    "KillWait": "30 sec",
    "ProctrackType": "proctrack/cgroup",
    "TopologyPlugin": "topology/tree",
    "PreemptMode": "REQUEUE",
}
SLURM = SlurmFacts("23.11.4", CONFIG, mpi=("none", "pmix"), switches=4, tried=2)
FILES = Files(torn=0, twice=False, locks="", fsync=0.01, create=0.001, skew=0.0, won=False)
NODE = Node("n1", {"python": "3.11"}, 2.0, 65536, "10.0.0.1", "", "", FILES, commands="")
RANK = Rank("n1", "cuda", 1, 80 * 2**30, "", 9.0)
WORLD = World(2, "Open MPI v5", (RANK, msgspec.structs.replace(RANK, host="n2")), True, 2e-6, 2e10)


def changed(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)


def slurm(facts: SlurmFacts, deployment: Deployment | None = DEPLOYMENT) -> dict[str, Finding]:
    return {one.check: one for one in judge_slurm.judge(facts, deployment)}


def nodes(*seen: Node, deployment: Deployment | None = DEPLOYMENT) -> dict[str, Finding]:
    return {one.check: one for one in judge_nodes.judge(seen, deployment)}


def two(**fields: Any) -> dict[str, Finding]:
    first = changed(NODE, files=changed(FILES, won=True))
    return nodes(first, changed(NODE, host="n2", **fields))


def files(**fields: Any) -> dict[str, Finding]:
    return two(files=changed(FILES, **fields))


def test_a_good_site_has_no_remedies() -> None:
    ranks = {one.check: one for one in judge_ranks.judge([WORLD], 2, 2, "", DEPLOYMENT)}
    fast = judge_ranks.fabric(WORLD, [changed(NODE, ports=(Port("mlx5_0", True, 200.0),))])
    alone = judge_ranks.judge([changed(WORLD, ranks=(RANK, RANK), far=False)], 2, 1, "", DEPLOYMENT)
    all_of_it = {**slurm(SLURM), **two(), **ranks, "fabric": fast, **{one.check: one for one in alone}}
    assert {name: one for name, one in all_of_it.items() if one.verdict != "ok" or one.remedy} == {}
    assert set(all_of_it) == set(CHECKS) - {"model"}


@pytest.mark.parametrize(
    ("check", "verdict", "facts"),
    [
        ("slurm-version", "fail", changed(SLURM, version="20.02.1")),
        ("slurm-version", "fail", changed(SLURM, version="")),
        ("slurm-requeue", "warn", changed(SLURM, config=CONFIG | {"RequeueExit": "1-5"})),
        ("slurm-end", "warn", changed(SLURM, config=CONFIG | {"KillWait": "5 sec"})),
        ("slurm-processes", "warn", changed(SLURM, config=CONFIG | {"ProctrackType": "proctrack/linuxproc"})),
        ("slurm-mpi", "fail", changed(SLURM, mpi=("none", "pmi2"))),
        ("slurm-topology", "warn", changed(SLURM, switches=0)),
        ("slurm-preemption", "warn", changed(SLURM, partition={"PreemptMode": "CANCEL", "GraceTime": "60"})),
        ("slurm-preemption", "warn", changed(SLURM, partition={"PreemptMode": "GANG,SUSPEND"})),
        ("slurm-submit", "fail", changed(SLURM, refused=("head: invalid account",))),
        ("slurm-submit", "skipped", changed(SLURM, tried=0)),
        ("slurm-arrays", "skipped", changed(SLURM, config={})),
    ],
)
def test_what_is_wrong_with_slurm_is_found(check: str, verdict: str, facts: SlurmFacts) -> None:
    found = slurm(facts)[check]
    assert found.verdict == verdict, found
    assert found.remedy or verdict == "skipped"


def test_an_array_must_fit_the_site() -> None:
    pool = Pool(name="a", replicas=1001)
    assert slurm(SLURM, changed(DEPLOYMENT, pool=(pool,)))["slurm-arrays"].verdict == "ok"
    assert (
        slurm(SLURM, changed(DEPLOYMENT, pool=(changed(pool, replicas=1002),)))["slurm-arrays"].verdict == "fail"
    )


def test_the_pools_own_mpi_is_looked_for() -> None:
    other = changed(DEPLOYMENT, slurm=SlurmResources(mpi="pmi2"))
    assert slurm(SLURM, other)["slurm-mpi"].verdict == "fail"
    assert slurm(changed(SLURM, mpi=("pmi2",)), other)["slurm-mpi"].verdict == "ok"


def test_who_wants_no_requeue_needs_none() -> None:
    without = changed(DEPLOYMENT, pool=(Pool(name="a", requeue=False),))
    assert slurm(changed(SLURM, config={}), without)["slurm-requeue"].verdict == "ok"


@pytest.mark.parametrize(
    ("check", "verdict", "found"),
    [
        ("python", "fail", nodes(changed(NODE, software={"python": "3.11", "torch": ""}))),
        ("address", "fail", two(no_address="no hsn0")),
        ("address", "fail", two(port="port 80: permission denied")),
        ("open-files", "fail", two(open_files=1024)),
        ("open-files", "ok", two(open_files=-1)),
        ("files-replace", "fail", files(torn=1)),
        ("files-exclusive", "fail", files(twice=True)),
        ("files-locks", "warn", files(locks="Function not implemented")),
        ("files-speed", "warn", files(fsync=2.0)),
        ("files-speed", "warn", files(create=0.5)),
        ("imports", "warn", two(imports=30.0)),
        ("imports", "fail", two(imports=300.0)),
        ("node-commands", "fail", two(commands="access denied")),
        ("files-across", "fail", files(won=True)),
        ("files-across", "fail", files(missing=("1 of 2 nodes",))),
        ("clocks", "warn", files(skew=5.0)),
        ("clocks", "fail", files(skew=-3600.0)),
        ("same-software", "fail", two(software={"python": "3.12"})),
    ],
)
def test_what_is_wrong_with_a_node_is_found(check: str, verdict: str, found: dict[str, Finding]) -> None:
    assert found[check].verdict == verdict, found[check]
    assert found[check].remedy or verdict == "ok"


def test_clocks_are_compared_by_the_file_system_so_its_own_error_does_not_count() -> None:
    behind = changed(FILES, skew=-100.0)
    seen = (changed(NODE, files=changed(behind, won=True)), changed(NODE, host="n2", files=behind))
    assert nodes(*seen)["clocks"].verdict == "ok"


def test_nodes_that_may_not_submit_are_no_fault_where_a_watcher_does_it() -> None:
    watched = changed(DEPLOYMENT, launcher=Launcher(commands="watch"))
    denied = changed(NODE, commands="access denied")
    assert nodes(denied, deployment=watched)["node-commands"].verdict == "ok"


def test_one_machine_outside_a_job_tells_nothing_of_others() -> None:
    found = nodes(changed(NODE, commands=None))
    assert not {"files-across", "clocks", "same-software", "node-commands"} & set(found)


@pytest.mark.parametrize(
    ("check", "worlds", "ranks", "hosts"),
    [
        ("mpi-across", [], 2, 2),
        ("mpi-across", [changed(WORLD, size=1, ranks=(RANK,))] * 2, 2, 2),
        ("mpi-across", [changed(WORLD, ranks=(RANK, RANK))], 2, 2),
        ("mpi", [changed(WORLD, size=1, ranks=(RANK,))] * 2, 2, 1),
        ("accelerators", [changed(WORLD, ranks=(changed(RANK, trouble="no driver"), RANK))], 2, 2),
        ("accelerators", [changed(WORLD, ranks=(changed(RANK, devices=0), RANK))], 2, 2),
        ("accelerators", [changed(WORLD, ranks=(changed(RANK, accelerator="cpu"), RANK))], 2, 2),
        ("imports", [changed(WORLD, ranks=(changed(RANK, imports=1000.0), RANK))], 2, 2),
    ],
)
def test_what_is_wrong_with_ranks_is_found(check: str, worlds: list[World], ranks: int, hosts: int) -> None:
    (found,) = [
        one for one in judge_ranks.judge(worlds, ranks, hosts, "srun: error", DEPLOYMENT) if one.check == check
    ]
    assert found.verdict == "fail"
    assert found.remedy


def test_a_fabric_is_held_against_what_its_ports_promise() -> None:
    fast, slow = Port("mlx5_0", True, 200.0), 1e9
    with_port, down = changed(NODE, ports=(fast,)), changed(NODE, ports=(changed(fast, active=False),))
    assert judge_ranks.fabric(WORLD, [with_port]).verdict == "ok"
    assert judge_ranks.fabric(changed(WORLD, bandwidth=slow), [with_port]).verdict == "warn"
    assert judge_ranks.fabric(WORLD, [down]).verdict == "warn"
    assert judge_ranks.fabric(changed(WORLD, far=False), [with_port]).verdict == "skipped"
    assert judge_ranks.fabric(None, [with_port]).verdict == "skipped"
