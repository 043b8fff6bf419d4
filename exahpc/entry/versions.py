"""Which version of the deployment takes a request that names none. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from exahpc.wire.messages import Share

LOTS = 1 << 20
"""A request's lot is a whole number below this. It stands for the same version as long as the shares stay."""


class Shares:
    """The shares of the versions, as they stand in the fleet table. False when there are none."""

    def __init__(self, shares: Sequence[Share]) -> None:
        whole = sum(share.share for share in shares)
        taken = [share for share in shares if share.share > 0]
        self._ends = [LOTS * end / whole for end in accumulate(share.share for share in taken)]
        default = max(taken, key=lambda share: share.share).version if taken else ""
        self._versions = [tuple(dict.fromkeys((share.version, default))) for share in taken]

    def __bool__(self) -> bool:
        return bool(self._versions)

    def of(self, lot: int) -> tuple[str, ...]:
        """The version that a lot stands for, and then the one with the largest share: it takes what finds no room.

        Nothing else does: a version that is tried out must not meet more requests because the others are full.
        """
        return self._versions[min(bisect_right(self._ends, lot), len(self._versions) - 1)]
