"""The native kernels against torch in float64, and the law that a row's result depends on that row alone."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import platform
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.engine.native import api, build
from exahpc.replica.engine.native.api import Linear, Norm, Weight

pytestmark = pytest.mark.skipif(not api.available(), reason="no C++ compiler here")
INT8_OF_BFLOAT16 = "int8 of a bfloat16 model"
Format = torch.dtype | str
FORMATS: list[Format] = [torch.float32, torch.bfloat16, torch.float16, torch.int8, INT8_OF_BFLOAT16]
ROWS = [0, 1, 2, 3, 5, 8, 33, 48, 49, 101]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads wait for each other, long where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _matrix(rows: int, columns: int, dtype: Format) -> tuple[Weight, torch.Tensor]:
    """A random matrix, and what it stands for in float64."""
    if dtype in (torch.int8, INT8_OF_BFLOAT16):
        data, scale = torch.randint(-127, 128, (rows, columns), dtype=torch.int8), torch.rand(rows) / 64
        model = torch.bfloat16 if dtype == INT8_OF_BFLOAT16 else torch.float32
        return Weight(data, None, scale, model), data.double() * scale.double()[:, None]
    assert isinstance(dtype, torch.dtype)
    data = torch.randn(rows, columns).to(dtype)
    return Weight(data), data.double()


def _seen(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """The input of a matrix as it is multiplied."""
    return (x.bfloat16() if api.rounds(weight.format) else x).double()


def _close(found: torch.Tensor, wanted: torch.Tensor, terms: int) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=3e-6 * terms**0.5)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 576, 1024, 1025, 2500])
def test_products_are_those_of_torch(dtype: Format, columns: int) -> None:
    torch.manual_seed(columns)
    for rows in (1, 3, 8, 21):
        weight, exact = _matrix(rows, columns, dtype)
        bias = torch.randn(rows).to(torch.bfloat16)
        plain, biased = Linear([weight]), Linear([weight._replace(bias=bias)])
        for count in ROWS:
            x = torch.randn(count, columns)
            wanted = _seen(x, weight) @ exact.T
            _close(plain(x), wanted, columns)
            _close(biased(x), wanted + bias.double(), columns)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_the_result_of_a_row_depends_on_that_row_alone(dtype: Format) -> None:
    torch.manual_seed(0)
    for columns in (40, 576, 2500):
        up, gate = (_matrix(37, columns, dtype)[0] for _ in range(2))
        norm = Norm(torch.rand(columns), 1e-6)
        for linear in (Linear([up], norm=norm), Linear([gate, up], activation="silu")):
            x = torch.randn(101, columns)
            alone = torch.cat([linear(x[i : i + 1].clone()) for i in range(len(x))])
            for count in ROWS:
                assert torch.equal(linear(x[:count]), alone[:count])


def test_the_number_of_threads_changes_nothing() -> None:
    weights, x = [_matrix(rows, 300, torch.bfloat16)[0] for rows in (70, 9)], torch.randn(60, 300)
    one = Linear(weights)(x)
    torch.set_num_threads(2)
    assert torch.equal(Linear(weights)(x), one)


def test_matrices_norm_and_residual_in_one_call() -> None:
    torch.manual_seed(1)
    made = [_matrix(rows, 72, torch.bfloat16) for rows in (24, 5, 11)]
    norm, x, residual = torch.rand(72), torch.randn(9, 80)[:, :72], torch.randn(9, 40)
    linear = Linear([weight for weight, _ in made], norm=Norm(norm, 1e-5))
    normed = _seen(F.rms_norm(x.double(), (72,), norm.double(), 1e-5).float(), made[0][0])
    wanted = normed @ torch.cat([exact for _, exact in made]).T
    _close(linear(x), wanted, 72)
    found = linear(x, residual.clone())
    _close(found, wanted + residual.double(), 72)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "gelu", "relu"])
def test_gated_layers_are_those_of_torch(name: str) -> None:
    torch.manual_seed(2)
    function = {
        "silu": F.silu,
        "gelu": F.gelu,
        "relu": F.relu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }[name]
    (gate, exact_gate), (up, exact_up) = (_matrix(19, 64, torch.float16) for _ in range(2))
    x = torch.randn(11, 64) * torch.tensor([0.01, 1.0, 30.0]).repeat(4)[:11, None]
    gated = function(x.double() @ exact_gate.T)
    torch.testing.assert_close(Linear([gate], activation=name)(x).double(), gated, rtol=1e-4, atol=1e-4)
    wanted = gated * (x.double() @ exact_up.T)
    found = Linear([gate, up], activation=name)(x).double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", FORMATS[:3], ids=str)
def test_parts_of_matrices_are_read_in_place(dtype: Format) -> None:
    weight, exact = _matrix(30, 100, dtype)
    x = torch.randn(4, 40)
    _close(Linear([Weight(weight.data[8:21, 33:73])])(x), _seen(x, weight) @ exact[8:21, 33:73].T, 40)


def test_numbers_that_are_not_finite_stay_in_their_row_and_column() -> None:
    for dtype in FORMATS[:3]:
        data = torch.randn(20, 40).to(dtype)
        data[3, 39], data[5, 0] = float("nan"), float("inf")
        x = torch.randn(6, 40).abs() + 0.1
        x[2, 7] = float("nan")
        found, wanted = Linear([Weight(data)])(x), x @ data.float().T
        assert torch.equal(found.isnan(), wanted.isnan()), dtype
        assert torch.equal(found.isinf(), wanted.isinf()), dtype


def test_what_the_kernels_do_not_take_is_refused_at_once() -> None:
    good = torch.zeros(4, 8)
    for weights, activation in (
        ([Weight(good.double())], ""),
        ([Weight(good), Weight(good.bfloat16())], ""),
        ([Weight(good), Weight(torch.zeros(4, 9))], ""),
        ([Weight(good.T)], ""),
        ([Weight(good.to(torch.int8))], ""),
        ([Weight(good, torch.zeros(3))], ""),
        ([Weight(good)], "tanh"),
        ([], ""),
    ):
        with pytest.raises(ValueError):
            Linear(weights, activation=activation)


class _Pages:
    """Sequences of random keys and values in shuffled blocks. new: tokens of each that attend now."""

    def __init__(self, lengths: list[int], new: list[int], dtype: torch.dtype, dim: int = 32) -> None:
        width = max(lengths) // 16 + 1
        blocks = torch.randperm(len(lengths) * width) + 1
        self.tables = blocks.view(-1, width).int()
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.new = new
        shape = (len(blocks) + 1, 2, 16, dim)
        self.k_cache, self.v_cache = (torch.full(shape, float("nan")).to(dtype) for _ in range(2))
        self.q, self.k, self.v = ([torch.randn(n, h, dim) for n in lengths] for h in (6, 2, 2))
        self._call([(row, 0, length - new[row]) for row, length in enumerate(lengths)], None)

    def attend(self, rows: list[int], window: int | None) -> list[torch.Tensor]:
        return self._call([(r, int(self.lengths[r]) - self.new[r], int(self.lengths[r])) for r in rows], window)

    def _call(self, parts: list[tuple[int, int, int]], window: int | None) -> list[torch.Tensor]:
        """parts: row, and which of its tokens are written and attend, [from, to)."""
        parts = [part for part in parts if part[1] < part[2]]
        counts = [to - at for _, at, to in parts]
        found = api.attend(
            self.k_cache,
            self.v_cache,
            *(torch.cat([x[row][at:to] for row, at, to in parts] or [x[0][:0]]) for x in (self.q, self.k, self.v)),
            writes=torch.tensor(
                [self.tables[row, n // 16] * 16 + n % 16 for row, at, to in parts for n in range(at, to)],
                dtype=torch.int64,
            ),
            tables=self.tables[[row for row, _, _ in parts]],
            lengths=torch.tensor([to for _, _, to in parts], dtype=torch.int32),
            starts=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
            scale=0.2,
            window=window,
        )
        return list(found.split(counts))

    @property
    def rounds(self) -> bool:
        return self.k_cache.dtype == torch.bfloat16 and api.rounds(api.FORMATS[torch.bfloat16])

    def wanted(self, row: int, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention in float64, and how far from it weights in bfloat16 may lead."""
        dtype, length = self.k_cache.dtype, int(self.lengths[row])
        k, v = (x[row].to(dtype).double().transpose(0, 1) for x in (self.k, self.v))
        q = self.q[row].to(dtype if self.rounds else torch.float32).double().transpose(0, 1)
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        if window:
            seen &= ~torch.ones(length, length, dtype=torch.bool).tril(-window)
        out, size = (
            F.scaled_dot_product_attention(q, k, x, attn_mask=seen, scale=0.2, enable_gqa=True).transpose(0, 1)[
                length - self.new[row] :
            ]
            for x in (v, v.abs())
        )
        return out, size * (2**-8 if self.rounds else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 16, 40, 70])
