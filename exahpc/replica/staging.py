"""From where a rank maps its weights: the checkpoint itself, or a copy on its node.

One rank of each node makes the copy, or waits for the process that is making it; the others wait for that rank.
A replica that spans nodes reads the checkpoint once: the first node that lacks the copy sends it to the others by
MPI. Nobody waits for another node while it holds a claim on its own, so that two replicas on the same nodes cannot
block each other.
"""

from __future__ import annotations

import logging
import os
import random
import time
import zlib
from array import array
from enum import IntEnum
from pathlib import Path

import msgspec
from mpi4py import MPI

from exahpc.deployment.spec import Model
from exahpc.deployment.units import memory
from exahpc.errors import DeploymentError
from exahpc.models import produce
from exahpc.models.checkpoint import Source, Wanted, look, must_convert, read_head
from exahpc.models.copies import DIRECTORY, Claim, Held, Store, directory
from exahpc.models.manifest import CHUNK
from exahpc.replica.waiting import wait

log = logging.getLogger(__name__)

_RETRY_SECONDS, _TELL_SECONDS = 0.2, 10.0


class Order(msgspec.Struct, frozen=True):
    """A copy that is wanted on each node.

    wanted: form of its weights, None for the files as they are; size: in bytes.
    """

    source: Source
    wanted: Wanted | None
    key: str
    size: int


class _Node(IntEnum):
    """How far one node is."""

    HAS = 0
    LACKS = 1
    BUSY = 2  # another process of the node is making it


class Weights:
    """folder: what the rank loads from. Keep this value while the rank runs."""

    def __init__(self, folder: Path, held: Held | None = None, store: Store | None = None) -> None:
        """store: to be swept at the end, where no agent does it."""
        self.folder, self._held, self._store = folder, held, store

    def close(self) -> None:
        """At an orderly end."""
        if self._held is not None:
            self._held.close()
        if self._store is not None:
            self._store.sweep()


def decide(model: Model) -> Order | None:
    """None when the checkpoint is mapped where it lies. Reads the heads of its files only."""
    folder = Path(model.path)
    source, wanted = look(folder), Wanted(model.dtype, model.quantization)
    heads = (read_head(folder / file.name) for file in source.files if file.name.endswith(".safetensors"))
    convert = must_convert(heads, wanted)
    if not convert and model.stage is None:
        return None
    form = wanted if convert else None
    return Order(source, form, source.key(form), produce.size(source, form))


def prepare(world: MPI.Intracomm, local: MPI.Comm, model: Model) -> Weights:
    """Collective. local: the ranks of this node. Raises DeploymentError."""
    order = _agreed(world, model)
    if order is None:
        return Weights(Path(model.path))
    store = Store(directory(os.environ.get(DIRECTORY) or model.stage, os.environ))
    leaders: MPI.Intracomm = world.Split(local.rank > 0, world.rank)  # type: ignore[assignment]
    held = obtain(leaders, store, order) if local.rank == 0 else None
    with_agent = max(_gather(local, int(world.rank == 0)))  # also: nobody goes on before the copy is there
    return Weights(store.path / order.key, held, store if held and not with_agent else None)


def obtain(leaders: MPI.Intracomm, store: Store, order: Order) -> Held:
    """The copy in `store`, made if it is not there. Collective over one rank of each node. Raises
    DeploymentError."""
    held: Held | None = None
    told = time.monotonic()
    while True:
        claim = None if held else store.claim(order.key)
        if claim is not None and (held := claim.ready()) is not None:
            claim.release()
            claim = None
        mine = _Node.HAS if held else _Node.LACKS if claim else _Node.BUSY
        if _Node.BUSY not in _gather(leaders, mine):
            break
        if claim is not None:
            claim.release()
        if time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            share = store.progress(order.key) / max(1, order.size)
            log.info("waiting for another process that makes %s: %.0f %%", store.path / order.key, 100 * share)
        time.sleep(_RETRY_SECONDS * random.uniform(0.5, 1.5))
    lacking: MPI.Intracomm = leaders.Split(mine, leaders.rank)  # type: ignore[assignment]
    if held is None:
        assert claim is not None
        with claim:
            held = _make(lacking, claim, order)
    lacking.Free()
    return held


def _make(nodes: MPI.Intracomm, claim: Claim, order: Order) -> Held:
    """Collective over the nodes that lack the copy: the first one reads."""
    since = time.monotonic()
    writer = claim.writer(order.size)
    for name, data in _sent(nodes, order):
        writer.write(name, data)
    made = writer.done()
    if len(set(_gather(nodes, zlib.crc32(made.encode())))) > 1:
        raise DeploymentError(f"what was sent of {order.source.folder} arrived damaged: does MPI work here?")
    held = claim.publish(made)
    seconds = time.monotonic() - since
    form = f" as {order.wanted.dtype}, {order.wanted.quantization}" if order.wanted else ""
    log.info("%s copied%s: %s in %.1f s", order.source.folder, form, memory(order.size), seconds)
    return held


def _sent(nodes: MPI.Intracomm, order: Order) -> produce.Pieces:
    """The pieces of the copy on each of `nodes`, made on the first and broadcast."""
    names = [file.name for file in order.source.files]
    frame, buffer = array("q", (0, 0)), bytearray(CHUNK)  # (number of the file, bytes that follow)
    source = produce.pieces(order.source, order.wanted) if nodes.rank == 0 else None
    if source is not None and nodes.size == 1:
        yield from source
        return
    while True:
        if source is not None:
            name, data = next(source, ("", b""))
            frame[0], frame[1] = names.index(name) if name else -1, len(data)
        wait(nodes.Ibcast(frame))
        number, size = frame
        if number < 0:
            return
        if size > len(buffer):
            buffer = bytearray(size)
        if source is not None:
            buffer[:size] = data
        view = memoryview(buffer)[:size]
        wait(nodes.Ibcast(view))
        yield names[number], view


def _agreed(world: MPI.Intracomm, model: Model) -> Order | None:
    """What the first rank decides: one rank looks at the shared file system."""
    data = bytearray(msgspec.json.encode(decide(model))) if world.rank == 0 else bytearray()
    length = array("q", [len(data)])
    wait(world.Ibcast(length))
    data = data or bytearray(length[0])
    wait(world.Ibcast(data))
    return msgspec.json.decode(data, type=Order | None)


def _gather(comm: MPI.Comm, mine: int) -> list[int]:
    found = array("q", [0] * comm.size)
    wait(comm.Iallgather(array("q", [mine]), found))
    return list(found)
