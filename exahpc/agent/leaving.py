"""How an agent ends: by when, why, and what becomes of its task. Pure; used by `core` alone."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.agent.events import Drain, Finish

STOP_GRACE = 8.0  # from "please stop" to the kill: taking an interpreter with torch down takes seconds
KILL_GRACE = 5.0  # from the kill to the end of waiting: a process stuck in the kernel must not hold the task
EXIT_REQUEUE = 75
EXIT_AGAIN = 76  # any code but 0 and 75 makes the supervisor start the agent again


@dataclass
class Leaving:
    """deadline: by when requests are finished, or moved; the rest: see `Drain`."""

    deadline: float
    reason: str
    requeue: bool
    again: bool
    suspect: bool

    @staticmethod
    def of(event: Drain, now: float) -> Leaving:
        return Leaving(_deadline(event, now), event.reason, event.requeue, event.again, event.suspect)

    def merge(self, event: Drain, now: float) -> None:
        """It was told so once more, for another reason."""
        if event.again:
            return  # it ends in any case, and loads what it is to load at its next start, wherever that is
        self.deadline = min(self.deadline, _deadline(event, now))
        # "end for good" wins over "run again", whichever came first; both win over "again here"
        self.requeue = event.requeue and (self.requeue or self.again)
        self.reason = event.reason if self.again else self.reason
        self.again = False
        self.suspect |= event.suspect

    @property
    def last(self) -> float:
        """Until when replicas that do not end are waited for."""
        return self.deadline + STOP_GRACE + KILL_GRACE

    def finish(self, hand_back_code: int) -> Finish:
        code = EXIT_AGAIN if self.again else hand_back_code if self.requeue else 0
        return Finish(code, self.reason, self.requeue, self.requeue and self.suspect)


def _deadline(event: Drain, now: float) -> float:
    return now + max(0.0, event.seconds)
