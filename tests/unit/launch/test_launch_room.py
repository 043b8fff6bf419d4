"""What will not fit where it is to run is told before a node is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exahpc.deployment import parse
from exahpc.deployment.known_models import KNOWN
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.launch import room
from exahpc.slurm import features

LEAVES = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
TWO, FOUR = (f"nodes_per_replica = {n}\npipeline_parallel = {n}" for n in (2, 4))


def deployment(folder: Path, pool: str = "", slurm: str = "", kind: str = "slurm") -> Deployment:
    model = folder / "m"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(dict(KNOWN["llama-3.1-8b"])))
    return parse.load(
        f'name = "d"\nmodel.path = "{model}"\n[[pool]]\nname = "a"\n{pool}\n[slurm]\n{slurm}\n'
        f'[launcher]\nkind = "{kind}"\n'
    )


def test_a_pool_that_fits_its_accelerator_is_not_spoken_of(tmp_path: Path) -> None:
    assert room.shortages(deployment(tmp_path, 'accelerator = "a100-40"')) == []


def test_a_cache_beyond_the_accelerator_is_told_with_figures_and_remedy(tmp_path: Path) -> None:
    (found,) = room.shortages(deployment(tmp_path, 'accelerator = "a100-40"\nkv_tokens = 400000'))
    assert found.startswith("pool 'a' on NVIDIA A100 40 GB: a rank needs 6")
    assert "(weights 15.0 GiB, KV cache 48.8 GiB, workspace and runtime " in found
    most = int(found.rpartition("set kv_tokens to at most ")[2])
    assert room.shortages(deployment(tmp_path, f'accelerator = "a100-40"\nkv_tokens = {most}')) == []
    assert room.shortages(deployment(tmp_path, f'accelerator = "a100-40"\nkv_tokens = {most + 16}'))


@pytest.mark.parametrize(
    ("slurm", "fits"),
    [
        ('gpus_per_node = "a100:4"', False),
        ('gres = "nvme:1,gpu:A100:4(S:0-1)"', False),
        ('gpus_per_node = "h200:8"', True),  # 141 GB
        ('gpus_per_node = "4"', True),  # not known, so not judged
        ('gres = "gpu:tile:12"', True),
        ('gres = "nvme:1"', True),
    ],
)
def test_the_type_in_slurms_words_stands_for_the_largest_of_that_name(
    tmp_path: Path, slurm: str, fits: bool
) -> None:
    found = room.shortages(deployment(tmp_path, "kv_tokens = 700000", slurm))
    assert (found == []) is fits


def test_a_model_too_large_at_all_needs_more_ranks(tmp_path: Path) -> None:
    made = deployment(tmp_path, 'accelerator = "a100-40"')
    (Path(made.model.path) / "config.json").write_text(json.dumps(dict(KNOWN["llama-3.1-405b"])))
    assert room.shortages(made)[0].endswith("take more ranks, or quantize the model")


def told(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(features, "config", lambda: features.parse_config(text))


def test_an_array_beyond_the_sites_bound_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, "MaxArraySize            = 1001\n")
    room.check_arrays(deployment(tmp_path, "replicas = 4004\nreplicas_per_task = 4"))
    wide = deployment(tmp_path, "replicas = 4005\nreplicas_per_task = 4")
    with pytest.raises(
        DeploymentError, match=r"1002 tasks, and this site takes 1001 \(MaxArraySize\): split .* 2"
    ):
        room.check_arrays(wide)
    room.check_arrays(deployment(tmp_path, "replicas = 4005", kind="local"))


def test_a_site_that_does_not_tell_its_bound_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, "MaxArraySize            = (null)\n")
    room.check_arrays(deployment(tmp_path, "replicas = 90000"))


@pytest.mark.parametrize(
    ("pool", "leaves", "says"),
    [
        ("", LEAVES, None),
        (TWO, LEAVES, 'slurm.switches = "1@5:00" waits up to 5:00'),
        (TWO + '\nslurm.switches = "2"', LEAVES, None),
        (TWO, dict.fromkeys(LEAVES, "a"), None),
        (TWO, {}, None),
        (FOUR, LEAVES, "no switch has more than 2"),
    ],
)
def test_a_replica_of_several_nodes_gets_advice_where_there_are_several_switches(
    tmp_path: Path, pool: str, leaves: dict[str, str], says: str | None
) -> None:
    found = room.advice_on_switches(deployment(tmp_path, pool), leaves)
    assert len(found) == (says is not None)
    assert all(says in line for line in found if says)
