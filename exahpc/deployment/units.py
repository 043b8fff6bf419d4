"""Numbers for people."""

from __future__ import annotations


def memory(count: float) -> str:
    """Bytes in the largest unit of which there is at least one: "512 B", "4.9 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
