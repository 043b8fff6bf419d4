"""The fleet's figures as this entry was told them: asked of the broker when somebody wants them, and kept for a
few seconds.

An entry that nobody scrapes never asks. While no broker answers, the last figures stay; they tell their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from exahpc.wire.messages import FleetFigures, FleetMap, Message, ReplicaStory

Answer = TypeVar("Answer", FleetFigures, FleetMap, ReplicaStory)

FRESH_SECONDS = 5.0
"""The broker looks at its fleet every ten seconds."""
PATIENCE = 2.0
"""Seconds that a client waits for the broker's answer."""
MOST_KEPT = 32
"""Answers that are kept: each wish for detail has its own."""


class Asked(Generic[Answer]):
    """One kind of answer. send: to the broker, False when none is connected."""

    def __init__(self, send: Callable[[Message], bool]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._kept: dict[Message, tuple[float, Answer]] = {}
        self._waiting: dict[Message, list[Callable[[Answer | None], None]]] = {}

    def ask(self, query: Message, use: Callable[[Answer | None], None]) -> Callable[[], None] | None:
        """`use` is called once, within PATIENCE; with None when there is no answer at all.

        Returns what to call when nobody waits any more; None when it was called at once.
        """
        at, kept = self._kept.get(query, (float("-inf"), None))
        if self._loop.time() - at < FRESH_SECONDS:
            use(kept)
            return None
        if query in self._waiting:
            self._waiting[query].append(use)
        elif self._send(query):
            self._waiting[query] = [use]
            self._loop.call_later(PATIENCE, self._give_up, query)
        else:
            use(kept)
            return None
        return lambda: self._leave(query, use)

    def _leave(self, query: Message, use: Callable[[Answer | None], None]) -> None:
        waiting = self._waiting.get(query, [])
        if use in waiting:
            waiting.remove(use)

    def told(self, query: Message, answer: Answer) -> None:
        """The broker's answer to this."""
        self._kept.pop(query, None)
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[query] = self._loop.time(), answer
        self._serve(query, answer)

    def _give_up(self, query: Message) -> None:
        if query in self._waiting:
            _, kept = self._kept.get(query, (0.0, None))
            self._serve(query, kept)

    def _serve(self, query: Message, answer: Answer | None) -> None:
        for use in self._waiting.pop(query, []):
            use(answer)
