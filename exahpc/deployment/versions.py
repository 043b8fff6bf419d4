"""Versions of a deployment: labels, and what one file may change while the other one's jobs run. Pure.

A rollout restarts agents and replicas inside the jobs that `exahpc up` submitted, under a head that goes on. So it
can change whatever these two load, and nothing that the jobs or the head were made from.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from exahpc.deployment.frozen import Frozen
from exahpc.deployment.problems import Problems
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import DeploymentError

BASE = "base"
"""How people name the version of `exahpc up`, whose label is ""."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_FREE: dict[str, frozenset[str]] = {
    "model": frozenset({"path", "name", "dtype", "quantization", "stage", "context", "fold_system"}),
    "limits": frozenset({"max_tokens_default", "requests"}),
    "recovery": frozenset({"restarts", "window_seconds", "backoff_seconds", "ready_seconds"}),
    "launcher": frozenset({"mpirun", "mpirun_flags"}),
}
"""Keys that agents and replicas read at their start."""
_FREE_OF_POOLS = frozenset({"tensor_parallel", "pipeline_parallel", "max_sequences", "kv_tokens", "link"})
_HEAD = "the broker and the entries read it at `exahpc up`"
_JOBS = "the jobs that run were submitted with it"


def named(label: str) -> str:
    """A label for people."""
    return label or BASE


def label_of(toml: str) -> str:
    """The default label of a deployment file: a short hash of its content."""
    return hashlib.sha256(toml.encode()).hexdigest()[:8]


def check_label(label: str) -> None:
    """Raises DeploymentError when it cannot be a label."""
    if label == BASE or not _LABEL.fullmatch(label):
        raise DeploymentError(
            f'--label {label!r}: use up to 40 letters, digits, "-", "_" and "."; "{BASE}" is the version of `up`'
        )


def check(base: Deployment, new: Deployment, source: str) -> None:
    """Raises DeploymentError that names every key of `new` in which it may not differ from `base`.

    source: name of the new file, for messages.
    """
    problems = Problems(source)
    for key in base.__struct_fields__:
        if key not in ("model", "pool", "rollout"):
            why = _JOBS if key == "slurm" else _HEAD
            _same(key, getattr(base, key), getattr(new, key), why, problems, _FREE.get(key, frozenset()))
    if base.served_name != new.served_name:
        remedy = f'clients ask for "{base.served_name}": set model.name = "{base.served_name}"'
        problems.add("model.name", new.served_name, remedy)
    if [pool.name for pool in base.pool] != [pool.name for pool in new.pool]:
        names = ", ".join(f'"{pool.name}"' for pool in base.pool)
        problems.add(
            "pool", [pool.name for pool in new.pool], f"the deployment has {names}, in this order: {_KEEP}"
        )
    else:
        for number, (before, after) in enumerate(zip(base.pool, new.pool, strict=True)):
            _pool(f"pool[{number}]", before, after, problems)
    problems.raise_if_any()


_KEEP = "keep it, or end the deployment and `exahpc up` with the new file"


def _pool(path: str, before: Pool, after: Pool, problems: Problems) -> None:
    _same(path, before, after, _JOBS, problems, _FREE_OF_POOLS)
    if before.ranks_per_replica != after.ranks_per_replica:
        problems.add(
            f"{path}.tensor_parallel",
            after.tensor_parallel,
            f"x pipeline_parallel = {after.pipeline_parallel} makes {after.ranks_per_replica} ranks, but the "
            f"jobs that run are for {before.ranks_per_replica}: {_KEEP}",
        )


def _same(path: str, before: Any, after: Any, why: str, problems: Problems, free: frozenset[str]) -> None:
    """Tell about each key below `path` that differs and is not free."""
    if isinstance(before, Frozen):
        for field in msgspec.structs.fields(before):
            if field.encode_name not in free:
                inner = f"{path}.{field.encode_name}"
                _same(inner, getattr(before, field.name), getattr(after, field.name), why, problems, frozenset())
    elif before != after:
        problems.add(path, after, f"it is {before!r} in the deployment that runs, and {why}: {_KEEP}")
