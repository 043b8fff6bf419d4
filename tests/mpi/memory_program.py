"""mpirun -n TP*PP python memory_program.py TP PP TOKENS FOLDER: what the ranks of a replica really hold.

Each rank builds its stage as a replica does; then its KV cache is emptied and filled. One JSON line from rank 0:
{weights: bytes of the checkpoint's files in memory, pages that ranks share counted once (PSS, proc(5)); kv: by how
many bytes each rank's own memory grew with the cache}.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from mpi4py import MPI

from exahpc.deployment.grid import BLOCK
from exahpc.replica.engine import group
from exahpc.replica.engine.stage import Stage
from exahpc.replica.guard import guarded
from exahpc.replica.worker import Grid

PAGE, DONTNEED = os.sysconf("SC_PAGE_SIZE"), 4


def mapped() -> int:
    """PSS of the mapped checkpoint."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(".safetensors")
        elif ours and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def own() -> int:
    """Anonymous memory of this process."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss_Anon:"))


def emptied(tensor: torch.Tensor) -> None:
    """Give a tensor's whole pages back to the system: huge ones that a first token touched would count before."""
    first = -(-tensor.data_ptr() // PAGE) * PAGE
    last = (tensor.data_ptr() + tensor.nbytes) // PAGE * PAGE
    assert ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), DONTNEED) == 0


def main() -> None:
    tp, pp, tokens = map(int, sys.argv[1:4])
    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    grid = Grid(world, tp, pp)
    group.init(grid.tp, None)
    stage = Stage(
        Path(sys.argv[4]),
        stage=grid.stage,
        stages=grid.stages,
        rank=grid.rank,
        ranks=grid.ranks,
        blocks=tokens // BLOCK,
        dtype=torch.bfloat16,
    )
    caches = (stage.cache.k, stage.cache.v)
    for held in gc.get_objects():  # pages of the file count from the first use, and no token has met an expert yet
        if isinstance(held, torch.Tensor) and held.dtype is torch.bfloat16 and all(held is not c for c in caches):
            held.float().sum()
    world.Barrier()  # pages are shared by as many as have touched them
    weights = world.allreduce(mapped())
    for cache in caches:
        emptied(cache)
    before = own()
    for cache in caches:
        cache.fill_(1)
    kv = world.gather(own() - before)
    if world.rank == 0:
        print("RESULT " + json.dumps({"weights": weights, "kv": kv}), flush=True)


if __name__ == "__main__":
    guarded(main)
