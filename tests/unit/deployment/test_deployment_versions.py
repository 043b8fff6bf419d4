"""What a version may change while the jobs of another one run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from exahpc.deployment.policy import Rollout
from exahpc.deployment.spec import Deployment, Limits, Model, Pool, SlurmResources, StageLinks
from exahpc.deployment.versions import check
from exahpc.errors import DeploymentError

POOL = Pool(name="a", replicas=4, replicas_per_task=2, tensor_parallel=2, pipeline_parallel=2)
BASE = Deployment(name="d", model=Model(path="/m/one"), pool=(POOL, Pool(name="b")))


def changed(value: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(value, **changes)


def pool(**changes: Any) -> Deployment:
    made: Deployment = changed(BASE, pool=(changed(POOL, **changes), BASE.pool[1]))
    return made


@pytest.mark.parametrize(
    "new",
    [
        BASE,
        changed(BASE, model=Model(path="/m/two", name="one", dtype="float16", quantization="int8", context=4096)),
        changed(BASE, model=changed(BASE.model, stage="/dev/shm", fold_system=True)),
        changed(BASE, limits=Limits(max_tokens_default=5, requests=2)),
        changed(BASE, rollout=Rollout(canary=0.5)),
        changed(BASE, recovery=changed(BASE.recovery, restarts=9, ready_seconds=5.0)),
        changed(BASE, launcher=changed(BASE.launcher, mpirun_flags=("-x",))),
        pool(max_sequences=99, kv_tokens=4096, link=StageLinks(int8=True)),
        pool(tensor_parallel=4, pipeline_parallel=1),
    ],
)
def test_what_agents_and_replicas_load_may_change(new: Deployment) -> None:
    check(BASE, new, "new.toml")


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (
            changed(BASE, model=Model(path="/m/two")),
            r'model\.name = "two": clients ask for "one": set model\.name',
        ),
        (changed(BASE, pool=(POOL,)), r'pool = \["a"\]: the deployment has "a", "b", in this order'),
        (changed(BASE, pool=BASE.pool[::-1]), r'pool = \["b", "a"\]'),
        (pool(replicas=6), r"pool\[0\]\.replicas = 6: it is 4 in the deployment that runs"),
        (pool(replicas_per_task=1), r"pool\[0\]\.replicas_per_task = 1"),
        (pool(length="long"), r'pool\[0\]\.length = "long"'),
        (pool(requeue=False), r"pool\[0\]\.requeue = false"),
        (pool(threads_per_rank=2), r"pool\[0\]\.threads_per_rank = 2: .*the jobs that run were submitted with it"),
        (pool(slurm=SlurmResources(time="5")), r'pool\[0\]\.slurm\.time = "5"'),
        (pool(tensor_parallel=1), r"pool\[0\]\.tensor_parallel = 1: .*makes 2 ranks, but .* are for 4"),
        (changed(BASE, slurm=SlurmResources(partition="gpu")), r'slurm\.partition = "gpu"'),
        (changed(BASE, head=changed(BASE.head, port=99)), r"head\.port = 99: .*read it at `exahpc up`"),
        (changed(BASE, limits=Limits(max_waiting=1)), r"limits\.max_waiting = 1"),
        (changed(BASE, recovery=changed(BASE.recovery, stall_seconds=5.0)), r"recovery\.stall_seconds = 5"),
        (changed(BASE, routing=changed(BASE.routing, headroom=0.5)), r"routing\.headroom = 0\.5"),
        (changed(BASE, launcher=changed(BASE.launcher, kind="local")), r'launcher\.kind = "local"'),
    ],
)
def test_what_jobs_and_head_are_made_of_is_refused_with_key_value_and_remedy(new: Deployment, told: str) -> None:
    with pytest.raises(DeploymentError, match=told) as caught:
        check(BASE, new, "new.toml")
    assert str(caught.value).startswith("new.toml: 1 problem")
    assert "keep it, or end the deployment" in str(caught.value) or "set model.name" in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(DeploymentError, match="3 problems"):
        check(BASE, changed(pool(replicas=6, length="long"), limits=Limits(attempts=1)), "new.toml")
