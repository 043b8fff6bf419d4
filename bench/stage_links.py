"""What hidden states in 8 bits (`[pool.link] int8 = true`) gain and cost, measured.

    python bench/stage_links.py [--model FOLDER] [--tokens 2048] [--rounds 3] [--smoke]        (about 5 minutes)

- Quality: perplexity, and tokens whose most likely successor stays the same, on English prose (the language
  reference that comes with Python), float32. The model runs whole but for what the link would do to the hidden
  states at one boundary (its middle, as a pipeline of two would) or three (a pipeline of four).
- Bytes of a token on the wire, and the seconds that packing takes on one core. Their quotient is the link speed
  below which 8 bits are the faster way; above it they only cost.
- Time of a step in a pipeline of two ranks on this machine, where the link is memory: what it costs there.

Writes bench/results/stage-links.json.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import click
import common
import replica
import torch

from exahpc.launch import place

ON, OFF = "8 bits", "exact"
GROUPS = (32, 64, 128)
WINDOW, ROWS, PROMPT = 512, 32, 32
Rounding = Callable[[torch.Tensor], torch.Tensor]


def there_and_back(group: int) -> Rounding:
    """What a link in 8 bits does to hidden states [..., hidden]."""
    from exahpc.replica.engine.quantize import pack, unpack

    def apply(x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(flat)
        unpack(pack(flat, group), out, group)
        return out.view(x.shape)

    return apply


class Judge:
    """A whole model and some text. `of` tells (perplexity, share of tokens whose best successor stays that of the
    exact model) with `rounding` applied behind the layers `cuts`."""

    def __init__(self, folder: Path, tokens: int) -> None:
        from pydoc_data.topics import topics

        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = AutoTokenizer.from_pretrained(folder)("\n".join(topics[key] for key in sorted(topics))).input_ids
        count = max(1, tokens // WINDOW)
        apart = len(ids) // count
        self._windows = torch.tensor([ids[i * apart : i * apart + WINDOW] for i in range(count)])
        self._exact = self._run()

    @property
    def layers(self) -> int:
        return len(self.model.model.layers)

    def of(self, cuts: tuple[int, ...], rounding: Rounding) -> tuple[float, float]:
        def hook(_module: Any, _inputs: Any, output: Any) -> Any:
            return rounding(output) if torch.is_tensor(output) else (rounding(output[0]), *output[1:])

        hooks = [self.model.model.layers[cut - 1].register_forward_hook(hook) for cut in cuts]
        loss, best = self._run()
        for one in hooks:
            one.remove()
        return float(loss.exp()), float((best == self._exact[1]).float().mean())

    @property
    def perplexity(self) -> float:
        return float(self._exact[0].exp())

    def _run(self) -> tuple[torch.Tensor, torch.Tensor]:
        losses, best = [], []
        for window in self._windows:
            logits = self.model(window[None]).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, window[1:]))
            best.append(logits.argmax(-1))
        return torch.stack(losses).mean(), torch.cat(best)


def packing(hidden: int, group: int, dtype: torch.dtype) -> tuple[float, int, int]:
    """(median seconds to pack and unpack ROWS tokens, their bytes exact, their bytes in 8 bits)."""
    from exahpc.replica.engine.quantize import pack, unpack

    x = torch.randn(ROWS, hidden).to(dtype)
    out, times = torch.empty_like(x), []
    for _ in range(200):
        begin = time.perf_counter()
        packed = pack(x, group)
        unpack(packed, out, group)
        times.append(time.perf_counter() - begin)
    return statistics.median(times), x.nbytes, packed.nbytes


def row(name: str, on: float, off: float) -> dict[str, Any]:
    return {"number": name, ON: on, OFF: off, "ratio": round(on / off, 4)}


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--tokens", default=2048, show_default=True, help="Length of the text.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, tokens: int, rounds: int, smoke: bool) -> None:
    """What hidden states in 8 bits gain and cost."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    comparison: dict[str, dict[str, Any]] = {}
    runs: list[dict[str, Any]] = []
    judge = Judge(model, tokens)
    quarter = judge.layers // 4
    for cuts in ((2 * quarter,), (quarter, 2 * quarter, 3 * quarter)):
        for group in GROUPS:
            perplexity, kept = judge.of(cuts, there_and_back(group))
            case = f"{len(cuts)} link{'s' if len(cuts) > 1 else ''}, groups of {group}"
            comparison[case] = row("perplexity", perplexity, judge.perplexity)
            comparison[f"{case}, best token kept"] = row("percent", kept * 100, 100.0)
            runs.append({"side": ON, "case": case, "perplexity": perplexity, "kept": kept})
    hidden = int(judge.model.config.hidden_size)
    del judge
    notes = [f"link speed below which 8 bits pay, {ROWS} tokens at once, groups of 64, one core:"]
    for width in (hidden, 4096):
        for dtype in (torch.float32, torch.bfloat16):
            seconds, exact, packed = packing(width, 64, dtype)
            words = str(dtype).removeprefix("torch.")
            speed = (exact - packed) * 8 / seconds / 1e9
            comparison[f"hidden size {width}, {words}"] = row("bytes of a token", packed / ROWS, exact / ROWS)
            runs.append({"side": ON, "case": f"{width} {words}", "pack_us": seconds * 1e6, "gbit_per_s": speed})
            notes.append(f"hidden size {width}, {words}: {speed:.1f} Gbit/s ({seconds * 1e6:.0f} us)")
    case = "a step of two stages on this machine"
    with (
        replica.running(
            model.resolve(), "0,1", sequences=2 * ROWS, pipeline_parallel=2, link={"int8": True}
        ) as on,
        replica.running(model.resolve(), "0,1", sequences=2 * ROWS, pipeline_parallel=2) as off,
    ):
        for number in range(rounds + 1):  # the first warms up
            for side, one in ((ON, on), (OFF, off)):
                found = one.decode(replica.prompts(model, 2 * ROWS, PROMPT, number), 48)
                if number:
                    runs.append({"side": side, "case": case, "step_ms": found.step_ms, "idle": found.idle})
    comparison |= common.compare(runs, ON, OFF, {case: "step_ms"})
    if smoke:
        click.echo("\n".join([*(f"{case}: {numbers}" for case, numbers in comparison.items()), *notes]))
        return
    common.write(
        "stage-links",
        what=f"hidden states in 8 bits between pipeline stages, {tokens} tokens of English prose",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "transformers", "mpi4py"),
        notes=tuple(notes),
    )


if __name__ == "__main__":
    main()
