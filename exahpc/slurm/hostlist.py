"""Slurm's compressed node lists: "gpu[01-03,7],login1" <-> names. Pure."""

from __future__ import annotations

import re
from itertools import product

_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


def expand(text: str) -> tuple[str, ...]:
    """All names in Slurm's order; () for nothing ("", "(null)"). Leading zeros are kept; several [] are fine."""
    if text in ("", "(null)", "None assigned"):
        return ()
    names: list[str] = []
    for part in _PART.findall(text):
        pieces = [_numbers(inside) if inside else [plain] for inside, plain in _PIECE.findall(part)]
        names.extend("".join(combination) for combination in product(*pieces))
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if dash:
            found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        else:
            found.append(first)
    return found
