"""All ways to multiply give the same product."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

import torch.nn.functional as F  # noqa: E402, N812 - torch's custom
from torch import nn  # noqa: E402

from exahpc.replica.engine import linear  # noqa: E402
from exahpc.replica.engine.linear import product, replace_linears, work_dtype  # noqa: E402
from exahpc.replica.engine.native import api  # noqa: E402
from exahpc.replica.engine.native.api import Norm, Weight  # noqa: E402


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler here")
def test_where_a_compiler_is_there_are_kernels() -> None:
    """Other tests leave them out where there are none: sources that do not compile must not look like that."""
    assert api.available()


@pytest.fixture(params=["native", "torch"])
def by(request, monkeypatch):
    """The native kernels, or torch as on a node without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(api, "available", lambda: False)
    elif not api.available():
        pytest.skip("no C++ compiler here")


def _seen(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The input of a matrix of this format as it is multiplied."""
    return x.bfloat16().to(x) if api.available() and api.rounds(api.FORMATS[dtype]) else x


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_the_product_does_not_depend_on_who_multiplies(by, dtype, bias, rows) -> None:
    generator = torch.Generator().manual_seed(rows)
    whole = (torch.randn(70, 48, generator=generator) * (30 if dtype == torch.int8 else 1)).to(dtype)
    weight = whole[:, 8:40]  # a row-parallel shard is a strided view
    offset = torch.randn(70, generator=generator).to(torch.bfloat16) if bias else None
    scale = torch.rand(70, generator=generator) / 30 if dtype == torch.int8 else None
    work = work_dtype(torch.bfloat16 if dtype == torch.int8 else dtype)
    x, residual = (torch.randn(rows, n, generator=generator).to(work) for n in (32, 70))
    multiply = product([Weight(weight, offset, scale)], work=work)
    want = _seen(x, dtype).double() @ (weight.double() * (1 if scale is None else scale.double()[:, None])).T
    want += 0 if offset is None else offset.double()
    near = 1e-4 if work == torch.float32 else 0.15
    assert multiply(x).dtype == work
    assert float((multiply(x).double() - want).abs().max()) < near
    assert float((multiply(x, residual).double() - want - residual.double()).abs().max()) < near


def test_fused_products_do_not_depend_on_who_multiplies(by) -> None:
    generator = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(24, 32, generator=generator).bfloat16() for _ in range(2))
    norm = Norm(torch.rand(32, generator=generator), 1e-5)
    x = torch.randn(5, 32, generator=generator)
    normed = _seen(F.rms_norm(x, (32,), norm.weight, 1e-5), torch.bfloat16)
    both = [Weight(gate), Weight(up)]
    beside = product(both, work=torch.float32, norm=norm)(x)
    torch.testing.assert_close(beside, normed @ torch.cat([gate, up]).float().T, rtol=1e-4, atol=1e-4)
    for name, function in linear._FUNCTIONS.items():
        gated = product(both, work=torch.float32, activation=name, norm=norm)(x)
        want = function(normed @ gate.float().T) * (normed @ up.float().T)
        torch.testing.assert_close(gated, want, rtol=1e-4, atol=1e-4)


def test_modules_of_any_body_multiply_so(by) -> None:
    body = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8, bias=False)).bfloat16()
    x = torch.randn(1, 7, 32)
    want = body.float()(x)
    body.bfloat16()
    replace_linears(body, torch.float32)
    assert body(x).shape == (1, 7, 8)
    torch.testing.assert_close(body(x), want, rtol=0.05, atol=0.02)


def test_float32_weights_are_worked_on_as_they_are(by) -> None:
    assert work_dtype(torch.float32) == torch.float32
