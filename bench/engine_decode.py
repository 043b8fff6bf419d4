"""Decode tokens/s of one replica rank against Hugging Face generate, side by side in one process.

    python bench/engine_decode.py [--model FOLDER] [--batches 1,8,32] [--rounds 3] [--new 48] [--smoke]

All sides: same weights, same threads, prompts of 32 random tokens, greedy, no end token. A round runs one
side after the other on the same prompts; the first tokens (prefill, warm-up) do not count. Our side is the
real path of a rank, asked for bfloat16: scheduler, plan, stage, sampler. The rival runs in bfloat16, and also
in float32, in which it is faster on processors without 16-bit kernels (our engine chooses by itself). Writes
bench/results/engine-decode.json.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
import click
import common

from exahpc.launch import place

PROMPT, WARM, RIVAL, WIDE = 32, 4, "transformers generate", "transformers generate, float32"


def hugging_face(folder: Path, dtype: str) -> Callable[[list[list[int]], int], list[float]]:
    """A function (prompts, new) -> seconds of each decode step."""
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

    class Clock(StoppingCriteria):  # called once a step
        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.times.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(prompts: list[list[int]], new: int) -> list[float]:
        clock, ids = Clock(), torch.tensor(prompts)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        return [b - a for a, b in pairwise(clock.times)]

    return run


def engine(folder: Path, sequences: int, pack: bool) -> Callable[[list[list[int]], int], list[float]]:
    """The same for one rank of ours. group.init was called."""
    import torch
    from mpi4py import MPI

    from exahpc.replica.batching import Limits, Scheduler
    from exahpc.replica.engine.stage import Stage
    from exahpc.replica.worker import Grid, Worker
    from exahpc.wire.messages import Admit

    context = 512
    stage = Stage(
        folder,
        stage=0,
        stages=1,
        rank=0,
        ranks=1,
        slots=sequences,
        context=context,
        dtype=torch.bfloat16,
        pack=pack,
    )
    chunk = PROMPT * sequences
    worker = Worker(Grid(MPI.COMM_WORLD, 1, 1), stage, sequences, sequences + chunk)

    def run(prompts: list[list[int]], new: int) -> list[float]:
        scheduler = Scheduler(Limits(sequences, sequences * context, context, chunk, 1, stage.vocabulary_size))
        for number, ids in enumerate(prompts):
            refused = scheduler.admit(Admit(number, ids, new, 0, 0, 0, []))
            assert refused is None
        times = []
        while (plan := scheduler.plan()) is not None:
            scheduler.done(plan.lane, worker.run(plan) or [])
            times.append(time.perf_counter())
        return [b - a for a, b in pairwise(times)]

    return run


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--batches", default="1,8,32", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--new", default=48, show_default=True, help="Tokens of each sequence.")
@click.option("--threads", default=1, show_default=True)
@click.option("--pack/--no-pack", default=True, show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, batches: str, rounds: int, new: int, threads: int, pack: bool, smoke: bool) -> None:
    """Decode tokens/s of one rank against Hugging Face generate."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    from mpi4py import MPI

    from exahpc.replica.engine import group

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    group.init(MPI.COMM_SELF, None)
    sizes = [int(b) for b in batches.split(",")]
    sides = {
        "exahpc": engine(model, max(sizes), pack),
        RIVAL: hugging_face(model, "bfloat16"),
        WIDE: hugging_face(model, "float32"),
    }
    runs: list[dict[str, Any]] = []
    for batch in sizes:
        random = torch.Generator().manual_seed(batch)
        prompts = torch.randint(100, 40_000, (batch, PROMPT), generator=random).tolist()
        for _ in range(rounds):
            for side, run in sides.items():
                step = statistics.median(run(prompts, new)[WARM:])
                runs.append(
                    {"side": side, "case": f"batch {batch}", "step_ms": step * 1e3, "tokens_per_s": batch / step}
                )
    keys = {f"batch {b}": "tokens_per_s" for b in sizes}
    comparison = common.compare(runs, "exahpc", RIVAL, keys)
    for case, row in common.compare(runs, "exahpc", WIDE, keys).items():
        comparison[f"{case}, rival in float32"] = {
            RIVAL if key == WIDE else key: value for key, value in row.items()
        }
    what = (
        f"decode tokens/s, bfloat16, {threads} thread(s), {torch.backends.cpu.get_cpu_capability()}, pack={pack}"
    )
    packages = common.versions("torch", "transformers", "deepspeed", "mpi4py")
    if smoke:
        click.echo(comparison)
    else:
        common.write("engine-decode", what=what, runs=runs, comparison=comparison, packages=packages)


if __name__ == "__main__":
    main()
