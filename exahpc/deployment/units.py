"""Numbers for people, and from them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def memory(count: float) -> str:
    """Bytes in the largest unit of which there is at least one: "512 B", "4.9 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def size(text: str) -> int:
    """Bytes of "80GB" (decimal), "80 GiB" (binary), "0.5MB" or "1024". Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError('write a number of bytes with a unit: "80GB", "64GiB", "0.5MB"')
    number, unit, binary = found.groups()
    step: int = (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " ")
    return round(float(number) * step)
