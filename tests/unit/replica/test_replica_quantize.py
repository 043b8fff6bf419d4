"""Hidden states in 8 bits: how far off, how many bytes, and what is never hidden."""

from __future__ import annotations

import pytest
import torch

from exahpc.replica.engine.quantize import pack, packed_width, unpack

SHAPES = [(1, 64, 64), (7, 576, 64), (3, 100, 64), (2, 50, 64), (5, 96, 32), (0, 64, 16)]


def there_and_back(x: torch.Tensor, group: int) -> torch.Tensor:
    out = torch.full_like(x, 9.0)
    unpack(pack(x, group), out, group)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "hidden", "group"), SHAPES)
def test_no_number_is_off_by_more_than_half_a_step_of_its_group(
    tokens: int, hidden: int, group: int, dtype: torch.dtype
) -> None:
    x = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(hidden)).to(dtype)
    x[:, :1] *= 1000  # an outlier costs its own group only
    out = there_and_back(x, group)
    assert out.dtype == dtype
    for at in range(0, hidden, group):
        wide, got = x[:, at : at + group].float(), out[:, at : at + group].float()
        largest = wide.abs().amax(1, keepdim=True)
        bound = largest * (0.5 / 127 + 1e-6) + wide.abs() * torch.finfo(dtype).eps
        assert bool(((got - wide).abs() <= bound * 1.01).all())


@pytest.mark.parametrize(("tokens", "hidden", "group"), SHAPES)
def test_the_wire_carries_a_byte_a_number_and_four_a_group(tokens: int, hidden: int, group: int) -> None:
    packed = pack(torch.ones(tokens, hidden), group)
    assert packed.nbytes == tokens * packed_width(hidden, group) == tokens * (hidden + 4 * -(-hidden // group))


def test_zeros_stay_zeros() -> None:
    assert not there_and_back(torch.zeros(2, 128), 64).any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_spoils_its_group_and_is_seen(bad: float) -> None:
    x = torch.ones(2, 128)
    x[1, 70] = bad
    assert there_and_back(x, 64).isfinite().view(2, 2, 64).all(-1).tolist() == [[True, True], [True, False]]


def test_packing_what_was_unpacked_changes_nothing_more() -> None:
    once = there_and_back(torch.randn(4, 256, generator=torch.Generator().manual_seed(1)), 64)
    assert torch.allclose(there_and_back(once, 64), once, rtol=0, atol=1e-6)