def test_attention_is_that_of_torch_however_blocks_lie(dtype: torch.dtype, window: int | None) -> None:
    torch.manual_seed(4)
    for dim in (16, 64, 80):
        pages = _Pages([1, 16, 17, 170, 33, 64, 150], [1, 1, 1, 1, 33, 20, 90], dtype, dim)
        for row, found in enumerate(pages.attend([0, 1, 2, 3, 4, 5, 6], window)):
            want, bound = pages.wanted(row, window)
            assert ((found - want).abs() <= bound + 2e-5 + 2e-5 * want.abs()).all()


@pytest.mark.parametrize("window", [None, 5, 75])
def test_attention_of_a_token_does_not_depend_on_the_batch_or_the_chunk(window: int | None) -> None:
    torch.manual_seed(5)
    for dtype in (torch.float32, torch.bfloat16):
        lengths = [40, 290, 170]
        torch.manual_seed(6)
        whole = _Pages(lengths, lengths, dtype).attend([0, 1, 2], window)
        torch.manual_seed(6)
        single = _Pages(lengths, [1, 1, 1], dtype).attend([2, 0, 1], window)
        torch.manual_seed(6)
        chunk = _Pages(lengths, [7, 33, 21], dtype).attend([1], window)
        for row, found in zip([2, 0, 1], single, strict=True):
            assert torch.equal(found[0], whole[row][-1])
        assert torch.equal(chunk[0], whole[1][-33:])


