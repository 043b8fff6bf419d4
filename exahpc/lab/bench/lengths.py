"""How many tokens: distributions of the lengths of prompts and answers. Pure: random numbers are arguments."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec

from exahpc.errors import DeploymentError

_NORMAL = NormalDist()
_FORMS = "128, uniform:64-256, lognormal:128,0.5 (median, sigma of the logarithm) or exponential:128 (mean)"
_MOST = 10_000_000


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of whole numbers from 1 up.

    kind: "fixed" (a), "uniform" (a to b), "lognormal" (median a, sigma b of its logarithm) or "exponential" (mean
    a); most: longer ones are cut to it, 0: never.
    """

    kind: Literal["fixed", "uniform", "lognormal", "exponential"]
    a: float
    b: float = 0.0
    most: int = 0

    def at(self, share: float) -> int:
        """The length that `share` (0..1, exclusive) of all lengths do not exceed: its quantile function, so that a
        uniform random number gives a random length."""
        match self.kind:
            case "fixed":
                found = self.a
            case "uniform":  # each whole number is equally likely
                found = math.floor(self.a + share * (self.b - self.a + 1))
            case "lognormal":
                found = self.a * math.exp(self.b * _NORMAL.inv_cdf(share))
            case "exponential":
                found = -self.a * math.log1p(-share)
        length = max(1, round(found))
        return min(length, self.most) if self.most else length

    def typical(self, count: int) -> list[int]:
        """So many equally likely lengths that stand for the whole: the middles of `count` equal shares."""
        return [self.at((number + 0.5) / count) for number in range(1 if self.kind == "fixed" else count)]

    def limited(self, most: int) -> Lengths:
        """The same with longer ones cut to `most`. Raises DeploymentError when hardly any would be shorter."""
        if self.at(0.5) > most:
            raise DeploymentError(f"lengths {self}: half of them are above {most}: shorten them")
        return msgspec.structs.replace(self, most=most)

    def __str__(self) -> str:
        match self.kind:
            case "fixed":
                return f"{self.a:g}"
            case "uniform":
                return f"uniform:{self.a:g}-{self.b:g}"
            case "lognormal":
                return f"lognormal:{self.a:g},{self.b:g}"
            case "exponential":
                return f"exponential:{self.a:g}"


def parsed(text: str) -> Lengths:
    """From what a user writes. Raises DeploymentError that names the forms."""
    kind, _, numbers = text.strip().rpartition(":")
    try:
        match kind:
            case "" | "fixed":
                found = Lengths("fixed", int(numbers))
            case "uniform":
                low, high = numbers.split("-")
                found = Lengths("uniform", int(low), int(high))
            case "lognormal":
                median, sigma = numbers.split(",")
                found = Lengths("lognormal", float(median), float(sigma))
            case "exponential":
                found = Lengths("exponential", float(numbers))
            case _:
                raise ValueError
    except ValueError:
        raise DeploymentError(f"length {text!r}: write {_FORMS}") from None
    wrong = found.kind == "uniform" and found.b < found.a
    if wrong or not 1 <= found.a <= _MOST or not 0 <= found.b <= _MOST:
        raise DeploymentError(f"length {text!r}: lengths are from 1 to {_MOST}; write {_FORMS}")
    return found
