"""Exit codes of all commands: the one place where they are told."""

from __future__ import annotations

from exahpc.errors import BatchBusy, BatchCancelled, DeploymentError, ExahpcError, Interrupted

ALL_OK, CANNOT, USAGE, NOT_WHOLE, ALL_FAILED = 0, ExahpcError.exit_code, DeploymentError.exit_code, 3, 4
SOME_FAILED = NOT_WHOLE
BUSY, CANCELLED = BatchBusy.exit_code, BatchCancelled.exit_code
INTERRUPTED, TERMINATED = Interrupted.exit_code, 143

COMMON = {
    ALL_OK: "done; also after Ctrl-C where that is the way to end it (logs --follow, status --watch, tunnel)",
    CANNOT: "it failed: something did not answer, was refused or broke off",
    USAGE: "the command line or the deployment file is wrong, or there is no such deployment",
    NOT_WHOLE: "it was done, but not all is well: replicas that are not ready (status), a closed gate (doctor), "
    "failed rows (batch)",
    ALL_FAILED: "all rows of a batch failed",
    BUSY: "another process works on the output of a batch",
    CANCELLED: "the batch was cancelled",
    INTERRUPTED: "stopped by Ctrl-C before its end; what it started in a deployment goes on",
    TERMINATED: "stopped by SIGTERM",
}
"""Of every command."""

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
"""Of a batch, in its own words."""

EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in MEANINGS.items())
"""For `--help`."""


def of_counts(ok: int, failed: int) -> int:
    """Of a batch that ended."""
    if not failed:
        return ALL_OK
    return SOME_FAILED if ok else ALL_FAILED
