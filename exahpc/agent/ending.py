"""Why a step ended: by itself, or by a signal from outside. Pure: exit code and log text in, a verdict out.

Only a replica's own exit makes the requests that it ran suspect; a lost node, a kill, a walltime must not.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

_OUTSIDE = {
    signal.SIGKILL,  # an administrator, the kernel's OOM killer, Slurm
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
}

# Who went first decides: with -K1, srun kills the others after the first and reports those as "Killed" too.
_RANK_ENDED = re.compile(
    r"^srun: error: (?P<srun>\S+: tasks? \S+: (?:Exited with exit code (?P<code>\d+)|(?P<words>[A-Z][a-z ]+)).*)$"
    r"|^(?P<mpirun>.*\brank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal (?P<signal>\d+).*)$"
    r"|^(?P<hydra>.*YOUR APPLICATION TERMINATED WITH THE EXIT STRING: (?P<string>[A-Za-z ]+) \(signal \d+\).*)$"
    r"|^(?P<lost>(?:srun|slurmstepd): error: .*(?:Node failure|CANCELLED AT).*)$",
    re.MULTILINE,
)
_OUTSIDE_WORDS = ("Killed", "Terminated", "Interrupt", "Hangup", "User defined signal")
_EXCEPTION = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b(?::.*)?)$")
_TRACEBACK = "Traceback (most recent call last)"
_LONGEST = 300


class Verdict(NamedTuple):
    """story: one line for a user; own_exit: the replica died by itself."""

    story: str
    own_exit: bool


def judge(code: int | None, log: str) -> Verdict:
    """code: of mpirun or srun as `Popen.returncode` gives it, None when it was not our child; log: the end of the
    step's log."""
    said = _traceback_line(log)
    rank = _RANK_ENDED.search(log)
    how = _name(code)
    if rank is not None:
        line = next(text for key in ("srun", "mpirun", "hydra", "lost") if (text := rank[key]) is not None).strip()
        own = not _outside(rank)
        story = f"{said} ({line})" if said and own else line
        return Verdict(_short(story), own)
    number = None if code is None else _signal(code)
    if number in _OUTSIDE:  # also over a traceback: that may be an old one, of an error that was dealt with
        return Verdict(how, own_exit=False)
    if said:
        return Verdict(_short(f"{said} ({how})"), own_exit=True)
    if code is None:
        return Verdict("ended without a word while no agent was its parent", own_exit=False)
    return Verdict(how, own_exit=code != 0)


def _outside(found: re.Match[str]) -> bool:
    if found["lost"]:
        return True
    if found["signal"]:
        return int(found["signal"]) in _OUTSIDE
    words = found["words"] or found["string"]
    if words:
        return words.startswith(_OUTSIDE_WORDS)
    number = _signal(int(found["code"]))
    return number is not None and number in _OUTSIDE


def _signal(code: int) -> int | None:
    """The signal behind an exit code: negative from Popen, 128 + N from a shell, mpirun or srun."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 128 + signal.NSIG else None


def _name(code: int | None) -> str:
    if code is None:
        return "exit code unknown"
    number = _signal(code)
    if number is None:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"exit code {code}"


def _traceback_line(log: str) -> str | None:
    """The exception of the last traceback in the log."""
    _, found, after = log.rpartition(_TRACEBACK)
    for line in after.splitlines() if found else []:
        if match := _EXCEPTION.match(line):  # frames of the traceback are indented
            return match[1].rstrip()
    return None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
