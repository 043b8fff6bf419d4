"""What the ranks of a step saw: MPI, accelerators, the network between nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from exahpc.deployment.spec import Deployment
from exahpc.launch.doctor.facts import Node, Port
from exahpc.launch.doctor.finding import Finding, Verdict
from exahpc.replica.probe import World

LEAST_SHARE = 0.25
"""Of a fabric port's rate that a single pair of ranks should reach with large messages."""
LEAST_TCP = 1e8
"""Bytes a second: about what one Gbit/s gives."""
SLOW_START, HOPELESS_START = 60.0, 300.0
"""Seconds of a rank for MPI, torch and DeepSpeed."""


def judge(
    worlds: Sequence[World], ranks: int, hosts: int, words: str, deployment: Deployment | None
) -> list[Finding]:
    """worlds: what was printed, one unless MPI and launcher do not match; ranks, hosts: what was asked for; words:
    the end of the step's error output."""
    name = "mpi-across" if hosts > 1 else "mpi"
    if not worlds:
        return [Finding(name, "fail", f"the step of {ranks} ranks told nothing: {words}", _REMEDY)]
    world = worlds[0]
    seen = {rank.host for rank in world.ranks}
    if len(worlds) > 1 or world.size != ranks:
        found = Finding(
            name, "fail", f"{len(worlds)} world(s) of {world.size} rank(s) instead of one of {ranks}", _REMEDY
        )
    elif len(seen) != hosts:
        found = Finding(name, "fail", f"the ranks ran on {len(seen)} node(s), not on {hosts}", "see slurm.extra")
    else:
        found = Finding(name, "ok", f"{ranks} ranks on {hosts} node(s), {world.library}")
    return [found, _accelerators(world, deployment), _start(world)]


_REMEDY = "choose slurm.mpi and modules that match mpi4py's library (docs/howto/new-site.md, section 4)"


def _accelerators(world: World, deployment: Deployment | None) -> Finding:
    if bad := [f"{rank.host}: {rank.trouble}" for rank in world.ranks if rank.trouble]:
        return Finding("accelerators", "fail", bad[0], "load the driver's module; see DS_ACCELERATOR of DeepSpeed")
    kinds = sorted({rank.accelerator for rank in world.ranks})
    if len(kinds) > 1:
        return Finding("accelerators", "fail", f"nodes differ: {', '.join(kinds)}", "set slurm.constraint")
    first = world.ranks[0]
    needs = max((pool.devices_per_rank for pool in deployment.pool), default=1) if deployment else 1
    if first.accelerator == "cpu":
        return Finding("accelerators", "ok", "DeepSpeed computes on processors (cpu)")
    least = min(rank.devices for rank in world.ranks)
    if least < needs:
        return Finding(
            "accelerators",
            "fail",
            f"a rank sees {least} {first.accelerator} device(s), {needs} are needed",
            "correct slurm.gres or gpus_per_node (docs/howto/new-site.md, section 3)",
        )
    size = f" of {first.memory / 2**30:.0f} GiB" if first.memory else ""
    return Finding("accelerators", "ok", f"{first.accelerator}: {least} device(s){size} visible to each rank")


def _start(world: World) -> Finding:
    seconds = max(rank.imports for rank in world.ranks)
    verdict: Verdict = "ok" if seconds <= SLOW_START else "warn" if seconds <= HOPELESS_START else "fail"
    return Finding(
        "imports",
        verdict,
        f"{seconds:.1f} s of a rank for MPI, torch and DeepSpeed",
        "" if verdict == "ok" else "pack the environment (docs/howto/packed-environment.md)",
    )


def fabric(world: World | None, nodes: Sequence[Node]) -> Finding:
    """The network between two nodes against what their ports promise."""
    if world is None or not world.far or not world.bandwidth:
        return Finding("fabric", "skipped", "needs a step on two nodes: --nodes 2")
    active = [port for node in nodes for port in node.ports if port.active]
    told = f"{world.bandwidth / 1e9:.2f} GB/s, {world.latency * 1e6:.0f} us one way"
    ucx = next((f"; UCX {node.ucx}" for node in nodes if node.ucx), "")
    if not active:
        slow = world.bandwidth < LEAST_TCP
        return Finding(
            "fabric",
            "warn",
            f"{told}{ucx}; no InfiniBand or other fabric port is active",
            "pipelines over nodes will be slow: keep a replica on one node"
            if slow
            else "nothing where the site has none; else load the fabric's module and a UCX that knows it",
        )
    best = max(active, key=_rate)
    promised = best.rate * 1e9 / 8
    if promised and world.bandwidth < LEAST_SHARE * promised:
        return Finding(
            "fabric",
            "warn",
            f"{told}{ucx}, but {best.device} promises {promised / 1e9:.0f} GB/s",
            "MPI runs over TCP: load an MPI with UCX or OFI for this fabric (UCX_TLS, OMPI_MCA_pml=ucx)",
        )
    return Finding("fabric", "ok", f"{told}{ucx}; {best.device} {best.rate:g} Gb/s")


def _rate(port: Port) -> float:
    return port.rate