def _build(folder: Path) -> str:
    return str(build.library(folder))


def test_ranks_that_start_together_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    compiler = tmp_path / "c++"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-o*) echo >> {calls}; for to; do :; done; echo x > "$to";; esac\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    folder = tmp_path / "cache"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = set(pool.map(_build, [folder] * 8))
    assert len(found) == 1
    assert calls.read_text().count("\n") == 1
    assert Path(found.pop()).read_text() == "x\n"
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert sorted(p.suffix for p in folder.iterdir()) == ["", ".so"]


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that compiles at once."""
    path = tmp_path / "c++"
    path.write_text('#!/bin/sh\nfor to; do :; done; case "$*" in *-o*) echo x > "$to";; esac\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


@pytest.mark.usefixtures("quick_compiler")
def test_a_new_library_removes_those_that_were_not_used_for_long(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for name, days in (("kernels-a-b.so", 31), ("tmpdead.so", 31), ("kernels-c-d.so", 29)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - days * 86400,) * 2)
    made = build.library(folder)
    assert made is not None
    assert {path.name for path in folder.glob("*.so")} == {made.name, "kernels-c-d.so"}
    os.utime(made, (0, 0))
    assert build.library(folder) == made
    assert made.stat().st_mtime > 0, "a use counts"


@pytest.mark.usefixtures("quick_compiler")
def test_where_the_cache_cannot_be_written_the_kernels_are_compiled_for_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "private").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    (tmp_path / "file").touch()
    made = build.library(tmp_path / "file" / "cache")
    assert made is not None
    assert made.read_text() == "x\n"
    assert made.parent.parent == tmp_path / "private"
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert [str(tmp_path / "file") in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert build.library(tmp_path / "cache") is None
    assert len(caplog.records) == 1
    assert "C++ compiler" in caplog.text or compiler in caplog.text


def test_without_a_compiler_what_an_equal_node_compiled_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / f"kernels-{build._kind()}-0123456789abcdef.so"
    made.touch()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.library(tmp_path) == made


def test_another_processor_or_source_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build._kind()
    monkeypatch.setattr(build, "_processor", lambda: "another")
    assert build._kind() != first
    monkeypatch.undo()
    for number, source in enumerate(build.SOURCES):
        other = tmp_path / source.name
        other.write_bytes(source.read_bytes() + b"\n")
        changed = (*build.SOURCES[:number], other, *build.SOURCES[number + 1 :])
        monkeypatch.setattr(build, "SOURCES", changed)
        assert build._kind() != first


def test_all_of_the_source_counts() -> None:
    assert {p for p in build.SOURCES[0].parent.iterdir() if p.suffix in (".cpp", ".h")} == set(build.SOURCES)


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86 processors")
@pytest.mark.parametrize("without", ["avx512bf16", "avx512f", "avx512f -mno-avx2 -mno-fma"])
def test_the_laws_hold_on_lesser_processors(tmp_path: Path, without: str) -> None:
    environment = {**os.environ, "CXX": f"c++ -mno-{without}", "XDG_CACHE_HOME": str(tmp_path)}
    files = [Path(__file__).with_name(f"test_replica_{name}.py") for name in ("native", "attention", "linear")]
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "not long", *map(str, files)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
