"""A scenario as frozen values: what arrives, what breaks, what it is measured by. TOML or JSON; every key here.

Pure, but for `load`, which reads the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from exahpc.errors import DeploymentError
from exahpc.lab.emulated.model import Latency

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]
MOST_REQUESTS = 1e9
"""Of one simulation: days of computing, and more than its memory holds."""


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: immutable, no unknown keys."""


# --- what arrives --------------------------------------------------------------------------------------------


class Request(Keys, frozen=True):
    """`[[arrivals.mix]]`: one kind of request. share: of all requests, relative to the other kinds'; prompt, new:
    tokens; stream: the answer is streamed; max_tokens: what the client allows, `new` at least."""

    share: Positive = 1.0
    prompt: Count = 64
    new: Count = 64
    stream: bool = True
    max_tokens: int | None = None


class Arrivals(Keys, frozen=True):
    """`[arrivals]`: when requests come.

    kind: "poisson": independent clients; "even": evenly spaced; "bursts": independent ones, and `burst` times as
    many for `burst_seconds` in every `every_seconds`, `calm` times as many otherwise; "recorded": the file
    `path`, a JSON object a line with time (s), prompt, new and, if wanted, stream, beginning at time 0. rate:
    requests a second; default: rate_per_replica for each replica.
    """

    kind: Literal["poisson", "even", "bursts", "recorded"] = "poisson"
    rate: Positive | None = None
    rate_per_replica: Positive = 110 / 12
    burst: Positive = 3.0
    burst_seconds: Positive = 2.0
    calm: Share = 1.0
    every_seconds: Positive = 20.0
    path: str = ""
    mix: Annotated[tuple[Request, ...], msgspec.Meta(min_length=1)] = (Request(),)


# --- the machine ---------------------------------------------------------------------------------------------


class Wait(Keys, frozen=True):
    """A distribution of waits, log-normal: half are shorter than `median`, nine of ten than `p90`."""

    median: Seconds = 5.0
    p90: Seconds = 15.0


class Machine(Keys, frozen=True):
    """`[machine]`: the simulated cluster and replicas.

    spare_nodes: nodes besides those that the deployment fills, as a share of these; nodes_per_switch: neighbours
    that fail together; queue: from a submission until Slurm starts it, if a node is free; boot_seconds: from there
    to the agent's first word; load_seconds: from a step's launch until its weights are loaded; spread: by how much
    replicas differ in speed (standard deviation, as a share); noticed_seconds: until Slurm itself sees that a node
    is down; walltime_seconds: of each job, from its start, default: none; entries: gateways, default: as many as
    the deployment's; room_seconds: between two words of an agent about its load.
    """

    spare_nodes: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.05
    nodes_per_switch: Count = 4
    queue: Wait = Wait()
    boot_seconds: Seconds = 5.0
    load_seconds: Seconds = 30.0
    spread: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.03
    noticed_seconds: Seconds = 300.0
    walltime_seconds: Positive | None = None
    entries: Count | None = None
    room_seconds: Positive = 0.8


# --- what breaks ---------------------------------------------------------------------------------------------


class Fault(Keys, frozen=True, tag_field="kind"):
    """`[[fault]]`: something happens at a time (seconds after the beginning)."""

    at: Seconds


class NodeDown(Fault, frozen=True, tag="node-down"):
    """Nodes vanish. seconds: until they are back; default: never."""

    count: Count = 1
    seconds: Seconds | None = None


class SwitchDown(Fault, frozen=True, tag="switch-down"):
    """All nodes behind a switch vanish at once."""

    count: Count = 1
    seconds: Seconds | None = None


class FakeAlive(Fault, frozen=True, tag="fake-alive"):
    """A share of the replicas stops to compute, and says nothing; their processes live on."""

    share: Share = 0.05


class Slow(Fault, frozen=True, tag="slow"):
    """A share of the replicas takes `times` as long for everything. seconds: until they recover."""

    share: Share = 0.01
    times: Annotated[float, msgspec.Meta(ge=1)] = 5.0
    seconds: Seconds | None = None


class ReplicaExit(Fault, frozen=True, tag="replica-exit"):
    """Replicas end by themselves: a rank crashes."""

    count: Count = 1


class AgentKilled(Fault, frozen=True, tag="agent-killed"):
    """Agents are killed; their replicas live on, and the supervisors start them again."""

    count: Count = 1


class BrokerRestart(Fault, frozen=True, tag="broker-restart"):
    """The broker is killed, and is back after so many seconds."""

    seconds: Seconds = 1.0


class Walltime(Fault, frozen=True, tag="walltime"):
    """All jobs that run at this time end between `first` and `last` seconds later."""

    first: Seconds = 1800.0
    last: Seconds = 2400.0


class Rollout(Fault, frozen=True, tag="rollout"):
    """A new version is rolled out, whose replicas fail at a share `fails` of their requests, answer a share `odd`
    of them senselessly, and take `times` as long for everything: none of it means a good version."""

    fails: Share = 0.0
    odd: Share = 0.0
    times: Annotated[float, msgspec.Meta(ge=1)] = 1.0


