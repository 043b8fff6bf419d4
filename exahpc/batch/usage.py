"""Node-hours of a batch: `usage/N` in its folder tells what the Nth broker that opened it has seen used.

Each broker writes its own file, so that no two ever write the same one; the batch's sum is over all of them. What
is used between a broker's last note and its successor's first look, a quarter of a minute, is not counted.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from exahpc.batch.plan import Parts
from exahpc.wire.folder import write_atomic


class Usage(msgspec.Struct, frozen=True):
    """What `usage/N` holds."""

    node_hours: float


def _folder(parts: Parts) -> Path:
    return parts.path / "usage"


def note(parts: Parts, number: int, node_hours: float) -> None:
    """What the broker whose commit journal has this number has seen so far. Raises OSError."""
    folder = _folder(parts)
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / f"{number:06d}", msgspec.json.encode(Usage(node_hours)))


def node_hours(parts: Parts) -> float:
    """All that was used so far. A file that cannot be read counts as nothing: results do not depend on it."""
    total = 0.0
    for file in sorted(_folder(parts).glob("[0-9]*")):
        try:
            total += msgspec.json.decode(file.read_bytes(), type=Usage).node_hours
        except (OSError, msgspec.MsgspecError):
            continue
    return total
