"""What became of every request, as columns: a million of them must not be a million objects."""

from __future__ import annotations

from array import array
from typing import Literal

Ending = Literal["done", "failed", "refused", "no room", "open"]
"""open: it had not ended when the simulation did."""
ENDINGS: tuple[Ending, ...] = ("done", "failed", "refused", "no room", "open")


_NUMBERS: dict[Ending, int] = {ending: number for number, ending in enumerate(ENDINGS)}
COLUMNS = ("arrived", "first", "between", "whole", "prompt", "new", "moved", "ending", "version")
"""first: seconds to the first token, negative when none came; between: from one token to the next on average,
negative for fewer than two tokens; whole: to the end; moved: how often it was interrupted; ending, version: places
in ENDINGS and `versions`."""


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
        self.rows = array("d")
        """One after the other, len(COLUMNS) numbers each."""
        self.versions: dict[str, int] = {"": 0}
        self.opened = 0

    def end(self, client: Client, ending: Ending, moved: int, now: float) -> None:
        """See COLUMNS."""
        first, arrived, new = client.first, client.arrived, client.new
        began = first >= 0
        self.rows.extend(
            (
                arrived,
                first - arrived if began else -1.0,
                (now - first) / (new - 1) if began and new > 1 and ending == "done" else -1.0,
                now - arrived,
                client.prompt,
                new,
                moved,
                _NUMBERS[ending],
                self.versions.setdefault(client.version, len(self.versions)),
            )
        )

    def __len__(self) -> int:
        return len(self.rows) // len(COLUMNS)
