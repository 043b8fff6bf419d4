"""squeue's command lines and what its answers mean. Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from exahpc.slurm.api import JobRecord
from exahpc.slurm.hostlist import expand
from exahpc.slurm.states import state_of


class Row(msgspec.Struct, frozen=True):
    """One line of squeue. id: "1234" or "1234_5"; end: Unix time of its end, expected or past, 0 when not told."""

    id: str
    raw: str
    restarts: int
    requeueable: bool
    nodes: str
    reason: str
    end: int = 0

    def record(self) -> JobRecord:
        reason = "" if self.reason in ("None", "none", "(null)") else self.reason
        state = state_of(self.raw, restarts=self.restarts, requeueable=self.requeueable)
        end = float(self.end) if state == "running" else 0.0
        return JobRecord(self.id, state, self.raw, reason, expand(self.nodes), self.restarts, end)


class Call(ABC):
    """One way to ask squeue. wants: what an old squeue may lack."""

    wants: str

    @abstractmethod
    def argv(self, ids: Sequence[str]) -> tuple[str, ...]:
        """The command line; pending array tasks are listed singly, ended jobs as long as Slurm knows them."""

    @abstractmethod
    def parse(self, text: str) -> list[Row]:
        """Lines that do not look right are left out."""


class _Wide(Call):
    """Fixed columns, wide enough that nothing is cut: values may hold blanks."""

    wants = "--Format with RestartCnt and Requeue"
    _COLUMNS = (
        ("JobArrayID", 64),
        ("State", 32),
        ("RestartCnt", 12),
        ("Requeue", 8),
        ("EndTime", 24),
        ("NodeList", 8192),
        ("Reason", 256),
    )

    def argv(self, ids: Sequence[str]) -> tuple[str, ...]:
        columns = ",".join(f"{name}:{width}" for name, width in self._COLUMNS)
        return (
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            f"--jobs={','.join(ids)}",
            f"--Format={columns}",
        )

    def parse(self, text: str) -> list[Row]:
        rows = []
        for line in text.splitlines():
            values, start = [], 0
            for _, width in self._COLUMNS:
                values.append(line[start : start + width].strip())
                start += width
            job, raw, restarts, requeue, end, nodes, reason = values
            if _is_id(job) and raw:
                count = int(restarts) if restarts.isdigit() else 0
                rows.append(Row(job, raw.split()[0], count, requeue != "0", nodes, reason, _seconds(end)))
        return rows


class _Plain(Call):
    """For old ones: no count of restarts, and jobs that were preempted or lost a node count as coming back."""

    wants = "--array or --states=all"

    def __init__(self, *flags: str) -> None:
        self._flags = flags

    def argv(self, ids: Sequence[str]) -> tuple[str, ...]:
        return ("squeue", "--noheader", *self._flags, f"--jobs={','.join(ids)}", "--format=%i|%T|%N|%e|%r")

    def parse(self, text: str) -> list[Row]:
        rows = []
        for line in text.splitlines():
            values = [value.strip() for value in line.split("|", 4)]
            if len(values) == 5 and values[1]:
                _, raw, nodes, end, reason = values
                word, until = raw.split()[0], _seconds(end)
                rows += [Row(job, word, 0, True, nodes, reason, until) for job in _ids(values[0])]
        return rows


def _seconds(text: str) -> int:
    """Of a time as `process.environment` has Slurm write it; 0 for "N/A"."""
    return int(text) if text.isdigit() else 0


def _is_id(text: str) -> bool:
    """Of a job or one array task."""
    return re.fullmatch(r"\d+(_\d+)?", text) is not None


def _ids(text: str) -> list[str]:
    """Also those of the pending tasks that a squeue without --array lists together: "1234_[5-7,9%2]"."""
    array, _, tasks = text.partition("_[")
    listed = expand(f"{array}_[{tasks.rstrip(']').partition('%')[0]}]") if tasks else (text,)
    return [job for job in listed if _is_id(job)]


CALLS: tuple[Call, ...] = (_Wide(), _Plain("--array", "--states=all"), _Plain("--array"), _Plain())
"""From the best to the plainest."""
