"""Log-likelihood of real text: the engine against Hugging Face in float32, token by token.

    python bench/likelihood.py [--model FOLDER] [--window 512] [--smoke]

The text is cut into windows; the engine scores the tokens of each (prompt log-probabilities, through scheduler,
chunks, paged cache and sampler, several windows in one iteration) in float32, in the checkpoint's bfloat16, and
with INT8 weights made from it. Hugging Face scores the same windows in one forward each. Ends with an error when a
bound is broken. Writes bench/results/likelihood.json.

Text: bench/data/founding.txt, the United States' Declaration of Independence (1776) and the first article of their
Constitution (1787), in the public domain, as in Debian's package miscfiles 1.5.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import common
import engine
import rival

from exahpc.launch import place

TEXT = Path(__file__).resolve().parent / "data" / "founding.txt"
BOUNDS = {"float32": 1e-3, "bfloat16": 2e-2, "int8": 5e-2}
"""Nats a token by which the means may differ: rounding in the first, what the format costs in the others."""
REFERENCE = "transformers float32"


def reference(folder: Path, windows: Sequence[Sequence[int]]) -> list[list[float]]:
    """As Engine.scores, by Hugging Face."""
    import torch

    model = rival.hugging_face(folder, "float32")
    found = []
    for ids in windows:
        row = torch.tensor([ids])
        logits = model(row, attention_mask=torch.ones_like(row)).logits[0, :-1].double()
        found.append(logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0].tolist())
    return found


def ours(folder: Path, dtype: str, windows: Sequence[Sequence[int]]) -> list[list[float]]:
    rank = engine.Engine(folder, sequences=4, context=len(windows[0]) + 16, dtype=dtype)
    return rank.scores(windows)


def compare(found: list[list[float]], wanted: list[list[float]]) -> dict[str, float]:
    a, b = ([x for window in windows for x in window] for windows in (found, wanted))
    distances = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return {
        "exahpc": -statistics.fmean(a),
        REFERENCE: -statistics.fmean(b),
        "difference of the means": abs(statistics.fmean(a) - statistics.fmean(b)),
        "mean difference of a token": statistics.fmean(distances),
        "largest difference of a token": max(distances),
    }


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--window", default=512, show_default=True, help="Tokens scored together.")
@click.option("--windows", type=click.IntRange(1), help="Only so many; default: the whole text.")
@click.option("--smoke", is_flag=True, help="Print only.")
def main(model: Path, window: int, windows: int | None, smoke: bool) -> None:
    """Log-likelihood per token of real text against Hugging Face in float32."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    engine.start()
    from tokenizers import Tokenizer

    from exahpc.models import prepared
    from exahpc.models.checkpoint import Wanted

    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT.read_text(), add_special_tokens=False).ids
    parts = [ids[at : at + window] for at in range(0, len(ids) - 1, window)][:windows]
    wanted = reference(model, parts)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        quantized = Path(temporary) / "int8"
        prepared.prepare(model.absolute(), quantized, Wanted("bfloat16", "int8"), lambda _: None)
        for case, folder, dtype in (
            ("float32", model, "float32"),
            ("bfloat16", model, "bfloat16"),
            ("int8", quantized, "bfloat16"),
        ):
            numbers = compare(ours(folder, dtype, parts), wanted)
            runs.append({"side": "exahpc", "case": case, "bound": BOUNDS[case], **numbers})
    comparison = {
        run["case"]: {"number": "nats_a_token", **{k: v for k, v in run.items() if k not in ("side", "case")}}
        | {"ratio": round(run["exahpc"] / run[REFERENCE], 4)}
        for run in runs
    }
    tokens = sum(len(part) - 1 for part in parts)
    if smoke:
        common.show("likelihood", comparison)
    else:
        common.write(
            "likelihood",
            what=f"negative log-likelihood of {tokens} tokens of English text, {rival.capability()}",
            runs=runs,
            comparison=comparison,
            packages=common.versions("torch", "transformers", "deepspeed"),
            notes=(
                f"Declaration of Independence, first article of the Constitution; windows of {window} tokens",
                "the bound is on the difference of the means; int8: weights quantized from the checkpoint",
                "where a processor has no 16-bit kernels, bfloat16 means its weights, with float32 activations",
            ),
        )
    broken = [run["case"] for run in runs if run["difference of the means"] > run["bound"]]
    if broken:
        sys.exit(f"likelihood: out of bounds: {', '.join(broken)}")


if __name__ == "__main__":
    main()
