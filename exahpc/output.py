"""Standard output that writes all it is given."""

from __future__ import annotations

import io
import sys


def whole() -> None:
    """Put a buffer around a standard output without one (PYTHONUNBUFFERED, as in many containers).

    Such a one writes what the system takes at once, a part of it when a signal comes while a pipe is full, and
    tells so only in a number that print() and click never look at.
    """
    out = sys.stdout
    raw = getattr(out, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=out.encoding, errors=out.errors, line_buffering=True
        )
