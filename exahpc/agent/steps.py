"""Replica steps as processes: started in a session of their own, recorded so that a later agent can adopt them,
watched through a pidfd (which also works for processes that are not our children), killed whole."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from exahpc.agent import processes
from exahpc.agent.ending import Verdict, judge
from exahpc.wire.folder import write_atomic

log = logging.getLogger(__name__)

TERM_SECONDS = 2.0  # from TERM to KILL: mpirun and srun need a moment to end their ranks in order
_BURY_SECONDS = 20.0  # longest wait for the last process of a step that is over
_LOG_TAIL = 128 * 1024


class StepRecord(msgspec.Struct, frozen=True):
    """What another agent must know to adopt a step. started: clock ticks since boot; deployment: digest of the
    deployment file that it serves; scratch: directory for its temporary files, "" for none; ready: its canary
    answered; shm: files in /dev/shm that it maps."""

    pool: str
    slot: int
    incarnation: int
    pid: int
    started: int
    socket: str
    log: str
    deployment: str
    scratch: str = ""
    ready: bool = False
    shm: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return record_path(Path(self.socket).parent, self.pool, self.slot)


def record_path(runtime: Path, pool: str, slot: int) -> Path:
    return runtime / f"{pool}.{slot}.json"


def socket_path(runtime: Path, pool: str, slot: int, incarnation: int) -> Path:
    return runtime / f"{pool}.{slot}.{incarnation}.sock"


class Step:
    """One living step. `on_end` is called once, in the loop, when the last of its processes is gone."""

    def __init__(self, record: StepRecord, child: subprocess.Popen[bytes] | None) -> None:
        self.record = record
        self._child = child
        self._pidfd: int | None = None
        self._killing: asyncio.Task[None] | None = None
        self._burying: asyncio.Task[None] | None = None
        self.ended = False

    @staticmethod
    def start(
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        pool: str,
        slot: int,
        incarnation: int,
        socket: Path,
        log_file: Path,
        deployment: str,
        scratch: Path | None = None,
    ) -> Step:
        """Start a step and record it. Blocks for as long as a fork takes. Raises OSError.

        scratch: made, given to the step as TMPDIR, and removed with it (a killed mpirun leaves its files behind).
        """
        if scratch is not None:
            scratch.mkdir(mode=0o700, exist_ok=True)
            environment = {**environment, "TMPDIR": str(scratch)}
        fd = os.open(log_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            os.write(fd, f"$ {' '.join(argv)}\n".encode())
            child = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True
            )
        finally:
            os.close(fd)
        record = StepRecord(
            pool=pool,
            slot=slot,
            incarnation=incarnation,
            pid=child.pid,
            started=processes.started(child.pid) or 0,  # already gone: the watch will tell
            socket=str(socket),
            log=str(log_file),
            deployment=deployment,
            scratch=str(scratch or ""),
        )
        step = Step(record, child)
        try:
            step._save()
        except OSError:  # a step that nobody can find again must not live
            _kill_hard([child.pid])
            child.wait()
            _clear(processes.family(None, record.socket), record.socket)
            raise
        return step

    def watch(self, on_end: Callable[[Verdict], None]) -> None:
        """Raises nothing: a step that is gone already is reported like any other end."""
        loop = asyncio.get_running_loop()

        def gone() -> None:
            self._unwatch()
            self._burying = loop.create_task(self._bury(on_end))

        try:
            self._pidfd = os.pidfd_open(self.record.pid)
        except ProcessLookupError:
            loop.call_soon(gone)
            return
        if self._child is None and not self.alive:  # the id was used again since we looked
            loop.call_soon(gone)
            return
        loop.add_reader(self._pidfd, gone)

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    async def _bury(self, on_end: Callable[[Verdict], None]) -> None:
        """Wait until no process of the step is left, helping after a moment, then clean up and report."""
        code = self._child.wait() if self._child is not None else None
        since = time.monotonic()
        while left := await asyncio.to_thread(processes.family, self.record.pid, self.record.socket):
            waited = time.monotonic() - since
            if waited > _BURY_SECONDS:
                log.error("processes %s of %s cannot be killed", left, self.record.socket)
                break
            if waited > 0.2:
                await asyncio.to_thread(_kill_hard, left)
            await asyncio.sleep(0.05)
        if self._killing is not None:
            self._killing.cancel()
        verdict = await asyncio.to_thread(self._verdict, code)
        self.discard()
        self.ended = True
        on_end(verdict)

    def _verdict(self, code: int | None) -> Verdict:
        try:
            with open(self.record.log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL))
                text = file.read().decode(errors="replace")
        except OSError:
            text = ""
        return judge(code, text)

    def kill(self) -> None:
        """TERM to whoever started the ranks, which ends them; KILL to all that is left after a moment."""
        if self.ended or self._killing is not None:
            return
        self._killing = asyncio.get_running_loop().create_task(self._kill())

    async def _kill(self) -> None:
        if self.alive:
            processes.kill([self.record.pid], signal.SIGTERM)
        await asyncio.sleep(TERM_SECONDS)
        session = self.record.pid if self.alive else None
        await asyncio.to_thread(lambda: _kill_hard(processes.family(session, self.record.socket)))

    @property
    def alive(self) -> bool:
        """The starter (mpirun or srun) lives, and is the process that was recorded."""
        return processes.started(self.record.pid) == self.record.started

    def mark_ready(self) -> None:
        """Note for a later agent that the canary answered, and which shared memory the step uses."""
        shm = tuple(processes.shared_memory(processes.family(self.record.pid, self.record.socket)))
        self.record = msgspec.structs.replace(self.record, ready=True, shm=shm)
        if not self.ended:
            self._save()

    def _save(self) -> None:
        write_atomic(self.record.path, msgspec.json.encode(self.record))

    def discard(self) -> None:
        """Remove what the step left behind: record, socket, shared memory."""
        _discard(self.record)

    def release(self) -> None:
        """Stop watching; the step lives on."""
        self._unwatch()
        for task in (self._killing, self._burying):
            if task is not None:
                task.cancel()


def adoptable(runtime: Path, pool: str, slots: Sequence[int], deployment: str, folder: Path) -> list[Step]:
    """Living steps of these slots that serve this deployment.

    Everything else of these slots is cleared away: files of dead steps, steps of an earlier deployment file, steps
    whose agent died before it could record them. What belongs to another job of this node, which may run the same
    task before or after us, has another runtime directory and is left alone. Blocks until what had to die is dead
    (some seconds at most).
    """
    found: list[Step] = []
    for slot in slots:
        record = _read(record_path(runtime, pool, slot))
        if record is None:
            continue
        step = Step(record, None)
        if step.alive and record.deployment == deployment:
            found.append(step)
            continue
        _clear(processes.family(record.pid if step.alive else None, record.socket), record.socket)
        _discard(record)
    kept = {step.record.socket for step in found}
    for pid, slot, socket in list(processes.replicas(folder, pool)):
        if slot in slots and socket not in kept and Path(socket).parent == runtime:
            log.warning("process %d is an unrecorded step of slot %d: killing it", pid, slot)
            _clear([pid, *processes.family(None, socket)], socket)
    for slot in slots:
        for path in runtime.glob(f"{pool}.{slot}.*.*"):
            if not any(socket.startswith(f"{path.with_suffix('')}.") for socket in kept):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    return found


def _read(path: Path) -> StepRecord | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _clear(pids: Sequence[int], socket: str) -> None:
    processes.kill(pids, signal.SIGTERM)
    until = time.monotonic() + TERM_SECONDS
    while processes.family(None, socket) and time.monotonic() < until:
        time.sleep(0.05)
    while (left := processes.family(None, socket)) and time.monotonic() < until + 5.0:
        _kill_hard(left)
        time.sleep(0.05)


def _kill_hard(pids: Sequence[int]) -> None:
    """KILL these processes, and cancel the Slurm steps they run in: ranks on other nodes are out of reach of a
    signal, and outlive an srun that was killed."""
    steps = processes.slurm_steps(pids)
    processes.kill(pids, signal.SIGKILL)
    if steps and shutil.which("scancel"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["scancel", "--signal=KILL", *sorted(steps)], timeout=5, check=False)


def _discard(record: StepRecord) -> None:
    for name in (*record.shm, record.socket):
        with contextlib.suppress(OSError):
            os.unlink(name)
    if record.scratch:
        shutil.rmtree(record.scratch, ignore_errors=True)
    current = _read(record.path)
    if current is not None and current.incarnation == record.incarnation:
        record.path.unlink(missing_ok=True)
