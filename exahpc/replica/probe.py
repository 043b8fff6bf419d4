"""`python -m exahpc.replica.probe`: what the ranks of a step see, for `exahpc doctor`; rank 0 prints it as JSON.

Where MPI and launcher do not match, every rank is a world of its own, and prints a line.
"""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any

import msgspec

from exahpc.replica.guard import guarded

MESSAGE = 4 * 2**20
"""Bytes of the messages that the bandwidth is measured with: as large as activations of a long prompt."""
_ROUNDS, _SMALL_ROUNDS = 10, 50
_TOLD, _WORDS = 4096, 500


class Rank(msgspec.Struct, frozen=True):
    """accelerator: DeepSpeed's name of its kind ("cpu", "cuda", "xpu"); devices: visible to this rank; memory:
    bytes of the first, 0 when unknown; trouble: why the accelerator could not be asked; imports: seconds for MPI,
    torch and DeepSpeed."""

    host: str
    accelerator: str
    devices: int
    memory: int
    trouble: str
    imports: float


class World(msgspec.Struct, frozen=True):
    """size: of MPI's world; library: its name; far: whether the measured pair is on two nodes; latency: seconds
    one way; bandwidth: bytes a second one way, between processors' memories (0: a world of one)."""

    size: int
    library: str
    ranks: tuple[Rank, ...]
    far: bool = False
    latency: float = 0.0
    bandwidth: float = 0.0


def _rank(begun: float) -> Rank:
    kind, devices, memory, trouble = "", 0, 0, ""
    try:
        from deepspeed.accelerator import get_accelerator

        found = get_accelerator()
        kind, devices = found.device_name(), found.device_count()
        memory = int(found.total_memory(0)) if devices and kind != "cpu" else 0
    except Exception as error:  # drivers raise whatever they like; the doctor tells it
        trouble = f"{type(error).__name__}: {' '.join(str(error).split())[:_WORDS]}"
    return Rank(socket.gethostname(), kind, devices, memory, trouble, time.perf_counter() - begun)


def _gathered(world: Any, mine: Rank) -> tuple[Rank, ...]:
    """Everybody's, in buffers of one size: mpi4py would pickle objects."""
    told = msgspec.json.encode(mine)[:_TOLD].ljust(_TOLD)
    all_told = bytearray(_TOLD * world.size)
    world.Allgather(told, all_told)
    parts = (all_told[at : at + _TOLD] for at in range(0, len(all_told), _TOLD))
    return tuple(msgspec.json.decode(part, type=Rank) for part in parts)


def _ping(world: Any, partner: int, size: int, rounds: int) -> float:
    """Median seconds of one way between rank 0 and `partner`; the first rounds warm up and do not count."""
    message, times = bytearray(size), []
    for _ in range(rounds + 3):
        begun = time.perf_counter()
        if world.rank == 0:
            world.Send(message, dest=partner)
            world.Recv(message, source=partner)
        elif world.rank == partner:
            world.Recv(message, source=0)
            world.Send(message, dest=0)
        times.append((time.perf_counter() - begun) / 2)
    return statistics.median(times[3:])


def main() -> None:
    """One rank."""
    begun = time.perf_counter()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    seen = _gathered(world, _rank(begun))
    far = next((index for index, one in enumerate(seen) if one.host != seen[0].host), None)
    partner = far if far is not None else min(1, world.size - 1)
    latency = bandwidth = 0.0
    if partner:
        latency = _ping(world, partner, 1, _SMALL_ROUNDS)
        bandwidth = MESSAGE / _ping(world, partner, MESSAGE, _ROUNDS)
    if world.rank == 0:
        library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip()
        told = World(world.size, library, seen, far is not None, latency, bandwidth)
        print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    guarded(main)
