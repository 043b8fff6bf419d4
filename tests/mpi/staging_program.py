"""mpirun -n 3 python staging_program.py CHECKPOINT DISKS: ranks that take themselves for nodes with own disks.

Prints one JSON line: of each rank, for each case, how often it opened the checkpoint's weights, and the checksums
of the copy it got.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from mpi4py import MPI

from exahpc.deployment.spec import Model
from exahpc.models import manifest
from exahpc.models.copies import DIRECTORY, Held, Store
from exahpc.replica import staging
from exahpc.replica.guard import guarded

world, source, disks = MPI.COMM_WORLD, Path(sys.argv[1]), Path(sys.argv[2])
opened: list[str] = []
results: dict[str, Any] = {}


def hear(event: str, values: tuple[Any, ...]) -> None:
    if event == "open" and str(values[0]).startswith(f"{source}/") and str(values[0]).endswith(".safetensors"):
        opened.append(str(values[0]))


def note(case: str, folder: Path) -> None:
    told = manifest.read(folder)
    assert told is not None
    assert manifest.fits(folder, told)
    results[case] = {"opened": len(opened), "sums": {name: its.crc for name, its in told.files.items()}}


def nodes(case: str, store: Store, members: MPI.Intracomm, order: staging.Order) -> Held | None:
    """One more case: `members` are the nodes of a replica."""
    held = None
    world.Barrier()
    opened.clear()
    if members != MPI.COMM_NULL:
        held = staging.obtain(members, store, order)
        note(case, held.path)
    world.Barrier()
    return held


def main() -> None:
    sys.addaudithook(hear)
    disk = disks / str(world.rank)
    disk.mkdir()
    store = Store(disk)
    model = Model(path=str(source), dtype="float32", stage="/")
    last: MPI.Intracomm = world.Split(0 if world.rank == 2 else MPI.UNDEFINED)  # type: ignore[assignment]

    for form in ("none", "int8"):
        order = staging._agreed(world, Model(path=str(source), dtype="float32", stage="/", quantization=form))  # type: ignore[arg-type]
        assert order is not None
        kept = [nodes(f"{form}, last node", store, last, order)]
        kept.append(nodes(f"{form}, all nodes", store, world, order))
        kept.append(nodes(f"{form}, once more", store, world, order))
        for held in filter(None, kept):
            held.close()
        store.sweep()

    order = staging._agreed(world, model)
    assert order is not None
    if world.rank == 1:  # another process of this node is making it, and gives up
        claim = store.claim(order.key)
        assert claim is not None
        threading.Timer(1.0, claim.release).start()
    nodes("a busy node", store, world, order)

    shared = disks / "shared"
    shared.mkdir(exist_ok=True)
    os.environ[DIRECTORY] = str(shared)
    opened.clear()
    weights = staging.prepare(MPI.COMM_SELF, MPI.COMM_SELF, model)  # three replicas start on one node at once
    note("three replicas", weights.folder)
    world.Barrier()
    opened.clear()
    again = staging.prepare(world, world, model)  # one replica of three ranks
    note("three ranks", again.folder)
    everywhere = world.gather(results)
    if world.rank == 0:
        print("RESULT " + json.dumps(everywhere), flush=True)


if __name__ == "__main__":
    guarded(main)
