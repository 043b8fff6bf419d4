"""How much of the traffic one of two versions gets: the new one, or on the way back the old one. Pure.

Room is what ready replicas of a version run at once, in sequences; load what there is to run, headroom included.
"""

from __future__ import annotations


def proportional(room: int, other: int) -> float:
    """By room alone; everything where neither has any."""
    return room / (room + other) if other else 1.0


def cautious(room: int, other: int, load: float, share: float) -> float:
    """`share`: less where there is less room, more where the other version alone cannot take the load."""
    most = proportional(room, other) if room else 0.0
    needed = 1.0 - other / load if load > 0 else 0.0
    return min(most, max(needed, share))


def eager(room: int, other: int, load: float) -> float:
    """Everything, as far as there is room."""
    least = proportional(room, other)
    if room == 0:
        return least
    return max(least, min(1.0, room / load) if load > 0 else 1.0)
