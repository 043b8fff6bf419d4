"""Concurrency, memory, latency: one level of load after the other on a running deployment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from exahpc.deployment.grid import kv_tokens, ledger
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, ExahpcError, LinkError
from exahpc.lab.knee import knee
from exahpc.lab.level import Level, Sample, level
from exahpc.lab.load import Load, Shape, Target
from exahpc.lab.memory import resident
from exahpc.launch import ready
from exahpc.wire.folder import Endpoint, Folder
from exahpc.wire.messages import StatusReply

_LOOK = 0.5
"""Seconds between two looks at the deployment."""
_STEADY = 120.0
"""Most seconds to wait until each client that can be served at once has got its first token."""
_CALM = 15.0
"""Most seconds to wait after a level until the replicas are idle again."""


class Curve(msgspec.Struct, frozen=True):
    """All levels, in order of concurrency.

    knee: concurrency at the knee of tokens_per_second, None when there is none (see `knee.knee`); kv_capacity:
    tokens that all KV caches hold; kv_bytes: of one token in model.dtype (twice that where a processor without
    16-bit kernels keeps float32), 0 when unknown; sequences: that run at once.
    """

    deployment: str
    model: str
    date: str
    replicas: int
    sequences: int
    kv_capacity: int
    kv_bytes: int
    prompt: int
    new: int
    levels: tuple[Level, ...]
    knee: int | None
    notes: tuple[str, ...] = ()


class Measure:
    """Loads one deployment. Raises LinkError when it is not up, DeploymentError for an unreadable model."""

    def __init__(self, folder: Folder, deployment: Deployment, endpoint: Endpoint, key: str) -> None:
        self._folder, self._deployment = folder, deployment
        reply = self._status()
        self.replicas, self.sequences, self.kv_capacity = _capacity(reply, deployment)
        if not self.replicas:
            raise LinkError(f"no replica of {folder.path.name} is ready: exahpc status {folder.path.name}")
        self._config = _config(Path(deployment.model.path))
        self._target = Target(
            endpoint.url, key, deployment.served_name, int(self._config["vocab_size"]), endpoint.ca or ""
        )
        busy = sum(state.running for agent in reply.agents for state in agent.replicas)
        self.notes = [f"{busy} sequences of others ran when it began: the figures include them"] if busy else []

    def levels(
        self, concurrencies: Sequence[int], shape: Shape, *, seconds: float, warm: float
    ) -> Iterator[Level]:
        """Each level as it ends. concurrencies: rising; seconds, warm: of each level, counted and before that."""
        for number, concurrency in enumerate(concurrencies):
            if number:
                self._calm()
            yield asyncio.run(self._level(concurrency, shape, seconds, warm))

    def curve(self, levels: Sequence[Level], shape: Shape, notes: Sequence[str] = ()) -> Curve:
        """What these levels tell together; notes: besides those of the measurement."""
        concurrencies = [one.concurrency for one in levels]
        found = knee(concurrencies, [one.tokens_per_second for one in levels])
        return Curve(
            deployment=self._folder.path.name,
            model=self._deployment.served_name,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            replicas=self.replicas,
            sequences=self.sequences,
            kv_capacity=self.kv_capacity,
            kv_bytes=self._kv_bytes(),
            prompt=shape.prompt,
            new=shape.new,
            levels=tuple(levels),
            knee=None if found is None else concurrencies[found],
            notes=(*self.notes, *notes),
        )

    async def _level(self, concurrency: int, shape: Shape, seconds: float, warm: float) -> Level:
        load = Load(self._target, shape, concurrency, time.monotonic)
        task = asyncio.create_task(load.run())
        await asyncio.wait({task}, timeout=warm)
        # All clients asked in the same moment: until their prompts are through, it is not yet how it goes on.
        patience = time.monotonic() + _STEADY
        fit = min(concurrency, self.sequences)
        while len(load.served) < fit and not task.done() and time.monotonic() < patience:
            await asyncio.wait({task}, timeout=_LOOK / 5)
        begin, samples = time.monotonic(), list[Sample]()
        while (left := begin + seconds - time.monotonic()) > 0 and not task.done():
            with contextlib.suppress(LinkError):  # a broker that restarts: one look less
                samples.append(await asyncio.to_thread(self._look))
            await asyncio.wait({task}, timeout=min(_LOOK, max(0.0, left)))
        end = time.monotonic()
        task.cancel()
        await asyncio.wait({task})  # not `await task`: its end and a Ctrl-C in this moment would look the same
        if not task.cancelled():
            task.result()
        refused = sum(begin <= at < end for at in load.refused)
        return level(concurrency, load.streams, samples, refused, begin, end)

    def _calm(self) -> None:
        """Wait until nothing runs any more, so that the next level starts from rest."""
        end = time.monotonic() + _CALM
        while time.monotonic() < end:
            with contextlib.suppress(LinkError):
                if not self._look().running:
                    return
            time.sleep(_LOOK)

    def _status(self) -> StatusReply:
        reply = ready.look(self._folder)
        if reply is None:
            raise LinkError(
                f"no broker of {self._folder.path.name} answers: exahpc status {self._folder.path.name}"
            )
        return reply

    def _look(self) -> Sample:
        reply = self._status()
        states = [state for agent in reply.agents for state in agent.replicas if state.phase == "ready"]
        return Sample(
            at=time.monotonic(),
            running=sum(state.running for state in states),
            waiting=sum(state.waiting for state in states),
            kv_tokens=max(0, _capacity(reply, self._deployment)[2] - sum(state.kv_free for state in states)),
            memory=resident(self._folder.path),
        )

    def _kv_bytes(self) -> int:
        model, pool = self._deployment.model, self._deployment.pool[0]
        try:
            return ledger(ModelShape.of(self._config), pool, model.context, model.dtype).kv_per_token
        except ExahpcError:
            return 0


def _capacity(reply: StatusReply, deployment: Deployment) -> tuple[int, int, int]:
    """(replicas, sequences, KV tokens) of what is ready."""
    replicas = sequences = tokens = 0
    for agent in reply.agents:
        pool = deployment.pool_named(agent.pool)
        count = sum(state.phase == "ready" for state in agent.replicas)
        replicas += count
        sequences += count * pool.max_sequences
        tokens += count * kv_tokens(pool, deployment.model.context)
    return replicas, sequences, tokens


def _config(model: Path) -> dict[str, Any]:
    """config.json, which is known to tell the size of the vocabulary."""
    try:
        found: dict[str, Any] = json.loads((model / "config.json").read_text())
        int(found["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeploymentError(
            f"model.path = {str(model)!r}: its config.json, which tells the vocabulary of the prompts, cannot be "
            f"read here ({error}): run this where the deployment was started"
        ) from None
    return found
