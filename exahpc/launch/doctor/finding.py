"""What a check found, and which step of the tutorial it keeps closed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Verdict = Literal["ok", "warn", "fail", "skipped"]
Gate = Literal["single-node", "few-nodes", "32", "production"]
GATES: tuple[Gate, ...] = ("single-node", "few-nodes", "32", "production")
"""In the order of the tutorial: one node, 4 to 8, about 32, all of them."""


class Finding(msgspec.Struct, frozen=True):
    """check: a key of `CHECKS`; detail: what was seen, or why nothing was; remedy: what to do unless it is ok."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str = ""


class Check(msgspec.Struct, frozen=True):
    """From which gate on a failure matters; from which one the check must have been made; and from which one a
    warning is no longer good enough (None: never)."""

    title: str
    matters: Gate
    needed: Gate | None = None
    strict: Gate | None = None


CHECKS: dict[str, Check] = {
    "python": Check("Python environment", "single-node", "single-node"),
    "model": Check("model folder", "single-node", "single-node"),
    "address": Check("address and ports", "single-node", "single-node"),
    "open-files": Check("limit of open files", "single-node", "single-node"),
    "files-replace": Check("files are replaced whole", "single-node", "single-node"),
    "files-exclusive": Check("a name is taken once", "single-node", "single-node"),
    "files-locks": Check("locks of files", "production", "single-node"),
    "files-speed": Check("speed of the file system", "32", "single-node", "production"),
    "imports": Check("time to import Python modules", "32", "single-node", "32"),
    "mpi": Check("ranks of one node see each other", "single-node", "single-node"),
    "accelerators": Check("accelerators", "single-node", "single-node"),
    "slurm-version": Check("Slurm's version", "single-node", "few-nodes"),
    "slurm-submit": Check("Slurm takes the deployment's jobs", "single-node", "few-nodes"),
    "slurm-arrays": Check("sizes of job arrays", "single-node", "few-nodes"),
    "slurm-mpi": Check("srun's MPI plugins", "few-nodes", "few-nodes"),
    "slurm-requeue": Check("lost tasks come back", "few-nodes", "few-nodes"),
    "slurm-end": Check("time to end in order", "few-nodes", "few-nodes", "production"),
    "slurm-processes": Check("nothing of a step is left behind", "32", "few-nodes"),
    "slurm-preemption": Check("preemption", "32", "few-nodes"),
    "slurm-topology": Check("switches are known", "production", "32"),
    "node-commands": Check("nodes may ask Slurm", "few-nodes", "few-nodes"),
    "mpi-across": Check("ranks of several nodes see each other", "few-nodes", "few-nodes"),
    "files-across": Check("nodes see each other's files", "few-nodes", "few-nodes"),
    "clocks": Check("clocks", "few-nodes", "few-nodes", "production"),
    "same-software": Check("the same software on all nodes", "few-nodes", "few-nodes"),
    "fabric": Check("the network between nodes", "32", "32", "production"),
}


def ordered(findings: Iterable[Finding], why: str) -> list[Finding]:
    """In the order of `CHECKS`; one that was made more than once tells its worst, one that nobody made is skipped,
    and `why` is the reason."""
    rank: dict[Verdict, int] = {"skipped": 0, "ok": 1, "warn": 2, "fail": 3}
    worst: dict[str, Finding] = {}
    for found in findings:
        known = worst.get(found.check)
        if known is None or rank[found.verdict] > rank[known.verdict]:
            worst[found.check] = found
    return [worst.get(name) or Finding(name, "skipped", why) for name in CHECKS]


def reached(gate: Gate, since: Gate | None) -> bool:
    """Whether something that begins to matter at `since` matters at `gate`."""
    return since is not None and GATES.index(gate) >= GATES.index(since)


def closes(finding: Finding, gate: Gate) -> bool:
    """Whether this finding keeps the gate closed."""
    check = CHECKS[finding.check]
    match finding.verdict:
        case "ok":
            return False
        case "fail":
            return reached(gate, check.matters)
        case "warn":
            return reached(gate, check.strict)
        case "skipped":
            return reached(gate, check.needed)


def open_until(findings: Iterable[Finding]) -> Gate | None:
    """The last gate that is open with all those before it; None when not even one node should be tried."""
    found, last = list(findings), None
    for gate in GATES:
        if any(closes(finding, gate) for finding in found):
            break
        last = gate
    return last
