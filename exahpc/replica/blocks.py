"""The block pool: which blocks of the KV cache are free, shared or remembered. Pure.

A block holds BLOCK tokens of one sequence. A full block is known by a *key*: a digest of its tokens and of all
tokens before it, so equal beginnings of prompts have equal keys and are computed once. A block that nobody uses
any more stays *remembered* under its key until its room is needed, the least recently used first.

Block 0 is never handed out and stays zero: the padding of block tables points to it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Items

from exahpc.deployment.grid import BLOCK
from exahpc.errors import StateError

__all__ = ["BLOCK", "ROOT", "BlockPool", "blocks_of", "chain"]

ROOT = b""
"""The key before the first block."""


def blocks_of(tokens: int) -> int:
    """Blocks that so many tokens take."""
    return -(-tokens // BLOCK)


def chain(before: bytes, ids: Items[int]) -> bytes:
    """Key of a full block with tokens `ids` whose predecessor's key is `before`.

    A cryptographic digest, since two users' prompts with one key would share their text.
    """
    return hashlib.blake2b(before + array("I", ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """Blocks 1..blocks. Each is free, remembered (full, unused) or used by one or more sequences.

    A *dirty* block may hold numbers that are not finite. Attention multiplies what it masks by zero, so such a
    block must be set to zero before its next user writes to it: see `unclean`.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._free = list(range(blocks, 0, -1))  # a stack, lowest first: memory is only taken when touched
        self._users = [0] * (blocks + 1)
        self._unused: dict[int, None] = {}  # remembered blocks without users, least recently used first
        self._block: dict[bytes, int] = {}
        self._key: dict[int, tuple[bytes, bytes]] = {}  # block -> its key, the key before it
        self._dirty: set[int] = set()
        self._unclean: list[int] = []

    @property
    def free(self) -> int:
        """Blocks that can be handed out."""
        return len(self._free) + len(self._unused)

    @property
    def remembered(self) -> int:
        """Blocks without users that could be found again."""
        return len(self._unused)

    def users(self, block: int) -> int:
        return self._users[block]

    def find(self, key: bytes) -> int | None:
        """The block with this key, if it is still known."""
        return self._block.get(key)

    def share(self, block: int) -> None:
        """One more user of a known block."""
        if block not in self._key:
            raise StateError(f"block {block} is not remembered, yet it is shared")
        self._unused.pop(block, None)
        self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out blocks with one user each, forgetting what they held. Raises StateError beyond `free`."""
        if count > self.free:
            raise StateError(f"{count} blocks are wanted, {self.free} of {self.blocks} are free")
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block = next(iter(self._unused))
                del self._unused[block]
                self._forget(block)
            if block in self._dirty:
                self._dirty.remove(block)
                self._unclean.append(block)
            self._users[block] = 1
            taken.append(block)
        return taken

    def unclean(self) -> list[int]:
        """Dirty blocks that were handed out since the last call."""
        found, self._unclean = self._unclean, []
        return found

    def publish(self, block: int, key: bytes, before: bytes) -> None:
        """A used block is full from the plan now being made on. A key that is known keeps its first block."""
        if key not in self._block:
            self._block[key] = block
            self._key[block] = key, before

    def give(self, blocks: Iterable[int], dirty: Iterable[int] = ()) -> None:
        """One user less of each, in the order in which they may be forgotten; dirty: see above."""
        self._dirty.update(dirty)
        for block in blocks:
            if self._users[block] < 1:
                raise StateError(f"block {block} has no user, yet it is given back")
            self._users[block] -= 1
            if not self._users[block]:
                if block in self._key:
                    self._unused[block] = None
                else:
                    self._free.append(block)

    def condemn(self, blocks: Iterable[int]) -> None:
        """These used blocks hold no numbers: neither they nor what was built on them is found again."""
        bad = {self._key[block][0] for block in blocks if block in self._key}
        while bad:
            built = {key for key, before in self._key.values() if before in bad}
            for key in bad:
                block = self._block.get(key)
                if block is not None:
                    self._forget(block)
                    self._dirty.add(block)
                    if block in self._unused:
                        del self._unused[block]
                        self._free.append(block)
            bad = built

    def _forget(self, block: int) -> None:
        known = self._key.pop(block, None)
        if known is not None:
            del self._block[known[0]]
