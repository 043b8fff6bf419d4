"""Exit codes of `exahpc batch run` and `retry-failed`: the one place where they are told."""

from __future__ import annotations

from exahpc.errors import BatchBusy, BatchCancelled, DeploymentError, ExahpcError

ALL_OK, CANNOT, USAGE, SOME_FAILED, ALL_FAILED = 0, ExahpcError.exit_code, DeploymentError.exit_code, 3, 4
BUSY, CANCELLED, INTERRUPTED, TERMINATED = BatchBusy.exit_code, BatchCancelled.exit_code, 130, 143

MEANINGS = {
    ALL_OK: "every row has its answer",
    CANNOT: "the batch could not run, or cannot go on (bad input, no deployment, disk full)",
    USAGE: "the command line or the deployment file is wrong",
    SOME_FAILED: "some rows failed",
    ALL_FAILED: "all rows failed",
    BUSY: "another process works on this output",
    CANCELLED: "the batch was cancelled",
    INTERRUPTED: "stopped by Ctrl-C",
    TERMINATED: "stopped by SIGTERM",
}

EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in MEANINGS.items())
"""For `--help`."""


def of_counts(ok: int, failed: int) -> int:
    """Of a batch that ended."""
    if not failed:
        return ALL_OK
    return SOME_FAILED if ok else ALL_FAILED
