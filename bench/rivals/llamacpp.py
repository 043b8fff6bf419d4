"""llama.cpp as a side of the benches. Run by the rival's own Python, which has llama-cpp-python:

    PYTHON bench/rivals/llama_cpp.py --model FILE.gguf --sequences 32 --context 512

Talks as vllm_cpu.py does. Calls llama.cpp's C interface: one llama_decode an iteration over all sequences, greedy.
(The file is not called llama_cpp.py, since that is the package.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import llama_cpp as llama
import numpy as np

BATCH = 2048  # most tokens of one call; llama.cpp cuts it into its own pieces
WARM = 2  # as engine.WARM


class Engine:
    def __init__(self, path: str, sequences: int, context: int) -> None:
        llama.llama_backend_init()
        self._model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        threads = len(os.sched_getaffinity(0))
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = sequences * context, sequences
        settings.n_batch = BATCH
        settings.n_threads = settings.n_threads_batch = threads
        settings.no_perf = True
        self._context = llama.llama_init_from_model(self._model, settings)
        if not self._context:
            sys.exit(f"llama.cpp made no context of {sequences} x {context} tokens")
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._batch = llama.llama_batch_init(BATCH, 0, 1)

    def clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)

    def decode(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """(sequence, position, id, whether to draw after it) -> the drawn ids, in order."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (sequence, position, token, draw) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, draw
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        code = llama.llama_decode(self._context, batch)
        if code:
            sys.exit(f"llama_decode returned {code}")
        found = []
        for i, (_, _, _, draw) in enumerate(tokens):
            if draw:
                row = llama.llama_get_logits_ith(self._context, i)
                found.append(int(np.ctypeslib.as_array(row, (self._vocabulary,)).argmax()))
        return found


def run(engine: Engine, prompts: list[list[int]], new: int) -> dict[str, float]:
    engine.clear()
    begin = time.perf_counter()
    tokens = [
        (sequence, position, token, position == len(ids) - 1)
        for sequence, ids in enumerate(prompts)
        for position, token in enumerate(ids)
    ]
    drawn = [token for at in range(0, len(tokens), BATCH) for token in engine.decode(tokens[at : at + BATCH])]
    last = time.perf_counter()
    filled, steps = last - begin, list[float]()
    for step in range(new - 1):
        rows = [
            (i, len(ids) + step, token, True) for i, (ids, token) in enumerate(zip(prompts, drawn, strict=True))
        ]
        drawn = engine.decode(rows)
        now = time.perf_counter()
        steps.append(now - last)
        last = now
    counted = sorted(steps[WARM:])
    return {"prefill": filled, "step": counted[len(counted) // 2] if counted else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--context", type=int, default=512)
    asked = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engine = Engine(asked.model, asked.sequences, asked.context)
    facts: dict[str, Any] = {"llama-cpp-python": version("llama-cpp-python")}
    print("ready", json.dumps(facts), file=out)
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            task = json.loads(line)
            print(json.dumps(run(engine, task["prompts"], task["new"])), file=out)


if __name__ == "__main__":
    main()
