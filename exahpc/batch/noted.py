"""Which deployment ran a batch last: noted in its folder, for `batch status OUTPUT` and `batch cancel OUTPUT`."""

from __future__ import annotations

from pathlib import Path

from exahpc.batch.plan import Parts
from exahpc.wire.folder import write_atomic


def note_deployment(parts: Parts, folder: Path) -> None:
    """folder: the deployment's."""
    write_atomic(parts.path / "deployment", str(folder).encode("utf-8", "surrogateescape"))


def noted_deployment(parts: Parts) -> Path | None:
    """The folder of the deployment that ran it last, if it is there still."""
    try:
        path = Path((parts.path / "deployment").read_bytes().decode("utf-8", "surrogateescape"))
    except OSError:
        return None
    return path if (path / "deployment.toml").is_file() else None