class Queue(Fault, frozen=True, tag="queue"):
    """From now on Slurm's queue is longer (or shorter)."""

    wait: Wait = Wait()


AnyFault = (
    NodeDown
    | SwitchDown
    | FakeAlive
    | Slow
    | ReplicaExit
    | AgentKilled
    | BrokerRestart
    | Walltime
    | Rollout
    | Queue
)


# --- the whole -----------------------------------------------------------------------------------------------


class Slo(Keys, frozen=True):
    """`[slo]`: when an answer was good. first_token, between: seconds to the first token, and from one to the next
    on average; deadline: seconds to the end, beyond which an answer is worth nothing."""

    first_token: Positive = 0.5
    between: Positive = 0.05
    deadline: Positive = 30.0


class Scenario(Keys, frozen=True):
    """The whole file. seconds: of virtual time that are measured; warm: before that, not measured; the times of
    faults count from the end of `warm`. seed: of everything random. least: replicas of each pool of the reference
    deployment that run while nobody asks (`pool.scaling.least`); default: all of them all the time."""

    name: str = "steady"
    about: str = ""
    seconds: Positive = 60.0
    warm: Seconds = 10.0
    seed: int = 1
    least: Annotated[int, msgspec.Meta(ge=0)] | None = None
    arrivals: Arrivals = Arrivals()
    replica: Latency = Latency()
    machine: Machine = Machine()
    slo: Slo = Slo()
    fault: tuple[AnyFault, ...] = ()


def load(path: Path) -> Scenario:
    """Raises DeploymentError that names the key, its value and what is wrong."""
    try:
        text = path.read_text()
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{path} cannot be read as a scenario (TOML, or .json): {error}") from None
    return parsed(data, str(path))


def parsed(data: Any, source: str) -> Scenario:
    """A scenario from plain values. Raises DeploymentError that names the key, its value and what is wrong."""
    try:
        found = msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        raise DeploymentError(f"{source}: {_told(str(error), data)}") from None
    problem = _contradiction(found)
    if problem:
        raise DeploymentError(f"{source}: {problem}")
    return found


def check_size(scenario: Scenario, replicas: int) -> None:
    """Raises DeploymentError when so many requests would come that the simulation would never end."""
    arrivals = scenario.arrivals
    if arrivals.kind == "recorded":
        return
    key, rate = "arrivals.rate", arrivals.rate
    if rate is None:
        key, rate = "arrivals.rate_per_replica", arrivals.rate_per_replica
    a_second = rate * (1 if arrivals.rate is not None else replicas)
    if arrivals.kind == "bursts":  # thinned from the highest rate
        a_second *= max(1.0, arrivals.burst)
    requests = a_second * (scenario.warm + scenario.seconds)
    if requests > MOST_REQUESTS:
        raise DeploymentError(
            f"{key} = {rate:g}: {requests:.3g} requests in {scenario.warm + scenario.seconds:g} s are more than a "
            f"simulation can hold ({MOST_REQUESTS:g}): lower it, or seconds"
        )


def _contradiction(scenario: Scenario) -> str:
    arrivals = scenario.arrivals
    if arrivals.kind == "recorded" and not arrivals.path:
        return 'arrivals.path is missing: arrivals.kind = "recorded" needs the file to replay'
    if arrivals.kind == "bursts" and arrivals.burst_seconds > arrivals.every_seconds:
        return (
            f"arrivals.burst_seconds = {arrivals.burst_seconds:g}: must not exceed arrivals.every_seconds = "
            f"{arrivals.every_seconds:g}"
        )
    waits = {"machine.queue": scenario.machine.queue}
    waits |= {f"fault[{n}].wait": fault.wait for n, fault in enumerate(scenario.fault) if isinstance(fault, Queue)}
    for where, wait in waits.items():
        if wait.p90 < wait.median:
            return f"{where}.p90 = {wait.p90:g}: must not be less than {where}.median = {wait.median:g}"
    for number, fault in enumerate(scenario.fault):
        if fault.at > scenario.seconds:
            return f"fault[{number}].at = {fault.at:g}: must lie within seconds = {scenario.seconds:g}"
        if isinstance(fault, Walltime) and fault.first > fault.last:
            return (
                f"fault[{number}].first = {fault.first:g}: must not exceed fault[{number}].last = {fault.last:g}"
            )
    return ""


def _told(problem: str, data: Any) -> str:
    """msgspec's words ("Expected `int`, got `str` - at `$.arrivals.mix[0].new`") with the value that is there."""
    what, found, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if not found or not path:
        return what
    value = data
    for name, index in re.findall(r"\.?([^.\[\]]+)|\[(\d+)\]", path):
        try:
            value = value[int(index)] if index else value[name]
        except (KeyError, IndexError, TypeError):
            return f"{path}: {what}"
    shown = json.dumps(value, default=str)
    return f"{path}: {what}" if len(shown) > 60 or isinstance(value, dict) else f"{path} = {shown}: {what}"
