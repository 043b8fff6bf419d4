"""sbatch and srun command lines, and what surrounds them: text out of values."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exahpc.deployment.spec import Deployment, Head, Model, Pool, SlurmResources
from exahpc.errors import DeploymentError
from exahpc.slurm import features, here, scripts
from exahpc.slurm.hostlist import expand
from exahpc.slurm.jobbook import JobBook
from exahpc.slurm.steps import device_flags, memory_share, replica_step
from exahpc.slurm.submission import head_submission, pool_submission

FOLDER, SCRIPTS = Path("/data/d"), Path("/opt/x/slurm")
POOL = Pool(name="a", replicas=8, replicas_per_task=3, tensor_parallel=4, threads_per_rank=2)
DEPLOYMENT = Deployment(
    name="d",
    model=Model(path="/m"),
    pool=(POOL,),
    slurm=SlurmResources(
        partition="gpu",
        account="lab",
        time="1-00:00:00",
        gres="gpu:tile:12",
        exclusive=True,
        modules=("mpi/4", "x"),
    ),
)


def test_a_pool_is_one_array_with_flags_in_a_fixed_order() -> None:
    assert pool_submission(DEPLOYMENT, POOL, FOLDER, "/v/python", SCRIPTS).argv() == (
        "sbatch",
        "--parsable",
        "--job-name=exahpc-d-a",
        "--array=0-2",
        "--partition=gpu",
        "--account=lab",
        "--time=1-00:00:00",
        "--gres=gpu:tile:12",
        "--exclusive",
        "--nodes=1",
        "--ntasks-per-node=12",
        "--cpus-per-task=2",
        "--requeue",
        "--signal=B:USR1@120",
        "--open-mode=append",
        "--export=NIL",
        "--chdir=/data/d",
        "--output=/data/d/logs/slurm/%x-%A_%a.out",
        "/opt/x/slurm/replica.sbatch",
        *("--folder", "/data/d", "--python", "/v/python", "--scripts", "/opt/x/slurm"),
        *("--module", "mpi/4", "--module", "x", "--pool", "a"),
    )


def test_the_heads_job_asks_for_none_of_the_replicas_devices() -> None:
    argv = head_submission(DEPLOYMENT, FOLDER, "py", SCRIPTS).argv()
    assert "--array" not in " ".join(argv)
    assert {"--account=lab", "--cpus-per-task=3", "--requeue"} <= set(argv)
    assert not any("gpu:" in word or word == "--exclusive" for word in argv)
    assert argv[-2:] == ("--entries", "2")


def test_the_first_task_holds_the_head_when_placed_there() -> None:
    second = msgspec.structs.replace(POOL, name="b")
    deployment = msgspec.structs.replace(DEPLOYMENT, head=Head(placement="first-task"), pool=(POOL, second))
    assert "--with-head" in pool_submission(deployment, POOL, FOLDER, "py", SCRIPTS).arguments
    assert "--with-head" not in pool_submission(deployment, second, FOLDER, "py", SCRIPTS).arguments


def test_entries_on_nodes_are_named_to_the_tasks_of_every_pool() -> None:
    deployment = msgspec.structs.replace(DEPLOYMENT, head=Head(entries_on_nodes=3))
    assert pool_submission(deployment, POOL, FOLDER, "py", SCRIPTS).arguments[-2:] == ("--node-entries", "3")
    assert "--node-entries" not in pool_submission(DEPLOYMENT, POOL, FOLDER, "py", SCRIPTS).arguments


def test_some_tasks_may_be_submitted_again_after_others() -> None:
    made = pool_submission(DEPLOYMENT, POOL, FOLDER, "py", SCRIPTS, array="2", dependency="afterany:7_2")
    assert made.array == "2"
    assert made.flags[:2] == ("--dependency=afterany:7_2", "--kill-on-invalid-dep=yes")


def test_a_pool_that_may_not_be_requeued_says_so() -> None:
    pool = msgspec.structs.replace(POOL, requeue=False)
    assert "--no-requeue" in pool_submission(DEPLOYMENT, pool, FOLDER, "py", SCRIPTS).flags


def test_a_replica_across_nodes_spreads_its_ranks_evenly() -> None:
    pool = Pool(name="b", nodes_per_replica=2, tensor_parallel=2, pipeline_parallel=2)
    made = pool_submission(DEPLOYMENT, pool, FOLDER, "py", SCRIPTS)
    assert {"--nodes=2", "--ntasks-per-node=2"} <= set(made.flags)
    step = replica_step(DEPLOYMENT, pool, {"SLURM_MEM_PER_NODE": "9000"}, "b.0")
    assert step[:6] == (
        "srun",
        "--job-name=b.0",
        "--nodes=2",
        "--ntasks=4",
        "--ntasks-per-node=2",
        "--cpus-per-task=1",
    )
    assert "--gres=gpu:tile:2" in step
    assert not any(word.startswith("--mem") for word in step)


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        (SlurmResources(gres="gpu:tile:12"), ("--gres=gpu:tile:4",)),
        (SlurmResources(gres="gpu:12"), ("--gres=gpu:4",)),
        (SlurmResources(gres="nvme:1,gpu:a100:8(S:0-1)"), ("--gres=gpu:a100:4",)),
        (SlurmResources(gpus_per_node="8"), ("--gpus-per-node=4",)),
        (SlurmResources(gpus_per_node="h100:8"), ("--gpus-per-node=h100:4",)),
        (SlurmResources(gres="nvme:1"), ()),
        (SlurmResources(), ()),
    ],
)
def test_a_step_asks_for_devices_in_its_jobs_own_spelling(asked: SlurmResources, flags: tuple[str, ...]) -> None:
    assert device_flags(asked, 4) == flags


def test_a_step_may_not_want_more_devices_than_the_node_gives() -> None:
    with pytest.raises(DeploymentError, match=r"gpu:2.*takes 4 devices"):
        device_flags(SlurmResources(gres="gpu:2"), 4)


@pytest.mark.parametrize(
    ("value", "replicas", "share"), [("9000", 3, 3000), ("9000", 1, None), ("0", 3, None), (None, 3, None)]
)
def test_memory_that_is_counted_per_node_is_shared(value: str | None, replicas: int, share: int | None) -> None:
    assert memory_share({"SLURM_MEM_PER_NODE": value} if value else {}, replicas) == share


@pytest.mark.case("B41")
def test_a_tasks_own_id_is_never_the_bare_job_id() -> None:
    own = {"SLURM_JOB_ID": "1234", "SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_ID": "1"}
    assert here.task_id(own) == "1234_1"
    assert here.task_id({"SLURM_JOB_ID": "1234", "SLURM_ARRAY_JOB_ID": "1234"}) is None
    assert here.task_id({"SLURM_JOB_ID": "77"}) == "77"
    assert here.task_id({}) is None


@pytest.mark.parametrize(
    ("codes", "yes"), [("75", True), ("1,70-80", True), ("76", False), ("", False), ("7", False), ("100-", False)]
)
def test_requeue_exit_codes_are_numbers_and_ranges(codes: str, yes: bool) -> None:
    config = features.parse_config(f"RequeueExit             = {codes or '(null)'}\nRequeueExitHold = (null)\n")
    assert features.holds_code(config["RequeueExit"], 75) is yes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("gpu[008-010,2],login1", ("gpu008", "gpu009", "gpu010", "gpu2", "login1")),
        ("r[1-2]n[1-2]-ib", ("r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib")),
    ],
)
def test_node_lists_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


def test_the_job_book_survives_a_round_trip_and_refuses_rubbish(tmp_path: Path) -> None:
    assert JobBook.load(tmp_path) == JobBook(None, {})
    book = JobBook("7", {"a": ["8", "9"]})
    book.save(tmp_path)
    assert JobBook.load(tmp_path) == book
    (tmp_path / "slurm" / "jobs.json").write_text("{")
    with pytest.raises(DeploymentError, match="damaged"):
        JobBook.load(tmp_path)


def test_the_batch_scripts_are_found() -> None:
    assert (scripts.directory() / "supervise.sh").is_file()
