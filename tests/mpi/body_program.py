"""mpirun -n RANKS python body_program.py FOLDER...: how each checkpoint's decoder lies in memory after AutoTP.

One JSON line from rank 0: name -> {private: parameters whose memory is no view of the checkpoint; share: the part
of the layers' parameters that this rank holds; error: largest difference of any buffer of a bfloat16 decoder from
Hugging Face's}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from mpi4py import MPI
from transformers import AutoConfig, AutoModel

from exahpc.deployment.shape import family_of
from exahpc.replica.engine import body as bodies
from exahpc.replica.engine import group
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.guard import guarded


def mapped() -> list[tuple[int, int]]:
    """Addresses at which safetensors files are mapped."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ".safetensors" in line]
    return [(int(a, 16), int(b, 16)) for a, b in (line[0].split("-") for line in lines)]


def look(folder: Path) -> dict[str, Any]:
    family = family_of(json.loads((folder / "config.json").read_text()))

    def split(dtype: torch.dtype) -> Any:
        config = AutoConfig.from_pretrained(folder)
        layers = (0, config.num_hidden_layers)
        built = bodies.build(config, family, checkpoint, layers, dtype)
        counted.append(sum(p.numel() for p in bodies.part(built, family.layers).parameters()))
        return bodies.split(built, dtype, keep_on_host=True)

    checkpoint, counted = Checkpoint(folder), list[int]()
    body = split(torch.float32)
    places = mapped()
    held = sum(p.numel() for p in bodies.part(body, family.layers).parameters())
    private = [n for n, p in body.named_parameters() if not any(a <= p.data_ptr() < b for a, b in places)]
    truth = dict(AutoModel.from_pretrained(folder, dtype=torch.float32).named_buffers())
    errors = [float((b.float() - truth[name]).abs().max()) for name, b in split(torch.bfloat16).named_buffers()]
    return {"private": private, "share": held / counted[0], "error": max(errors, default=0.0)}


def main() -> None:
    group.init(MPI.COMM_WORLD, None)
    found = {Path(folder).name: look(Path(folder)) for folder in sys.argv[1:]}
    if MPI.COMM_WORLD.rank == 0:
        print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    guarded(main)
