"""Slurm's way to write a time limit. Pure."""

from __future__ import annotations


def seconds(text: str) -> float | None:
    """Of "90", "90:30", "1:30:30", "2-3", "2-3:30" or "2-3:30:30"; None for no limit, or one that is not told."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in (*parts, *([days] if dash else []))):
        return None
    numbers = [int(part) for part in parts]
    if dash or len(numbers) == 3:  # hours first
        hours, minutes, rest_seconds = (*numbers, 0, 0)[:3]
        return 86400.0 * int(days or 0) + 3600.0 * hours + 60.0 * minutes + rest_seconds
    minutes, rest_seconds = (*numbers, 0)[:2]
    return 60.0 * minutes + rest_seconds
