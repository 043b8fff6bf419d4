"""From a model and a number of nodes to the deployment that runs a batch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exahpc.deployment import parse, render
from exahpc.errors import DeploymentError
from exahpc.lab.hire import Hire, deployment_for

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 2048,
}  # fmt: skip
LIKE = """
name = "site"
[model]
path = "old"
name = "served"
[slurm]
partition = "main"
time = "1:00:00"
[[pool]]
name = "a"
replicas = 2
replicas_per_task = 2
[pool.scaling]
least = 1
{more}
"""
SPANNING = '[[pool]]\nname = "b"\nnodes_per_replica = 2\npipeline_parallel = 2\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_bytes(msgspec.json.encode(CONFIG))
    return folder


@pytest.fixture
def like(tmp_path: Path) -> Path:
    path = tmp_path / "like.toml"
    path.write_text(LIKE.format(more=SPANNING))
    return path


def test_nodes_of_a_known_accelerator_are_filled_and_no_node_is_asked_for_beside_them(model: Path) -> None:
    hire = Hire(model=model, nodes=3, launcher="slurm", accelerator="a100-80", time="2:00:00")
    made = deployment_for(hire, "batch-x", keep=False)
    (pool,) = made.pool
    assert (pool.tasks * pool.nodes_per_replica, made.head.placement) == (3, "first-task")
    assert (made.slurm.time, made.slurm.gpus_per_node) == ("2:00:00", str(pool.replicas_per_task))
    assert made.model.context == 2048, "no more than the model has positions for"
    assert made.budget.release_idle
    assert parse.load(render.toml(made)) == made


def test_one_machine_needs_no_word_about_accelerators(model: Path) -> None:
    made = deployment_for(Hire(model=model, launcher="local"), "batch-x", keep=True)
    assert (made.pool[0].replicas, made.head.placement, made.head.bind) == (1, "local", "127.0.0.1")
    assert not made.budget.release_idle, "what is kept does not end by itself"


def test_the_nodes_of_a_file_are_sized_and_its_pool_comes_and_goes_with_the_batch(model: Path, like: Path) -> None:
    made = deployment_for(Hire(model=model, nodes=5, like=like, pool="a"), "batch-x", keep=False)
    assert (made.name, made.served_name, made.slurm.partition) == ("batch-x", "tiny", "main")
    assert [(pool.name, pool.replicas, pool.scaling.least) for pool in made.pool] == [("a", 10, None)]
    spanning = deployment_for(Hire(like=like, nodes=5, pool="b"), "batch-x", keep=False)
    assert (spanning.pool[0].replicas, spanning.served_name) == (2, "served")
    assert [pool.name for pool in deployment_for(Hire(like=like), "batch-x", keep=False).pool] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": 2}, r"--nodes = 2: .* several pools \(a, b\): choose one with --pool"),
        ({"pool": "c"}, "--pool = 'c': .* has a, b"),
        ({"pool": "b", "nodes": 1}, "one replica spans 2 nodes"),
        ({"accelerator": "a100-80"}, "--like says what the nodes are"),
        ({"launcher": "local"}, "has launcher.kind = 'slurm'"),
        ({"pool": "a", "tensor_parallel": 3, "pipeline_parallel": 0}, "pipeline_parallel"),
    ],
)
def test_options_that_contradict_the_file_are_told(like: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(DeploymentError, match=says):
        deployment_for(msgspec.structs.replace(Hire(like=like), **changes), "batch-x", keep=False)


def test_unknown_nodes_of_a_cluster_are_asked_about(model: Path) -> None:
    with pytest.raises(DeploymentError, match=r"what are the nodes\? Give --accelerator .* or --like"):
        deployment_for(Hire(model=model, launcher="slurm"), "batch-x", keep=False)
    with pytest.raises(DeploymentError, match="--pool = 'a': names a pool of --like"):
        deployment_for(Hire(model=model, pool="a"), "batch-x", keep=False)
