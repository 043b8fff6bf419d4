"""For the day that a machine with an accelerator is at hand: one device, one process, under five minutes.

    python bench/device_day.py [--out FILE] [--seconds 280]

Needs torch for the accelerator, deepspeed, mpi4py with an MPI library, transformers, safetensors, msgspec, click.
Nothing is downloaded: models are random, made on the spot. Each check prints what it found; FILE gets all of it as
JSON, also when one fails or time is up. Exit code 1 if any failed.

- attention: gathered paged attention on the device against the same on the host, windows and ragged steps included
- link: hidden states staged through pinned memory come back bit for bit; 8 bits within their rounding
- tokens: float32, greedy, identical to Hugging Face generate on the same device, without and with graphs
- speed: decode tokens/s in bfloat16 at batch 1, 8, 32 and 128, without and with graphs
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
import click
import torch

KIND = torch.accelerator.current_accelerator()
os.environ["DS_ACCELERATOR"] = KIND.type if KIND else "cpu"  # a rehearsal

BATCHES = (1, 8, 32, 128)
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
TINY, LARGE = (256, 512, 4, 8, 4), (2048, 5632, 16, 32, 8)
CONTEXT = 1024


def model(folder: Path, shape: tuple[int, ...], dtype: torch.dtype, spread: float) -> Path:
    """A random Llama; spread: of its matrices, wide enough that tokens differ."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=49_152,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **dict(zip(SIZES, shape, strict=True)),
    )
    made = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for weights in made.parameters():
        if weights.dim() == 2:
            weights.data.normal_(0, spread)
    made.save_pretrained(folder)
    return folder


def attention(device: torch.device) -> dict[str, Any]:
    """Largest difference to the host, over steps of prompts, parts of prompts and single tokens."""
    from exahpc.replica.blocks import BLOCK
    from exahpc.replica.engine.attention import PagedCache, Step, gather_attention
    from exahpc.replica.plan import Begin, Plan, Row
    from exahpc.replica.tables import Tables

    heads, kv_heads, dim, width = 8, 2, 64, 20
    worst, random = 0.0, torch.Generator().manual_seed(0)
    host = torch.device("cpu")
    caches = [PagedCache(1, 4 * width, kv_heads, dim, torch.float32, d) for d in (host, device)]
    tables = Tables(4, width * BLOCK)
    blocks = [(slot, list(range(1 + slot * width, 1 + (slot + 1) * width))) for slot in range(4)]
    tables.apply(Plan(begins=[Begin(slot) for slot in range(4)], blocks=blocks))
    steps = [[(0, 0, 1), (1, 0, 5), (2, 0, 200)], [(0, 1, 1), (1, 5, 1), (2, 200, 1), (3, 0, 33)]]
    steps += [[(0, 2, 1), (1, 6, 1), (2, 201, 1), (3, 33, 60)]]
    for rows in steps:
        plan = Plan(rows=[Row(slot, past, [0] * new, True) for slot, past, new in rows])
        total = plan.tokens
        q, k, v = (torch.randn(total, n, dim, generator=random) for n in (heads, kv_heads, kv_heads))
        for window in (None, 24):
            found = [
                gather_attention(
                    Step(plan, tables, d), cache, 0, q.to(d), k.to(d), v.to(d), scale=None, window=window
                ).cpu()
                for d, cache in zip((host, device), caches, strict=True)
            ]
            worst = max(worst, float((found[0] - found[1]).abs().max()))
    assert worst < 1e-4, f"the device is off by {worst}"
    return {"largest_difference": worst}


def link(device: torch.device) -> dict[str, Any]:
    """A rank sends to itself: what is staged is what arrives."""
    from mpi4py import MPI

    from exahpc.replica.link import HostLink, Int8Link

    sent = torch.randn(128, 4096, device=device).to(torch.bfloat16)
    found: dict[str, Any] = {}
    for name, one in (("exact", HostLink(MPI.COMM_SELF, 0)), ("int8", Int8Link(HostLink(MPI.COMM_SELF, 0), 64))):
        out, times = torch.empty_like(sent), []
        for _ in range(20):
            begin = time.perf_counter()
            arrival, sending = one.receive(out), one.send(sent)
            arrival.wait()
            sending.wait()
            _synchronize()
            times.append(time.perf_counter() - begin)
        found[f"{name}_ms"] = sorted(times)[10] * 1e3
        off = float((out.float() - sent.float()).abs().max() / sent.float().abs().max())
        assert off <= (0.0 if name == "exact" else 0.01), f"{name}: off by {off}"
    return found


