"""What is measured, as frozen values: they go to the processes that ask, and into the results. Pure."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from exahpc.errors import DeploymentError
from exahpc.lab.bench.lengths import Lengths


class Target(msgspec.Struct, frozen=True):
    """An endpoint. vocabulary: prompts are random token ids below it, 0: random words; ca: file of the certificate
    to trust, "" for those of the system; ignore_eos: ask for answers of exactly the wanted length."""

    url: str
    model: str
    vocabulary: int = 0
    ca: str = ""
    ignore_eos: bool = False


class Load(msgspec.Struct, frozen=True):
    """Either concurrency (closed loop: so many clients, each asks again when it has its answer) or rate (open
    loop: requests a second that come when they come). arrivals: of the open loop, independent or evenly
    spaced."""

    concurrency: int = 0
    rate: float = 0.0
    arrivals: Literal["poisson", "fixed"] = "poisson"

    @property
    def open(self) -> bool:
        return self.rate > 0

    def times(self, factor: float) -> Load:
        """The same load, so many times as much."""
        concurrency = max(1, round(self.concurrency * factor)) if self.concurrency else 0
        return msgspec.structs.replace(self, concurrency=concurrency, rate=self.rate * factor)

    def __str__(self) -> str:
        if not self.open:
            return f"{self.concurrency} at once"
        return f"{self.rate:g}/s {'Poisson' if self.arrivals == 'poisson' else 'evenly spaced'}"


class Slo(msgspec.Struct, frozen=True):
    """When an answer was good, in seconds: to its first text, from token to token on average, to its end. None:
    any time is good."""

    ttft: float | None = None
    tbt: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return self != Slo()

    def __str__(self) -> str:
        told = ((name, getattr(self, name)) for name in ("ttft", "tbt", "e2e"))
        return ", ".join(f"{name} <= {1e3 * value:g} ms" for name, value in told if value is not None)


class Wish(msgspec.Struct, frozen=True):
    """One measurement. ramp, seconds, drain: before counting begins, counted, and at most waited for answers after
    it; file: of prompts, instead of `prompt`; chat: /chat/completions, else /completions."""

    target: Target
    load: Load
    prompt: Lengths
    new: Lengths
    ramp: float = 5.0
    seconds: float = 30.0
    drain: float = 60.0
    file: str = ""
    chat: bool = False
    stream: bool = True
    seed: int = 1
    slo: Slo = Slo()


_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|)")


def slo(text: str) -> Slo:
    """From "ttft=500ms,tbt=0.05,e2e=30s"; seconds without a unit. Raises DeploymentError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = _TIME.fullmatch(value.strip())
        if name not in Slo.__struct_fields__ or match is None or name in found:
            raise DeploymentError(
                f"--slo {part!r}: give times to the first token, between tokens and to the end, "
                f"for example ttft=500ms,tbt=50ms,e2e=30s"
            )
        found[name] = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)
    return Slo(**found)
