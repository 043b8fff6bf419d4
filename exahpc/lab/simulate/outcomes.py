"""What became of every request, as columns: a million of them must not be a million objects."""

from __future__ import annotations

from array import array
from typing import Literal

Ending = Literal["done", "failed", "refused", "no room", "open"]
"""open: it had not ended when the simulation did."""
ENDINGS: tuple[Ending, ...] = ("done", "failed", "refused", "no room", "open")


class Client:
    """One request as its client sees it. first: when the first token came, negative before that; version: that
    served it; deaths: attempts that ended under it by then."""

    __slots__ = ("arrived", "first", "moved", "new", "prompt", "version")

    def __init__(self, arrived: float, prompt: int, new: int) -> None:
        self.arrived, self.prompt, self.new = arrived, prompt, new
        self.first = -1.0
        self.moved = 0
        self.version = ""


class Outcomes:
    """A row for each request that has ended; seconds."""

    def __init__(self) -> None:
        self.arrived = array("d")
        self.first_token = array("d")
        """From arrival; negative when none came."""
        self.between = array("d")
        """From one token to the next on average; negative for fewer than two tokens."""
        self.whole = array("d")
        """From arrival to the end."""
        self.prompt = array("l")
        self.new = array("l")
        self.moved = array("b")
        """How often it was interrupted."""
        self.ending = array("b")
        """Index into ENDINGS."""
        self.version = array("b")
        """Index into `versions`."""
        self.versions: list[str] = [""]
        self.opened = 0

    def end(self, client: Client, ending: Ending, moved: int, now: float) -> None:
        first, arrived, new = client.first, client.arrived, client.new
        self.arrived.append(arrived)
        self.first_token.append(first - arrived if first >= 0 else -1.0)
        self.between.append((now - first) / (new - 1) if first >= 0 and new > 1 and ending == "done" else -1.0)
        self.whole.append(now - arrived)
        self.prompt.append(client.prompt)
        self.new.append(new)
        self.moved.append(min(moved, 100))
        self.ending.append(ENDINGS.index(ending))
        if client.version not in self.versions:
            self.versions.append(client.version)
        self.version.append(self.versions.index(client.version))

    def __len__(self) -> int:
        return len(self.arrived)
