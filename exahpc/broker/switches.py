"""Which leaf switches went dark: agents that fall silent together, on one switch, are one event. Pure."""

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
