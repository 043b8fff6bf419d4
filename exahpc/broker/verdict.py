"""The rules for one task that is away, without budgets. Pure.

What keeps work from being run twice:

- Slurm's word counts only when it was asked after the agent went away and after our last deed.
- A job on its way back (pending after a requeue, PREEMPTED, NODE_FAIL) is Slurm's to run again: we wait. One that
  was handed back because of its node is only kept off that node.
- An ending counts when two queries in a row tell the same one.
- When half of the fleet goes silent at once, the fault is more likely ours: running jobs are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exahpc.broker.memory import Kind
from exahpc.broker.values import AgentView
from exahpc.slurm.api import JobRecord

SURE = 2  # answers in a row that tell the same ending, until it counts


@dataclass(frozen=True)
class Patience:
    """Seconds. hung: from a lost agent to a requeue while Slurm takes its job for running; dark: the same where
    its whole switch went silent, which Slurm will notice too, or which comes back; start: from a job's start to
    its agent's hello; settle: for a deed to show in Slurm's answers; exclusion: how long a suspect node is
    avoided; busy, calm: between two queries while tasks are away, and while none is."""

    hung: float = 30.0
    dark: float = 120.0
    start: float = 180.0
    settle: float = 120.0
    exclusion: float = 3600.0
    busy: float = 10.0
    calm: float = 60.0


PATIENCE = Patience()


@dataclass(frozen=True)
class Facts:
    """All that a judgement needs. job: "<array>_<task>" or "" when not known; record: Slurm's answer, None when
    it is older than the absence or our last deed; running_since: when this run was first seen; endings: queries in
    a row that told this ending; ours: we cancelled the job; requeue: it can be requeued; blind: half of the fleet
    is silent; dark: it went silent with its switch; off: its suspect node is excluded already; alone: no agent of
    ours is alive on another node."""

    view: AgentView
    job: str
    record: JobRecord | None
    running_since: float
    endings: int
    ours: bool
    requeue: bool
    blind: bool
    dark: bool = False
    off: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Verdict:
    """kind None: wait. suspect: the node to avoid, or ""; urgent: Slurm may run the task again at any moment, so
    it does not wait for its turn."""

    kind: Kind | None
    story: str
    suspect: str = ""
    urgent: bool = False


def is_blind(absent: Iterable[AgentView], tasks: int) -> bool:
    """Half of the fleet is silent at once: the fault is more likely ours."""
    silent = sum(view.phase == "lost" for view in absent)
    return silent >= 3 and 2 * silent >= tasks


def judge(facts: Facts, patience: Patience, now: float) -> Verdict:
    """The rules, without budgets."""
    view, record = facts.view, facts.record
    if not facts.job:
        return Verdict(None, "its job is not known")
    suspect = view.node if view.suspect and not facts.alone else ""
    if suspect and facts.requeue and not facts.off and _may_return(record, suspect):
        return Verdict("requeue", f"it was handed back: {view.reason}", suspect, urgent=True)
    if record is None:
        return Verdict(None, "waiting for Slurm's word on its job")
    match record.state:
        case "pending" | "requeued":
            return Verdict(None, f"waits in Slurm's queue: {record.reason or record.raw}")
        case "suspended" | "completing":
            return Verdict(None, f"Slurm says {record.raw}")
        case "running":
            hung = view.phase == "lost" and facts.running_since <= view.since
            since = view.since if hung else max(view.since, facts.running_since)
            limit = (patience.dark if facts.dark else patience.hung) if hung else patience.start
            silent = "its agent is silent" if hung else "its agent has not come up yet"
            if hung and facts.dark:
                silent += ", as are others on its switch,"
            if hung and facts.blind:
                return Verdict(None, f"{silent}, as is half of the fleet: left alone, look at the head's network")
            if now - since < limit:
                return Verdict(None, f"{silent} for {now - since:.0f} s, Slurm says {record.raw}")
            suspect = view.node if hung and view.node else (record.nodes[0] if record.nodes else "")
            return Verdict("requeue" if facts.requeue else "cancel", f"{silent} for {now - since:.0f} s", suspect)
        case "completed" | "failed" | "lost":
            if facts.endings < SURE:
                return Verdict(None, f"Slurm says {record.raw}: asking once more")
            if record.raw.startswith("CANCELLED") and not facts.ours:
                return Verdict(None, "its job was cancelled by somebody: `exahpc up` starts it again")
            return Verdict("resubmit", f"its job is over ({record.raw})", suspect)


def _may_return(record: JobRecord | None, node: str) -> bool:
    """Slurm may run a task that was handed back on this node again, or does so already."""
    if record is None or record.state in ("pending", "requeued", "completing"):
        return True
    return record.state == "running" and node in record.nodes
