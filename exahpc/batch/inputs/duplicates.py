"""Which custom_ids appear twice among millions, at 8 bytes a row. Pure."""

from __future__ import annotations

import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_STEP = 1 << 17


class Ids:
    """Hashes of all custom_ids. needed: False when ids are made from row numbers, and nothing has to be kept."""

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self._hashes = array.array("q")

    def add(self, ids: Iterable[str]) -> None:
        if self._needed:
            self._hashes.extend(map(hash, ids))

    def doubtful(self) -> npt.NDArray[np.int64]:
        """Rows whose hash is that of another row too: their ids must be compared. Forgets everything."""
        hashes = np.frombuffer(self._hashes, np.int64)
        ordered = np.sort(hashes)
        again = ordered[1:] == ordered[:-1]
        repeated = np.unique(ordered[1:][again])
        del ordered, again
        found = [np.empty(0, np.int64)]
        if len(repeated):
            for first in range(0, len(hashes), _STEP):
                some = hashes[first : first + _STEP]
                at = np.minimum(np.searchsorted(repeated, some), len(repeated) - 1)
                found.append(np.flatnonzero(repeated[at] == some) + first)
        self._hashes = array.array("q")
        return np.concatenate(found)
