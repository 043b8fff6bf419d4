"""All ways to multiply on a CPU give the same product."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from exahpc.replica.engine.linear import product, work_dtype  # noqa: E402


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_product_does_not_depend_on_the_layout(dtype, pack, bias, rows) -> None:
    generator = torch.Generator().manual_seed(rows)
    whole = torch.randn(70, 48, generator=generator).to(dtype)
    weight = whole[:, 8:40]  # a row-parallel shard is a strided view
    offset = torch.randn(70, generator=generator).to(dtype) if bias else None
    work = work_dtype(dtype)
    x = torch.randn(rows, 32, generator=generator).to(work)
    got = product(weight, offset, work=work, pack=pack)(x)
    want = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    assert got.dtype == work
    assert float((got.double() - want).abs().max()) < (1e-4 if dtype == torch.float32 else 0.15)


def test_float32_weights_are_worked_on_as_they_are() -> None:
    assert work_dtype(torch.float32) == torch.float32
