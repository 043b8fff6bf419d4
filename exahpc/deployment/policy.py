"""Tables of the deployment file about what the head decides: traffic, health, scale, walltime, versions."""

from __future__ import annotations

from typing import Literal

from exahpc.deployment.frozen import Frozen

Length = Literal["any", "short", "long"]
Successors = Literal["auto", "chain", "off"]


class Routing(Frozen, frozen=True):
    """`[routing]`: which replica takes a request."""

    long_tokens: int = 4096
    """A request of at least so many tokens (prompt and max_tokens) is long: it goes to pools of length "long"."""
    spill_seconds: float = 1.0
    """A long request that waited so long may go to a pool of length "short"; short ones use free "long" replicas
    at once."""
    headroom: float = 0.1
    """Share of each replica's sequences that is kept free while other replicas have room, for bursts and for what
    a lost replica leaves behind."""
    prefix_affinity: bool = True
    """Prefer the replica that lately saw the same beginning of a prompt, unless it is clearly more loaded."""


class Health(Frozen, frozen=True):
    """`[health]`: when a replica that lives is too ill for traffic."""

    window_seconds: float = 5.0
    """Time between two judgements of latency."""
    window_requests: int = 32
    """Requests of one replica that its latency is judged by, at most; a quarter of them at least."""
    hot: float = 3.0
    """A replica is hot when its median latency is so many times the median of its peers (replicas of pools alike
    in shape and length, of the same version). Halfway to that makes it degraded: it gets half of the traffic."""
    windows: int = 2
    """Windows in a row that a replica must be hot before it is tripped: no traffic. One whose answers are failed
    or senseless far more often than its peers' counts as hot, too."""
    silence_seconds: float = 9.0
    """A replica with work in flight that yields no token for so long, without computing a prompt, is taken for
    dead: its work is moved and it is restarted. It gets less traffic after half of that."""
    most_tripped: float = 0.1
    """Share of the fleet, and of the replicas that are compared with each other, that may be out of traffic for
    its latency at once; one replica always may."""
    rest_seconds: float = 30.0
    """Time out of traffic before a tripped replica is probed; doubles with each trip in a row, ten times at
    most."""
    probes: int = 3
    """Requests that a probed replica must answer well to be healthy again."""


class Scaling(Frozen, frozen=True):
    """`[pool.scaling]`: replicas come and go with the load. Without `least` all of `replicas` run all the time."""

    least: int | None = None
    """Replicas that are always kept, warm; 0: none while nobody asks. `replicas` is then the most."""
    tokens_per_replica: int = 4096
    """Outstanding tokens that one replica is to have: above that more are started."""
    queue_seconds: float = 5.0
    """Requests that wait longer than this start more replicas, too."""
    idle_seconds: float = 300.0
    """Load must stay below half of the aim for so long before a task is drained."""
    pause_seconds: float = 30.0
    """Least time between two changes."""


class Walltime(Frozen, frozen=True):
    """`[walltime]`: what happens before Slurm ends a task."""

    successors: Successors = "auto"
    """"auto": a task's successor is submitted in time for it to be ready before the task ends; "chain": `up`
    submits successors in advance, each starting in time before its predecessor's end (which needs `slurm.time`),
    for sites whose nodes may not run sbatch and where nobody runs `exahpc watch`; "off": Slurm requeues the
    task."""
    chain: int = 1
    """With "chain": successors of each task, one after another."""
    most_lead_seconds: float = 1800.0
    """Longest time that a successor may be submitted ahead."""
    drain_seconds: float = 60.0
    """Time that a replaced task has to finish its requests before they are moved."""


class Rollout(Frozen, frozen=True):
    """`[rollout]`: how a new version of the deployment takes over."""

    canary: float = 0.05
    """Share of the tasks (one at least) that change first, and of the requests that they get."""
    samples: int = 50
    """Requests that the new version must have ended before it is judged."""
    most_errors: float = 0.02
    """Share of failed or senseless answers by which the new version may exceed the old one."""
    slower: float = 1.5
    """The new version's median latency may be so many times the old one's."""
    switch: float = 0.5
    """Share of the tasks at the new version from which on requests that name no version all go there."""
    step: float = 0.25
    """Share of the tasks that change at once after the canary."""
    seconds: float = 600.0
    """Longest time for a task to be ready with the new version, and for the first ones to be judged; then the
    rollout is rolled back."""
    drain_seconds: float = 60.0
    """Time that a task has to finish its requests before they are moved to another task of its version. Where none
    is left, they have half of `seconds`, if that is more."""


class Budget(Frozen, frozen=True):
    """`[budget]`: what the deployment may use up."""

    node_hours: float | None = None
    """Node-hours after which no further node is asked for; default: no bound."""
    release_idle: bool = False
    """For deployments that only run batch files, as `exahpc batch run --model` makes them: a task that no batch
    needs any more is ended and its nodes are given back, and after five minutes without any work the whole
    deployment. Not together with `pool.scaling.least`."""


class Alerts(Frozen, frozen=True):
    """`[alerts]`: when somebody is told that something is wrong. A threshold of 0 switches its alert off."""

    error_rate: float = 0.05
    """Share of requests of the last minute that fail by our fault (20 requests at least)."""
    p99_seconds: float = 30.0
    """Time to the first token that one of a hundred clients of the last minute exceeds (20 streams at least)."""
    utilization: float = 0.98
    """Mean busy share of the accelerators."""
    memory: float = 0.98
    """Share of its accelerators' memory in use, of the fullest replica; without accelerators: of its node's."""
    queue: float = 0.5
    """Share of the room for waiting requests (`limits.max_waiting` of each entry) that is taken."""
    replicas: float = 0.9
    """Share of the wanted replicas that are ready, or less, once all were."""
    hold_seconds: float = 60.0
    """Time that it must last before it is told."""
    resolve_seconds: float = 120.0
    """Time that it must be over, clearly, before it is told that it is."""
    webhook: str | None = None
    """http(s) URL that each message is posted to, as JSON. One that holds a secret does not belong here: write it
    to `secrets/webhook` in the deployment's folder."""
    command: tuple[str, ...] = ()
    """Program and arguments that are started on the head with each message as JSON on standard input, for instance
    ["/usr/local/bin/page", "--team", "llm"]."""
