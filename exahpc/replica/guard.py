"""Whatever goes wrong on one rank ends the whole step, at once and with its traceback.

Without this a rank that raises leaves the others in a collective for ever. It guards imports and loading too, so
nothing heavy is imported before it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

FAULT = "EXAHPC_FAULT"
"""Environment variable for tests only: "raise@rank1:step20", "exit@rank0:load", "kill@rank1:step3": what that rank
does at that point (points: import, load, step<N>)."""


def guarded(body: Callable[[], None]) -> NoReturn:
    """Run `body` and end the process with code 0. Any exception, SystemExit included, prints its traceback and
    aborts the world with code 1.

    Neither way runs exit handlers: they must not keep a broken rank, and those of torch take seconds of a drain.
    """
    try:
        body()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized():
            mpi.Finalize()
        code = 0
    except BaseException:
        traceback.print_exc()
        mpi, code = sys.modules.get("mpi4py.MPI"), 1
    sys.stdout.flush()
    sys.stderr.flush()
    if code and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    os._exit(code)


def fault(rank: int, point: str) -> None:
    """Do what the environment asks this rank to do at this point."""
    wanted = os.environ.get(FAULT, "")
    action, _, where = wanted.partition("@")
    if where != f"rank{rank}:{point}":
        return
    if action == "exit":
        sys.exit(0)
    if action == "kill":
        os.kill(os.getpid(), 9)
    raise RuntimeError(f"fault asked for by {FAULT}={wanted}")
