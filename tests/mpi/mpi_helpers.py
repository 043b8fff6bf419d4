"""Tiny random models, their Hugging Face answers, and a way to start ranks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.families import MODELS, VOCABULARY

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
KINDS = tuple(MODELS)
FULL = ("llama", "mistral", "qwen2", "qwen3")  # those of the fast decoder get all prompts, the others some
LENGTHS = (1, 3, 11, 40, 90, 17, 2, 150, 1100, 29, 5, 64)
NEW = (9, 1, 12, 8, 6, 15, 14, 7, 5, 3, 11, 10)


def prompts(seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(VOCABULARY) for _ in range(n)] for n in LENGTHS]


def wanted(name: str) -> list[tuple[list[int], int]]:
    """Prompt and new tokens of each sequence that a model is asked for."""
    found = list(zip(prompts(KINDS.index(name)), NEW, strict=True))
    return found if name in FULL else found[:8]


def ranks(n: int, *command: str | Path, env: dict[str, str] | None = None, seconds: float = 350) -> Any:
    """Run a Python command on n ranks."""
    return subprocess.run(
        [*MPIRUN, "-n", str(n), sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
    )


def result(n: int, program: str, *arguments: str | Path) -> Any:
    """What one rank of a program in this folder prints, as JSON after `RESULT`; the others print nothing, since
    mpirun cuts long lines into pieces and mixes those of several ranks."""
    done = ranks(n, HERE / program, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def generate(folder: Path, wanted: list[tuple[list[int], int]]) -> list[list[int]]:
    """Greedy tokens of Hugging Face generate in float32, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # a second thread beside a busy neighbour is many times slower
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for ids, new in wanted:
        out = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),  # else it guesses from pad tokens
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers.append(out[0].tolist()[len(ids) :])
    return answers


def admit(sequence: int, ids: list[int], new: int, **more: Any) -> dict[str, Any]:
    """One sequence for grid_program.py."""
    plain = {"position": 0, "seed": 0, "stream": 0, "stop_ids": []}
    return {"sequence": sequence, "ids": ids, "new": new, **plain, **more}


def run(tp: int, pp: int, cases: list[dict[str, Any]], where: Path) -> list[dict[str, Any]]:
    """What one start of tp x pp ranks gives for all cases: {sequence: [tokens, reason]} each."""
    script = where / "script.json"
    script.write_text(json.dumps(cases))
    found: list[dict[str, Any]] = result(tp * pp, "grid_program.py", str(tp), str(pp), script)
    return found
