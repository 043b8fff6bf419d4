"""Node-hours: what the deployment has used, and whether it may ask for more nodes. Pure."""

from __future__ import annotations

from exahpc.broker.memory import Spent

_JOURNAL_SECONDS = 60.0


class Account:
    """Counts nodes whose agents live; what a job holds before its agent's hello is not seen."""

    def __init__(self, bound: float | None, before: Spent | None, now: float) -> None:
        """bound: node-hours, None for none; before: the last record of an earlier broker, whose nodes lived on."""
        self._bound = bound
        self.spent = 0.0 if before is None else before.node_hours + before.nodes * max(0.0, now - before.at) / 3600
        self._at = now
        self._told = float("-inf")

    @property
    def exhausted(self) -> bool:
        return self._bound is not None and self.spent >= self._bound

    def so_far(self, nodes: int, now: float) -> float:
        """Node-hours until now, when so many nodes were held since the last tick."""
        return self.spent + nodes * max(0.0, now - self._at) / 3600

    def tick(self, nodes: int, now: float) -> Spent | None:
        """So many nodes were held since the last tick. Returns what should be journalled, about once a minute."""
        before = self.exhausted
        self.spent = self.so_far(nodes, now)
        self._at = now
        if now < self._told + _JOURNAL_SECONDS and before == self.exhausted:
            return None
        self._told = now
        return Spent(now, self.spent, nodes)

    def note(self) -> list[str]:
        """For `status`."""
        if self._bound is None:
            return []
        if self.exhausted:
            return [
                f"the budget of {self._bound:g} node-hours is used up ({self.spent:.1f}): no node is asked for, "
                f"lost ones are not replaced; raise budget.node_hours, then `exahpc down` and `exahpc up`"
            ]
        return [f"{self.spent:.1f} of {self._bound:g} node-hours are used"]
