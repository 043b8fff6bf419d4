"""Memory of the replicas that run on this machine."""

from __future__ import annotations

from pathlib import Path

from exahpc.launch import processes

_PROGRAM = [b"-m", b"exahpc.replica"]


def resident(folder: Path) -> int | None:
    """Bytes that the ranks of this deployment hold here, each shared page counted once; None when none runs here.

    PSS: a page of n processes counts 1/n in each, so weights that all replicas map count once (proc(5)).
    """
    found = [_pss(process.pid) for process in processes.naming(folder) if _is_rank(process.pid)]
    return sum(found) if found else None


def _is_rank(pid: int) -> bool:
    """Whether it is Python that runs a rank, and not a launcher that has the same words behind its own."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:3] == _PROGRAM
    except OSError:
        return False


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it ended while we looked
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