def tokens(folder: Path, device: torch.device) -> dict[str, Any]:
    import engine
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    prompts = [engine.prompts(1, length, length)[0] for length in (1, 7, 33, 130, 400)]
    wanted = []
    for ids in prompts:
        given = torch.tensor([ids], device=device)
        out = reference.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=24, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        wanted.append(out[0].tolist()[len(ids) :])
    del reference
    found: dict[str, Any] = {}
    for graphs in (False, True):
        rank = engine.Engine(folder, sequences=8, context=CONTEXT, dtype="float32")
        rank.stage.graphs = rank.stage.graphs if graphs else None
        if graphs and rank.stage.graphs is None:
            return {**found, "graphs": "this accelerator has none"}
        for ids in prompts:
            rank.add(ids, 24)
        got: list[list[int]] = [[] for _ in prompts]
        while (iteration := rank.step()) is not None:
            for sequence, token in iteration.tokens:
                got[sequence].append(token)
        name = "with_graphs" if graphs else "plain"
        found[name] = sum(a == b for a, b in zip(got, wanted, strict=True))
        assert got == wanted, f"{name}: {found[name]} of {len(wanted)} answers are those of Hugging Face"
    return found


def speed(folder: Path, deadline: float) -> dict[str, Any]:
    import engine

    rank = engine.Engine(folder, sequences=max(BATCHES), context=CONTEXT, budget=2048, dtype="bfloat16")
    graphs, side, found = rank.stage.graphs, engine.ours(rank), {}
    for batch in BATCHES:
        for name, used in (("plain", None), ("graphs", graphs)):
            if (name == "graphs" and used is None) or time.monotonic() > deadline:
                continue
            rank.stage.graphs = used
            side(engine.prompts(batch, 32, batch), 8)  # compiles, records
            filled, step = side(engine.prompts(batch, 64, 1000 + batch), 64)
            found[f"batch {batch}, {name}"] = {"tokens_per_s": batch / step, "prefill_s": filled}
    return found


def _synchronize() -> None:
    import deepspeed

    deepspeed.accelerator.get_accelerator().synchronize()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("device-day.json"), show_default=True)
@click.option("--seconds", default=280, show_default=True, help="No check begins later than that.")
def main(out: Path, seconds: int) -> None:
    """Correctness, graphs and decode speed on one accelerator."""
    deadline = time.monotonic() + seconds
    import deepspeed
    import engine

    accelerator = deepspeed.accelerator.get_accelerator()
    on_cpu = accelerator.device_name() == "cpu"  # a rehearsal
    device = torch.device("cpu" if on_cpu else accelerator.device_name(0))
    engine.start(device=None if on_cpu else 0)
    results: dict[str, Any] = {
        "device": "cpu" if on_cpu else torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    failed = False
    with tempfile.TemporaryDirectory() as where:
        tiny, large = Path(where) / "tiny", Path(where) / "large"
        checks: dict[str, Callable[[], dict[str, Any]]] = {
            "attention": lambda: attention(device),
            "link": lambda: link(device),
            "tokens": lambda: tokens(model(tiny, TINY, torch.float32, 0.1), device),
            "speed": lambda: speed(model(large, LARGE if KIND else TINY, torch.bfloat16, 0.02), deadline),
        }
        for name, check in checks.items():
            begin = time.monotonic()
            if begin > deadline:
                results[name] = "no time left"
                continue
            try:
                results[name] = check()
            except Exception:
                failed = True
                results[name] = {"failed": traceback.format_exc()}
            results[name]["seconds"] = round(time.monotonic() - begin, 1)
            print(name, json.dumps(results[name], indent=1), flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
