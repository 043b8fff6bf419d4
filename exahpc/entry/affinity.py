"""Which replica lately computed the beginning of a prompt: it may still have it in its prefix cache. Pure.

A prompt is known by checksums of its bytes at doubling lengths: two that begin alike share the keys of all lengths
up to where they part. Each key goes on from the one before it and looks at the last bytes of its length only, so a
long prompt costs a few microseconds. A checksum that lies sends a request to a replica that is as good as any.
"""

from __future__ import annotations

from zlib import crc32

from exahpc.entry.fleet import Replica

Keys = tuple[int, ...]

SHORTEST = 256
"""Bytes of a prompt below which a cached beginning is worth nothing; its keys are of 1, 2, 4, ... times as many."""
LONGEST = 65536
_WINDOW = 256  # bytes that each key looks at
_MOST = 32768  # keys remembered: at least so many, at most twice


def keys_of(prompt: memoryview | bytes) -> Keys:
    """Keys of the raw bytes of a prompt, shortest beginning first; none for a short prompt."""
    size, length, key, found = min(len(prompt), LONGEST), SHORTEST, 0, []
    while length <= size:
        key = crc32(prompt[length - _WINDOW : length], key)
        found.append(key)
        length *= 2
    return tuple(found)


class Affinity:
    """Bounded: in two generations, of which the older one is dropped when the younger one is full."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._young: dict[int, Replica] = {}
        self._old: dict[int, Replica] = {}

    def remember(self, keys: Keys, replica: Replica) -> None:
        """It is about to compute a prompt with these keys."""
        young = self._young
        for key in keys:
            young[key] = replica
        if len(young) > self._most:
            self._old, self._young = young, {}

    def recall(self, keys: Keys) -> tuple[Replica | None, int]:
        """Who lately had the longest beginning in common, and of how many bytes at least."""
        for number in range(len(keys) - 1, -1, -1):
            replica = self._young.get(keys[number]) or self._old.get(keys[number])
            if replica is not None:
                return replica, SHORTEST << number
        return None, 0
