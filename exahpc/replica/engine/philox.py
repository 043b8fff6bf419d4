"""Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) over arrays.

Random numbers are counted, not streamed: one number is a function of (seed, stream, position) alone, so a
sequence draws alike on any replica, in any batch, and after it was moved. The numbers are numpy's for
`Generator(Philox(key=(seed, stream), counter=(0, 0, 0, position))).random()`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_ROUNDS = 10


def uniform(seed: Words, stream: Words, position: Words) -> NDArray[np.float64]:
    """Numbers in [0, 1), one for each element; the arguments broadcast against each other (uint64, any shape)."""
    with np.errstate(over="ignore"):  # words wrap around, as they should
        a, b, c, d = np.broadcast_arrays(np.uint64(1), np.uint64(0), np.uint64(0), position)  # numpy counts first
        for _ in range(_ROUNDS):
            (high, low), (high2, low2) = _multiply(a, _FACTORS[0]), _multiply(c, _FACTORS[1])
            a, b, c, d = high2 ^ b ^ seed, low2, high ^ d ^ stream, low
            seed, stream = seed + _WEYL[0], stream + _WEYL[1]
    return (a >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _multiply(words: Words, factor: int) -> tuple[Words, Words]:
    """High and low 64 bits of each product."""
    top, bottom = np.uint64(factor >> 32), np.uint64(factor & (2**32 - 1))
    upper, lower = words >> _HALF, words & _LOW
    middle = upper * bottom + ((lower * bottom) >> _HALF)
    other = lower * top + (middle & _LOW)
    return upper * top + (middle >> _HALF) + (other >> _HALF), words * np.uint64(factor)
