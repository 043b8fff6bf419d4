"""Which leaf switches went dark: agents that fall silent together, on one switch, are one event. Pure.

A block or a ring counts as a switch: what `slurm.topology` found to share a fate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

LEAST = 3
"""Fewer silent agents of one switch are taken for single losses."""


class Dark:
    """What a look at the silent agents told."""

    def __init__(self, leaves: Mapping[str, str], ours: Iterable[str], silent: Iterable[str]) -> None:
        """leaves: node -> leaf switch; ours: node of every agent, once for each; silent: those of lost ones."""
        quiet = [node for node in silent if node in leaves]
        lost = Counter(leaves[node] for node in quiet)
        whole = Counter(leaves[node] for node in ours if node in leaves) if lost else Counter[str]()
        self.switches = {
            leaf: count for leaf, count in lost.items() if count >= LEAST and 2 * count >= whole[leaf]
        }
        """Leaf switch -> silent agents, where half of the agents on it are silent."""
        self._nodes = {node for node in quiet if leaves[node] in self.switches}
        self._leaves = leaves

    def __contains__(self, node: str) -> bool:
        """Whether this node is one of the silent ones of a dark switch."""
        return node in self._nodes

    def beside(self, node: str) -> tuple[str, ...]:
        """The silent nodes of this node's dark switch; () when it is on none."""
        if node not in self._nodes:
            return ()
        return tuple(sorted(other for other in self._nodes if self._leaves[other] == self._leaves[node]))


class Network:
    """What is known of the switches, and which of them were dark at the last look."""

    def __init__(self) -> None:
        self._leaves: Mapping[str, str] | None = None
        self._dark: Mapping[str, int] = {}

    @property
    def known(self) -> bool:
        """Slurm has said how the nodes hang together, or that it does not know."""
        return self._leaves is not None

    @property
    def leaves(self) -> Mapping[str, str]:
        """Node -> leaf switch; none while it is not known."""
        return self._leaves or {}

    def learn(self, leaves: Mapping[str, str]) -> None:
        """Empty where the site tells none: then half of the fleet, no less, counts as one event
        (`verdict.is_blind`)."""
        self._leaves = leaves

    def look(self, ours: Iterable[str], silent: Iterable[str]) -> tuple[Dark, list[str]]:
        """As `Dark`; and what is new about it, for an operator."""
        found = Dark(self.leaves, ours, silent)
        news = [_told(leaf, count) for leaf, count in found.switches.items() if leaf not in self._dark]
        self._dark = found.switches
        return found, news

    def notes(self, tasks: int) -> list[str]:
        """For `status`; tasks: of the fleet."""
        lines = [_told(leaf, count) for leaf, count in sorted(self._dark.items())]
        if self.known and not self.leaves and tasks >= LEAST:
            lines.append("Slurm tells of no switches or blocks: all nodes count as one failure domain")
        return lines


def _told(leaf: str, count: int) -> str:
    return f"switch {leaf}: {count} agents fell silent together"
