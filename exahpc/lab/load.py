"""N streams at once through a deployment's endpoint: each client sends its next request when its last has ended.

Prompts are random token ids, so that none begins like another (no cached prefix), and lengths of answers vary by
half around their mean, so that clients do not march in step. Random numbers are seeded: two runs ask the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from exahpc.errors import ExahpcError, LinkError
from exahpc.lab.level import Stream

_PAUSE = 0.25
"""Seconds after a refusal: the deployment said that it is full."""
_FULL = (429, 503)


class Target(msgspec.Struct, frozen=True):
    """Where requests go. vocabulary: token ids of prompts are below it; ca: of the endpoint, "" without TLS."""

    url: str
    key: str
    model: str
    vocabulary: int
    ca: str = ""


class Shape(msgspec.Struct, frozen=True):
    """prompt, new: tokens of each request, the latter on average."""

    prompt: int
    new: int


class Load:
    """`concurrency` clients until `run` is cancelled.

    streams: grows as answers end; refused: when requests were; served: clients that have got some text.
    """

    def __init__(self, target: Target, shape: Shape, concurrency: int, clock: Callable[[], float]) -> None:
        self._target, self._shape, self._concurrency, self._clock = target, shape, concurrency, clock
        self.streams: list[Stream] = []
        self.refused: list[float] = []
        self.served: set[int] = set()

    async def run(self) -> None:
        """Raises ExahpcError when a request is answered with an error, LinkError when an answer breaks off."""
        target = self._target
        verify = ssl.create_default_context(cafile=target.ca) if target.ca else True
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        patience = httpx.Timeout(30.0, read=600.0, pool=None)
        headers = {"Authorization": f"Bearer {target.key}"}
        try:
            async with (
                httpx.AsyncClient(
                    verify=verify, limits=limits, timeout=patience, headers=headers, trust_env=False
                ) as client,
                asyncio.TaskGroup() as group,
            ):
                for number in range(self._concurrency):
                    group.create_task(self._client(client, number))
        except ExceptionGroup as several:  # the first one ended the others
            raise several.exceptions[0] from None

    async def _client(self, client: httpx.AsyncClient, number: int) -> None:
        dice = random.Random(f"{self._concurrency} {number}")
        while True:
            if not await self._ask(client, number, self._body(dice)):
                await asyncio.sleep(_PAUSE)

    def _body(self, dice: random.Random) -> dict[str, Any]:
        shape = self._shape
        return {
            "model": self._target.model,
            "prompt": [dice.randrange(self._target.vocabulary) for _ in range(shape.prompt)],
            "max_tokens": dice.randint(max(1, shape.new // 2), max(1, shape.new + shape.new // 2)),
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _ask(self, client: httpx.AsyncClient, number: int, body: dict[str, Any]) -> bool:
        """One request; False when it was refused. What was seen of it is kept even if this is cancelled."""
        start, arrivals, tokens = self._clock(), list[float](), 0
        try:
            async with client.stream("POST", f"{self._target.url}/completions", json=body) as answer:
                if answer.status_code in _FULL:
                    self.refused.append(start)
                    return False
                if answer.status_code != 200:
                    raise ExahpcError(f"HTTP {answer.status_code}: {(await answer.aread()).decode()[:500]}")
                async for line in answer.aiter_lines():
                    found = _event(line)
                    if found is None:
                        continue
                    if any(choice.get("text") for choice in found["choices"]):
                        arrivals.append(self._clock())
                        self.served.add(number)
                    elif found.get("usage"):
                        tokens = int(found["usage"]["completion_tokens"])
        except httpx.HTTPError as error:
            raise LinkError(f"{self._target.url} broke off: {error or type(error).__name__}") from error
        finally:
            self.streams.append(Stream(start, tuple(arrivals), tokens))
        return True


def _event(line: str) -> dict[str, Any] | None:
    """The JSON of one line of a stream; None for what carries none. Raises ExahpcError for an error event."""
    if not line.startswith("data: {"):
        return None
    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
    if "error" in found:
        raise ExahpcError(f"a stream ended with an error: {str(found['error'])[:500]}")
    return found
