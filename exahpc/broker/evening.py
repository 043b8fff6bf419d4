"""Who hands back rows when nothing is left for others. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from exahpc.batch.book import Lease


def even_out(leases: Iterable[Lease], vain: Sequence[str], room: Callable[[str], int]) -> list[Lease]:
    """Leases of which is to come back what was not begun; marked as `soft`, so that each is asked for once.

    Each agent that asks in vain is matched with the one that holds most for its size, if that is more than twice
    as much; it gives its newest leases, which are the least begun, until the two would be even.
    """
    held = Counter[str]()
    spare: dict[str, list[Lease]] = {}
    for lease in leases:
        held[lease.agent] += len(lease.held)
        if not (lease.soft or lease.closing):
            spare.setdefault(lease.agent, []).append(lease)
    load = {agent: held[agent] / room(agent) for agent in (*held, *vain)}
    givers = [(-load[agent], agent) for agent in spare if held[agent] > 1]
    heapq.heapify(givers)
    found: list[Lease] = []
    for agent in sorted(vain, key=load.__getitem__):
        if not givers or -givers[0][0] <= 2 * load[agent] or givers[0][1] == agent:
            break
        _, giver = heapq.heappop(givers)
        need = (held[giver] - held[agent]) // 2
        while need > 0 and spare[giver]:
            lease = spare[giver].pop()
            lease.soft = True
            need -= len(lease.held)
            found.append(lease)
    return found
