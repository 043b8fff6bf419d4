"""The last words of processes that do not come up: their logs tell why, so nobody should have to go and look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from exahpc.launch.tail import last_line
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

_MOST = 4
"""Logs that are read in one look: the same mistake ails a thousand tasks in the same way."""


def log_of(folder: Folder, name: str) -> Path:
    """Log of the process that a supervisor keeps alive. name: "head", or "POOL-TASK"."""
    return folder.path / "logs" / name / ("broker.log" if name == "head" else "agent.log")


def last_words(folder: Folder, name: str) -> str:
    """The last line that this process wrote since the latest `up`; empty without one."""
    return last_line(log_of(folder, name), _began(folder))


def ended(folder: Folder, name: str) -> str:
    """Why a supervisor of this machine has ended, as far as it and its process have said so."""
    said = (last_line(folder.path / "logs" / f"{name}.supervisor.log", _began(folder)), last_words(folder, name))
    return "; ".join([f"{name} ended while starting", *filter(None, said)])


def silent(folder: Folder, reply: m.StatusReply | None, told: set[str]) -> Iterator[str]:
    """Last words of the broker while none answers, else of agents that it does not hear; each once. An agent that
    only the broker's restart keeps unheard is well: what it said last is old.

    told: what was shown before, without its numbers (a process that crashes again says the same at another time).
    """
    if reply is None:
        names = ["head"]
    else:
        absent = (agent for agent in reply.agents if not (agent.alive or agent.expected))
        names = [f"{agent.pool}-{agent.task}" for agent in islice(absent, _MOST)]
    for name in names:
        words = last_words(folder, name)
        mark = f"{name}: {re.sub('[0-9]+', '0', words)}"
        if words and mark not in told:
            told.add(mark)
            yield f"{name} is not up; its log ends with: {words}"


def _began(folder: Folder) -> float:
    """When the latest `up` wrote the folder, by the clock of its file system; logs go on from life to life."""
    try:
        return (folder.path / "deployment.toml").stat().st_mtime
    except OSError:
        return 0.0
