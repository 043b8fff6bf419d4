"""The fleet table as it was last pushed, and whether it may have changed since. Pure; used by `fleet` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exahpc.wire.messages import AgentRoute, FleetTable, Share


class Drawing:
    """stale: something that the table tells may be new; set by whoever changes a route. routes: of all agents."""

    def __init__(self, epoch: int, routes: Callable[[], list[AgentRoute]]) -> None:
        self._routes = routes
        self._shares: list[Share] = []
        self._asleep = False
        self.published = FleetTable(epoch, 0, [])
        self.stale = True

    def share(self, shares: Sequence[Share]) -> None:
        """See FleetTable.shares."""
        self.stale |= self._shares != list(shares)
        self._shares = list(shares)

    def sleep(self, asleep: bool) -> None:
        """See FleetTable.asleep."""
        self.stale |= asleep != self._asleep
        self._asleep = asleep

    def next(self) -> FleetTable | None:
        """The table to push, with its version raised, or None when entries already have the same one."""
        if not self.stale:
            return None
        self.stale = False
        before = self.published
        drawn = FleetTable(before.epoch, before.version, self._routes(), self._shares, self._asleep)
        if before.version and drawn == before:
            return None
        self.published = FleetTable(before.epoch, before.version + 1, drawn.agents, drawn.shares, drawn.asleep)
        return self.published
