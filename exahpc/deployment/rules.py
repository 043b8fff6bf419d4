"""What must hold between the keys of a deployment file, beyond their types. Pure."""

from __future__ import annotations

import ipaddress
import math
import re
import string
from typing import Any

import msgspec

from exahpc.deployment.frozen import Frozen
from exahpc.deployment.policy import Alerts, Budget, Health, Rollout, Routing, Scaling, Walltime
from exahpc.deployment.problems import Problems
from exahpc.deployment.spec import (
    Deployment,
    Head,
    Limits,
    Model,
    Pool,
    Recovery,
    SlurmResources,
    StageLinks,
)

Bounds = tuple[float | None, float | None]

_BOUNDS: dict[type[Any], dict[str, Bounds]] = {
    Model: {"context": (16, None)},
    Pool: {
        "replicas": (1, 100_000),
        "replicas_per_task": (1, 1024),
        "nodes_per_replica": (1, 1024),
        "tensor_parallel": (1, 1024),
        "pipeline_parallel": (1, 1024),
        "max_sequences": (1, 65_536),
        "kv_tokens": (16, None),
        "threads_per_rank": (1, 1024),
        "devices_per_rank": (1, 64),
    },
    StageLinks: {"group": (8, 65_536)},
    Head: {"entries": (1, 256), "entries_on_nodes": (0, 256), "port": (0, 65_535), "batches": (1, 256)},
    Limits: {
        "max_body_bytes": (1024, 60 * 2**20),
        "max_tokens_default": (1, None),
        "max_waiting": (0, None),
        "max_waiting_per_key": (0, None),
        "queue_seconds": (0, 86_400),
        "start_seconds": (0, 86_400),
        "stream_buffer_bytes": (4096, None),
        "attempts": (1, 100),
        "requests": (1, 128),
        "upload_bytes": (1024, None),
        "files": (1, 1_000_000),
        "files_bytes": (1024, None),
        "batches": (1, 100_000),
    },
    Recovery: {
        "restarts": (0, 1000),
        "window_seconds": (1, None),
        "backoff_seconds": (0, 3600),
        "ready_seconds": (1, None),
        "stall_seconds": (1, None),
        "beat_seconds": (0.1, 60),
    },
    Routing: {"long_tokens": (1, None), "spill_seconds": (0, 86_400), "headroom": (0, 0.9)},
    Health: {
        "window_seconds": (0.5, 600),
        "window_requests": (4, 1024),
        "hot": (1.2, 100),
        "windows": (1, 100),
        "silence_seconds": (1, 3600),
        "most_tripped": (0, 1),
        "rest_seconds": (1, 86_400),
        "probes": (1, 1000),
    },
    Scaling: {
        "least": (0, 100_000),
        "tokens_per_replica": (1, None),
        "queue_seconds": (0, 86_400),
        "idle_seconds": (1, None),
        "pause_seconds": (1, None),
    },
    Walltime: {"chain": (1, 100), "most_lead_seconds": (0, 7 * 86_400), "drain_seconds": (0, 86_400)},
    Rollout: {
        "canary": (0.001, 1),
        "samples": (1, None),
        "most_errors": (0, 1),
        "slower": (1, 100),
        "switch": (0.001, 1),
        "step": (0.001, 1),
        "seconds": (1, None),
        "drain_seconds": (0, 86_400),
    },
    Budget: {"node_hours": (0.01, None)},
    Alerts: {
        "error_rate": (0, 1),
        "p99_seconds": (0, 86_400),
        "utilization": (0, 1),
        "memory": (0, 1),
        "queue": (0, 1),
        "replicas": (0, 0.999),
        "hold_seconds": (0, 86_400),
        "resolve_seconds": (0, 86_400),
    },
    SlurmResources: {"cpus_per_rank": (1, 1024)},
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_TIME = re.compile(r"\d+(:[0-5]?\d){0,2}|\d+-\d+(:[0-5]?\d){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)
_SWITCHES = re.compile(r"[1-9]\d*(@[\d:-]+)?")

OWN_FLAGS = frozenset(
    {"-a", "-J", "-o", "-e", "-N", "-n", "-c", "-D", "-W"}
    | {
        "--array",
        "--job-name",
        "--output",
        "--error",
        "--nodes",
        "--ntasks",
        "--cpus-per-task",
        "--chdir",
        "--wait",
    }
    | {
        "--parsable",
        "--export",
        "--requeue",
        "--no-requeue",
        "--signal",
        "--wrap",
        "--ntasks-per-node",
        "--open-mode",
    }
)
"""sbatch flags that exahpc sets itself; they may not stand in `extra`."""


def bounds_of(kind: type[Any], field: str) -> Bounds:
    """Least and largest value of a number, None for no bound."""
    return _BOUNDS.get(kind, {}).get(field, (None, None))


def merged(base: SlurmResources, over: SlurmResources) -> SlurmResources:
    """`over`'s keys where set, else `base`'s: how [pool.slurm] and [head.slurm] refine [slurm]."""
    changes = {name: value for name in over.__struct_fields__ if (value := getattr(over, name)) is not None}
    return msgspec.structs.replace(base, **changes)


def check(deployment: Deployment, problems: Problems) -> None:
    """Tell `problems` about everything that contradicts itself."""
    for key in deployment.__struct_fields__:
        _finite(key, getattr(deployment, key), problems)
    _name("name", deployment.name, problems)
    _model(deployment.model, problems)
    _resources("slurm", deployment.slurm, problems)
    _head(deployment, problems)
    _alerts(deployment.alerts, problems)
    if not deployment.pool and problems.clean("pool"):
        problems.missing("pool", "add at least one [[pool]]")
    seen: dict[str, int] = {}
    for index, pool in enumerate(deployment.pool):
        at = f"pool[{index}]"
        _pool(at, pool, deployment, problems)
        if pool.name in seen and problems.clean(f"{at}.name"):
            problems.add(f"{at}.name", pool.name, f"pool[{seen[pool.name]}] has that name: give it another one")
        seen.setdefault(pool.name, index)


def _finite(path: str, value: Any, problems: Problems) -> None:
    """TOML has inf and nan; no clock reaches the one, and nothing compares with the other."""
    if isinstance(value, Frozen):
        for key in value.__struct_fields__:
            _finite(f"{path}.{key}", getattr(value, key), problems)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            _finite(f"{path}[{index}]", item, problems)
    elif isinstance(value, float) and not math.isfinite(value) and problems.clean(path):
        problems.add(path, value, "must be a finite number: write a large one for a very long time")


def _name(path: str, name: str, problems: Problems) -> None:
    if problems.clean(path) and not _NAME.fullmatch(name):
        problems.add(path, name, "use 1 to 63 letters, digits, '-' or '_', a letter or digit first")


def _model(model: Model, problems: Problems) -> None:
    if problems.clean("model", "model.path") and not model.path.strip():
        problems.add("model.path", model.path, "name the folder of a Hugging Face checkpoint")
    if model.name is not None and not re.fullmatch(r"[!-~]{1,200}", model.name):
        problems.add("model.name", model.name, "use 1 to 200 visible ASCII characters without spaces")
    if model.stage is not None and not (
        re.fullmatch(r"[/$][!-~]*", model.stage) and string.Template(model.stage).is_valid()
    ):
        remedy = 'name a directory of each node by its full path or a variable: "/dev/shm", "$TMPDIR"'
        problems.add("model.stage", model.stage, remedy)


def _head(deployment: Deployment, problems: Problems) -> None:
    head = deployment.head
    try:
        ipaddress.ip_address(head.bind)
    except ValueError:
        problems.add("head.bind", head.bind, 'must be an IP address of the head, for instance "0.0.0.0"')
    if deployment.launcher.kind == "local" and head.placement != "local":
        remedy = 'with launcher.kind = "local" the head is a process of this machine: remove it or set "local"'
        problems.add("head.placement", head.placement, remedy)
    if deployment.launcher.kind == "local" and deployment.launcher.commands != "head":
        remedy = 'launcher.kind = "local" runs no command of Slurm: remove it'
        problems.add("launcher.commands", deployment.launcher.commands, remedy)
    _resources("head.slurm", head.slurm, problems)
    _one_kind_of_devices("head.slurm", deployment.slurm, head.slurm, problems)


def _alerts(alerts: Alerts, problems: Problems) -> None:
    if alerts.webhook is not None and not alerts.webhook.startswith(("http://", "https://")):
        problems.add("alerts.webhook", alerts.webhook, "write an http:// or https:// URL")
    if alerts.command and not alerts.command[0].startswith("/"):
        problems.add("alerts.command", list(alerts.command), "begin with the absolute path of a program")


def _pool(at: str, pool: Pool, deployment: Deployment, problems: Problems) -> None:
    _name(f"{at}.name", pool.name, problems)
    if pool.name == "head" and problems.clean(f"{at}.name"):
        problems.add(f"{at}.name", pool.name, "the head's logs have that name: choose another one")
    _grid(at, pool, problems)
    context = deployment.model.context
    if (
        pool.kv_tokens is not None
        and problems.clean(f"{at}.kv_tokens", "model.context")
        and pool.kv_tokens < context
    ):
        remedy = f"must hold one whole context: at least model.context = {context}, or lower that"
        problems.add(f"{at}.kv_tokens", pool.kv_tokens, remedy)
    if deployment.launcher.kind == "local" and pool.nodes_per_replica > 1:
        remedy = 'launcher.kind = "local" has one machine: set 1, or use launcher.kind = "slurm"'
        problems.add(f"{at}.nodes_per_replica", pool.nodes_per_replica, remedy)
    _links(at, pool, problems)
    _scaling(at, pool, deployment, problems)
    _resources(f"{at}.slurm", pool.slurm, problems)
    _one_kind_of_devices(f"{at}.slurm", deployment.slurm, pool.slurm, problems)


def _scaling(at: str, pool: Pool, deployment: Deployment, problems: Problems) -> None:
    least = pool.scaling.least
    if least is None:
        for field in msgspec.structs.fields(pool.scaling):
            value = getattr(pool.scaling, field.name)
            if value != field.default:
                remedy = f"has no effect without {at}.scaling.least: set that (0 to {pool.replicas}), or remove it"
                problems.add(f"{at}.scaling.{field.encode_name}", value, remedy)
    if least is not None and problems.clean(f"{at}.scaling.least", f"{at}.replicas") and least > pool.replicas:
        remedy = f"is more than replicas = {pool.replicas}, the most: lower it, or raise replicas"
        problems.add(f"{at}.scaling.least", least, remedy)
    if least is not None and deployment.budget.release_idle:
        remedy = "nodes cannot come and go by two rules: remove it, or budget.release_idle"
        problems.add(f"{at}.scaling.least", least, remedy)
    holds_head = deployment.head.placement == "first-task" and pool is deployment.pool[0]
    if least == 0 and holds_head and problems.clean(f"{at}.scaling.least", "head.placement"):
        remedy = 'must be 1 or more: the head runs in this pool\'s first task (head.placement = "first-task")'
        problems.add(f"{at}.scaling.least", least, remedy)


def _grid(at: str, pool: Pool, problems: Problems) -> None:
    nodes = pool.nodes_per_replica
    if not problems.clean(
        *(f"{at}.{key}" for key in ("nodes_per_replica", "tensor_parallel", "pipeline_parallel"))
    ):
        return
    if nodes > 1 and pool.replicas_per_task > 1:
        remedy = f"must be 1, because a replica spans {nodes} nodes (nodes_per_replica)"
        problems.add(f"{at}.replicas_per_task", pool.replicas_per_task, remedy)
    ranks = pool.ranks_per_replica
    shape = f"tensor_parallel {pool.tensor_parallel} x pipeline_parallel {pool.pipeline_parallel} = {ranks} ranks"
    if ranks % nodes:
        problems.add(
            f"{at}.nodes_per_replica", nodes, f"{shape} cannot be spread evenly: use a divisor of {ranks}"
        )
    elif ranks // nodes % pool.tensor_parallel:
        remedy = (
            f"{ranks // nodes} ranks a node ({shape}) would split a tensor-parallel group between nodes: "
            f"make pipeline_parallel a multiple of nodes_per_replica"
        )
        problems.add(f"{at}.nodes_per_replica", nodes, remedy)


def _links(at: str, pool: Pool, problems: Problems) -> None:
    stages = pool.pipeline_parallel
    for number in pool.link.exact:
        if problems.clean(f"{at}.pipeline_parallel", f"{at}.link.exact") and not 0 <= number < stages - 1:
            has = f"links 0 to {stages - 2}" if stages > 2 else "link 0 only" if stages == 2 else "no links"
            remedy = f"pipeline_parallel = {stages} has {has}: remove it"
            problems.add(f"{at}.link.exact", number, remedy)


def _resources(at: str, resources: SlurmResources, problems: Problems) -> None:
    for key in resources.__struct_fields__:
        value = getattr(resources, key)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (not text.strip() or not text.isprintable()):
                problems.add(
                    f"{at}.{key}", text, "must not be empty or hold control characters: write it or remove it"
                )
    _like(f"{at}.time", resources.time, _TIME, 'write minutes, "HH:MM:SS" or "D-HH:MM:SS"', problems)
    _like(
        f"{at}.memory", resources.memory, _MEMORY, 'write megabytes or a number with K, M, G or T: "64G"', problems
    )
    _like(f"{at}.switches", resources.switches, _SWITCHES, 'write "1" or, with a longest wait, "1@30"', problems)
    for flag in resources.extra or ():
        name = flag.partition("=")[0].split(" ")[0]
        if not flag.startswith("-"):
            problems.add(f"{at}.extra", flag, 'each entry is one sbatch flag: "--flag=value"')
        elif name in OWN_FLAGS or (not name.startswith("--") and name[:2] in OWN_FLAGS):
            problems.add(f"{at}.extra", flag, "exahpc sets this flag itself: remove it")


def _like(path: str, value: str | None, pattern: re.Pattern[str], remedy: str, problems: Problems) -> None:
    if value is not None and problems.clean(path) and not pattern.fullmatch(value):
        problems.add(path, value, remedy)


def _one_kind_of_devices(at: str, base: SlurmResources, own: SlurmResources, problems: Problems) -> None:
    whole = merged(base, own)
    if whole.gres is not None and whole.gpus_per_node is not None:
        set_here = "gres" if own.gres is not None else "gpus_per_node" if own.gpus_per_node is not None else None
        path = f"{at}.{set_here}" if set_here else "slurm.gres"
        if problems.clean(path):
            remedy = (
                "gres and gpus_per_node ask for the same devices twice (also across [slurm]): keep one of them"
            )
            problems.add(path, getattr(whole, set_here or "gres"), remedy)
