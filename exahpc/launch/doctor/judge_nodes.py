"""What the nodes saw of themselves, their files and each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from exahpc.deployment.spec import Deployment
from exahpc.launch.doctor.facts import Node
from exahpc.launch.doctor.finding import Finding, Verdict

AGENT_FILES = 4096
"""Open files of an agent."""
SLOW_IMPORT, HOPELESS_IMPORT = 20.0, 60.0
"""Seconds until a fresh interpreter has an agent's modules: thousands at once take far longer than one."""
SLOW_FSYNC, SLOW_CREATE = 0.25, 0.1
"""Seconds, medians: a journal is made durable about once a second; a start creates a few files a task."""
SKEWED, BADLY_SKEWED = 1.0, 30.0
"""Seconds between two clocks. Nothing decides by another node's clock, but logs, certificates and history do."""


def judge(nodes: Sequence[Node], deployment: Deployment | None) -> list[Finding]:
    """nodes: one or more, this machine or those of the allocation."""
    return [
        _python(nodes),
        _address(nodes),
        _open_files(nodes, deployment),
        *_files(nodes),
        _imports(nodes),
        *_commands(nodes, deployment),
        *(_across(nodes) if len(nodes) > 1 else ()),
    ]


def _python(nodes: Sequence[Node]) -> Finding:
    found = nodes[0].software
    named = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if missing := [name for name, version in found.items() if not version]:
        return Finding(
            "python", "fail", f"{named}; not installed: {', '.join(missing)}", "pip install 'exahpc[engine]' there"
        )
    return Finding("python", "ok", named)


def _address(nodes: Sequence[Node]) -> Finding:
    if bad := [f"{node.host}: {node.no_address}" for node in nodes if node.no_address]:
        return Finding("address", "fail", "; ".join(bad), "set launcher.interface (`ip -br addr` on a node)")
    if bad := [f"{node.host}: {node.port}" for node in nodes if node.port]:
        return Finding("address", "fail", "; ".join(bad), "set head.port = 0, or ask which ports are free")
    return Finding("address", "ok", _some([f"{node.host} {node.address}" for node in nodes]))


def _open_files(nodes: Sequence[Node], deployment: Deployment | None) -> Finding:
    tasks = sum(pool.tasks for pool in deployment.pool) if deployment else 0
    wanted = max(AGENT_FILES, 1024 + 4 * tasks)
    limits = [(node.open_files, node.host) for node in nodes if node.open_files >= 0]
    least, host = min(limits, default=(-1, ""))
    if limits and least < wanted:
        return Finding(
            "open-files",
            "fail",
            f"{host} allows {least} open files, {wanted} are needed",
            "ask the site to raise the hard limit (ulimit -Hn), or use fewer tasks",
        )
    return Finding("open-files", "ok", f"{least if limits else 'no limit'}, {wanted} are needed")


def _files(nodes: Sequence[Node]) -> list[Finding]:
    elsewhere = "put the deployments ($EXAHPC_HOME) on another file system"
    torn = [node.host for node in nodes if node.files.torn]
    twice = [node.host for node in nodes if node.files.twice]
    locks = {node.files.locks for node in nodes} - {""}
    fsync, create = max(node.files.fsync for node in nodes), max(node.files.create for node in nodes)
    slow = fsync > SLOW_FSYNC or create > SLOW_CREATE
    return [
        Finding("files-replace", "fail", f"readers on {_some(torn)} met a torn file", elsewhere)
        if torn
        else Finding("files-replace", "ok", "readers see the old or the new file"),
        Finding("files-exclusive", "fail", f"{_some(twice)}: a name was created twice", elsewhere)
        if twice
        else Finding("files-exclusive", "ok", "exclusive creation is exclusive"),
        Finding(
            "files-locks",
            "warn",
            f"flock: {', '.join(sorted(locks))}",
            "nothing, but two `exahpc up` of one name at once are not kept apart; model.stage needs a local disk",
        )
        if locks
        else Finding("files-locks", "ok", "flock works"),
        Finding(
            "files-speed",
            "warn" if slow else "ok",
            f"fsync of 4 KiB {_ms(fsync)}, create and remove {_ms(create)} (medians, slowest node)",
            "choose a faster file system for $EXAHPC_HOME: batch results and restarts wait for it" if slow else "",
        ),
    ]


def _imports(nodes: Sequence[Node]) -> Finding:
    seconds, host = max((node.imports, node.host) for node in nodes)
    verdict: Verdict = "ok" if seconds <= SLOW_IMPORT else "warn" if seconds <= HOPELESS_IMPORT else "fail"
    remedy = "pack the environment and have each node unpack it (docs/howto/packed-environment.md)"
    return Finding(
        "imports", verdict, f"{seconds:.1f} s for an agent's modules on {host}", "" if verdict == "ok" else remedy
    )


def _commands(nodes: Sequence[Node], deployment: Deployment | None) -> list[Finding]:
    tried = [node for node in nodes if node.commands is not None]
    refused = [f"{node.host}: {node.commands}" for node in tried if node.commands]
    if not tried:
        return []
    if not refused:
        return [Finding("node-commands", "ok", "sbatch and scontrol answer on the nodes")]
    if deployment is not None and deployment.launcher.commands == "watch":
        return [
            Finding("node-commands", "ok", f'not on the nodes, but launcher.commands = "watch" ({refused[0]})')
        ]
    remedy = 'set launcher.commands = "watch" (docs/howto/no-sbatch-on-nodes.md)'
    return [Finding("node-commands", "fail", refused[0], remedy)]


def _across(nodes: Sequence[Node]) -> list[Finding]:
    winners = [node.host for node in nodes if node.files.won]
    blind = [f"{node.host} misses {_some(node.files.missing)}" for node in nodes if node.files.missing]
    skews = [node.files.skew for node in nodes]
    apart = max(skews) - min(skews)
    verdict: Verdict = "ok" if apart <= SKEWED else "warn" if apart <= BADLY_SKEWED else "fail"
    odd = [node.host for node in nodes if node.software != nodes[0].software]
    shared = "use a file system that all nodes share for $EXAHPC_HOME"
    if len(winners) != 1:
        files = Finding("files-across", "fail", f"one name was taken by {len(winners)} nodes, not by one", shared)
    elif blind:
        files = Finding("files-across", "fail", _some(blind), shared)
    else:
        files = Finding("files-across", "ok", f"{len(nodes)} nodes see each other's files; one took the name")
    return [
        files,
        Finding(
            "clocks",
            verdict,
            f"{apart:.3g} s between the clocks of {len(nodes)} nodes, measured by the file system's",
            "" if verdict == "ok" else "ask the site to synchronize the nodes' clocks (NTP)",
        ),
        Finding(
            "same-software",
            "fail",
            f"other versions than on {nodes[0].host}: {_some(odd)}",
            "use one environment on a shared file system, or one packed file",
        )
        if odd
        else Finding("same-software", "ok", f"{len(nodes)} nodes have the same versions"),
    ]


def _some(words: Sequence[str], most: int = 4) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
