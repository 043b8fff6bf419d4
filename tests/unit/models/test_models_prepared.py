"""Laws of checkpoints that are made once for all nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file

from exahpc.errors import DeploymentError
from exahpc.models import copies, manifest, produce
from exahpc.models.checkpoint import Wanted, look
from exahpc.models.prepared import prepare, seal
from tests.unit.models.test_models_produce import HALF, INT8, LAYER, WIDE, checkpoint


def test_a_converted_checkpoint_is_a_checkpoint_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    (source / "tokenizer.json").write_text("{}")
    (source / "pytorch_model.bin").write_bytes(b"x")
    shares: list[float] = []
    prepare(source, tmp_path / "made", INT8, shares.append)
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {path.name for path in source.iterdir()} - {"pytorch_model.bin"} | {manifest.NAME}
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    told = manifest.read(tmp_path / "made")
    assert told is not None
    assert manifest.fits(tmp_path / "made", told)
    assert load_file(tmp_path / "made" / "a.safetensors")[LAYER].dtype.itemsize == 1


@pytest.mark.parametrize("wanted", [WIDE, HALF])
def test_nothing_is_overwritten_and_nothing_done_twice(tmp_path: Path, wanted: Wanted) -> None:
    source = checkpoint(tmp_path / "m")
    (tmp_path / "made").mkdir()
    words = "in that form already" if wanted == WIDE else "exists"
    with pytest.raises(DeploymentError, match=words):
        prepare(source, tmp_path / "made", wanted, lambda _: None)


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "m")

    def broken(*_: object) -> produce.Pieces:
        yield "config.json", b"{}"
        raise DeploymentError("broken")

    monkeypatch.setattr(produce, "pieces", broken)
    with pytest.raises(DeploymentError, match="broken"):
        prepare(source, tmp_path / "made", HALF, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("wanted", [WIDE, HALF])
def test_rounded_weights_are_not_unrounded(tmp_path: Path, wanted: Wanted) -> None:
    prepare(checkpoint(tmp_path / "m"), tmp_path / "int8", INT8, lambda _: None)
    with pytest.raises(DeploymentError, match=r"int8 holds INT8 weights.*ask for --int8"):
        prepare(tmp_path / "int8", tmp_path / "made", wanted, lambda _: None)


@pytest.mark.parametrize("parent", ["nowhere", "m/config.json", "m"])
def test_a_target_that_cannot_be_made_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    source = checkpoint(tmp_path / "m")
    if parent == "m":  # root may write anywhere

        def refused(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(source))

        monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    with pytest.raises(DeploymentError, match=r"made cannot be made .*: name a target in a folder that is there"):
        prepare(source, tmp_path / parent / "made", HALF, lambda _: None)


def test_too_little_room_is_told_in_units_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "m")
    full = os.statvfs_result([4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255])
    monkeypatch.setattr("os.statvfs", lambda _: full)
    with pytest.raises(DeploymentError, match=r"has 0 B free, the weights take \d\.\d KiB"):
        prepare(source, tmp_path / "made", HALF, lambda _: None)
    claim = copies.Store(tmp_path).claim("k")
    assert claim is not None
    with pytest.raises(DeploymentError, match=r"has 0 B free, the weights take 3\.0 MiB"):
        claim.writer(3 << 20)


def test_a_seal_names_what_replicas_read_and_finds_damage(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    assert seal(source) == look(source).size
    told = manifest.read(source)
    assert told is not None
    assert manifest.fits(source, told)
    with (source / "a.safetensors").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"?")
    assert manifest.sizes_fit(source, told)
    assert not manifest.fits(source, told)


def test_a_file_that_was_cut_is_not_sealed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    with (source / "a.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)
    with pytest.raises(DeploymentError, match="cut or damaged"):
        seal(source)
    assert manifest.read(source) is None
