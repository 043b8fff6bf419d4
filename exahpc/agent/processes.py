"""What /proc tells about the processes of a step.

A process id alone proves nothing (ids are used again): a process is known by its id and start time, the processes
of a step by the step's session or by the socket on their command line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from exahpc.models import copies

_REPLICA = b"exahpc.replica"


def started(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None when there is none (a zombie is none)."""
    found = _stat(pid)
    return None if found is None else found[1]


def _stat(pid: int) -> tuple[int, int] | None:
    """(session, start time) of a process that lives."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return None if fields[0] in (b"Z", b"X") else (int(fields[3]), int(fields[19]))


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have used, of those that live."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _own() -> Iterator[int]:
    me, uid = os.getpid(), os.getuid()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != me and entry.stat().st_uid == uid:
                yield int(entry.name)


def command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def family(session: int | None, socket: str) -> list[int]:
    """Living processes of one step: those of its session, whoever has its socket on the command line (ranks that
    srun or mpirun put into other sessions), and all of the sessions that these lead."""
    wanted = socket.encode()
    sessions = {pid: stat[0] for pid in _own() if (stat := _stat(pid)) is not None}
    leaders = {session} if session is not None else set()
    named = {pid for pid in sessions if wanted in (argv := command(pid)) and _REPLICA in argv}
    return [pid for pid, its in sessions.items() if pid in named or its in leaders or its in named]


def replicas(folder: Path, pool: str) -> Iterator[tuple[int, int, str]]:
    """(pid, slot, socket) of every living process that belongs to a replica of this pool on this node."""
    for pid in _own():
        argv = command(pid)
        if _REPLICA not in argv:
            continue
        values = dict(itertools.pairwise(argv))
        if values.get(b"--folder") != str(folder).encode() or values.get(b"--pool") != pool.encode():
            continue
        with contextlib.suppress(KeyError, ValueError):
            yield pid, int(values[b"--slot"]), values[b"--socket"].decode()


def slurm_steps(pids: Iterable[int]) -> set[str]:
    """ "<job>.<step>" of the Slurm steps that these processes run in."""
    steps = set()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            values = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
            job, step = values.get(b"SLURM_JOB_ID"), values.get(b"SLURM_STEP_ID")
            if job and step and step.isdigit() and b"SLURM_PROCID" in values:
                steps.add(f"{job.decode()}.{step.decode()}")
    return steps


def shared_memory(pids: Iterable[int]) -> list[str]:
    """Files in /dev/shm that these processes map: MPI leaves them behind when its ranks are killed.

    Copies of weights (`models.copies`) are none of them: other replicas map them too.
    """
    files = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                at = line.find("/dev/shm/")
                if at >= 0 and not line.endswith(" (deleted)") and copies.PREFIX not in line[at:]:
                    files.add(line[at:])
    return sorted(files)


def kill(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
