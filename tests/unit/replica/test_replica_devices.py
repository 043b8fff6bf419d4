"""A rank counts its device inside what its launcher made visible (case B22)."""

from __future__ import annotations

import pytest

from exahpc.errors import DeploymentError
from exahpc.replica.devices import Device, choose, visible

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-4b5e0bd1-6bd8-5e1f-9c0a-0f1d0a5b6c7d"


@pytest.mark.case("B22")
def test_a_shared_list_is_counted_from_zero() -> None:
    seen = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert [choose(seen, rank, 4) for rank in range(4)] == [Device(0), Device(1), Device(2), Device(3)]


@pytest.mark.case("B22")
def test_a_single_device_is_mine_whatever_my_rank() -> None:
    assert choose({"CUDA_VISIBLE_DEVICES": "5"}, 3, 1) == Device(0)


@pytest.mark.case("B22")
@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"])
def test_names_are_as_good_as_numbers(variable: str) -> None:
    assert choose({variable: f"{UUID},{UUID[:-1]}7"}, 1, 2) == Device(1)
    assert choose({variable: "0.0,0.1,1.0,1.1"}, 2, 4) == Device(2)


def test_of_several_mig_instances_each_rank_sees_only_its_own() -> None:
    seen = {"CUDA_VISIBLE_DEVICES": f"{MIG},{MIG[:-1]}e"}
    assert choose(seen, 1, 1) == Device(0, ("CUDA_VISIBLE_DEVICES", f"{MIG[:-1]}e"))
    assert choose({"CUDA_VISIBLE_DEVICES": "MIG-GPU-0a1b/1/0"}, 2, 1) == Device(0)


def test_without_a_list_the_node_is_counted() -> None:
    assert choose({}, 2, 4) == Device(2)
    assert choose({}, 0, 0) is None


def test_several_devices_a_rank() -> None:
    assert choose({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 1, 4, per_rank=2) == Device(2)
    assert choose({"CUDA_VISIBLE_DEVICES": "6,7"}, 1, 2, per_rank=2) == Device(0)


@pytest.mark.parametrize("value", ["", "NoDevFiles", "-1"])
def test_nothing_visible_means_no_accelerator(value: str) -> None:
    assert choose({"CUDA_VISIBLE_DEVICES": value}, 0, 0) is None


def test_entries_after_minus_one_are_hidden() -> None:
    assert visible("0, 1,-1,2") == ("0", "1")


def test_a_rank_without_a_device_says_what_it_saw() -> None:
    with pytest.raises(DeploymentError, match=r"local rank 4 .* CUDA_VISIBLE_DEVICES shows 4 \(4,5,6,7\)"):
        choose({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 4, 4)
