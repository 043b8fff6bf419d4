"""Which replica lately computed the beginning of a prompt: it may still have it in its prefix cache. Pure.

A prompt is known by checksums of its bytes, its *marks*, at doubling lengths: two that begin alike share the marks
of all lengths up to where they part. Each mark goes on from the one before it and looks at the last bytes of its
length only, so that long prompts cost little. A mark that lies leads to a replica that is as good as any.
"""

from __future__ import annotations

from zlib import crc32

from exahpc.entry.fleet import Replica

Marks = tuple[int, ...]

SHORTEST = 256
"""Bytes of a prompt below which a cached beginning is worth little; marks stand at 1, 2, 4, ... times as many."""
LONGEST = 65536
"""Bytes beyond which nothing is looked at."""
_LENGTHS = [SHORTEST << number for number in range((LONGEST // SHORTEST).bit_length())]
_WINDOWS = [(length, slice(length - SHORTEST, length)) for length in _LENGTHS]  # what each mark looks at
_MOST = 32768  # marks remembered: at least so many, at most twice


def marks_of(prompt: memoryview) -> Marks:
    """Marks of the raw bytes of a prompt, of its shortest beginning first; none for a short prompt."""
    size, mark, found = len(prompt), 0, []
    for length, window in _WINDOWS:
        if length > size:
            break
        mark = crc32(prompt[window], mark)
        found.append(mark)
    return tuple(found)


class Affinity:
    """Bounded: in two generations, of which the older one is dropped when the younger one is full."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._young: dict[int, Replica] = {}
        self._old: dict[int, Replica] = {}

    def remember(self, marks: Marks, replica: Replica) -> None:
        """It is about to compute a prompt with these marks."""
        young = self._young
        for mark in marks:
            young[mark] = replica
        if len(young) >= self._most:
            self._old, self._young = young, {}

    def recall(self, marks: Marks) -> tuple[Replica | None, int]:
        """Who lately had the longest beginning in common, and of how many bytes at least."""
        young, old = self._young, self._old
        for number in range(len(marks) - 1, -1, -1):
            mark = marks[number]
            replica = young.get(mark) or old.get(mark)
            if replica is not None:
                return replica, SHORTEST << number
        return None, 0
