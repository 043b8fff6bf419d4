"""A live development cluster for the tests of this folder: four nodes, up in about a second, gone afterwards.

Nodes are `xt1` to `xt4` with 16 CPUs and 12 fake accelerators each; `xt1-2` and `xt3-4` share a leaf switch.
DEVCLUSTER_NAME gives it another name than `xt`, so that two runs can share a machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "slurm" / "devcluster" / "devcluster"
_WANTED = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "nsenter")


class DevCluster:
    """Handle of a running cluster. `nodes` are host names; faults return once they have happened."""

    def __init__(self, name: str, nodes: int, **settings: str) -> None:
        self.nodes = tuple(f"{name}{i + 1}" for i in range(nodes))
        self._settings = {"DEVCLUSTER_NAME": name, "DEVCLUSTER_NODES": str(nodes), **settings}
        self.directory = Path(settings.get("DEVCLUSTER_DIR", f"/var/tmp/devcluster-{name}"))
        self.conf = str(self.directory / "etc" / "slurm.conf")
        self.broken: set[str] = set()
        self._seen: dict[str, str] = {}

    def __repr__(self) -> str:
        """What a failed wait shows."""
        nodes = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T %E")
        jobs = self.run("squeue", "-h", "-o", "%i %j %T %N %r")
        return f"last look: {self._seen}\nnodes:\n{nodes}jobs:\n{jobs}broken: {self.broken}"

    def _do(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(_SCRIPT), *arguments],
            env={**os.environ, **self._settings},
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
        )

    def up(self) -> None:
        self._do("down")
        done = self._do("up", check=False)
        assert done.returncode == 0, f"the development cluster did not come up:\n{done.stdout}{done.stderr}"

    def down(self) -> None:
        self._do("down")

    def crash(self, node: str) -> None:
        """Power loss. Slurm notices by itself after 20 to 30 s; `fail` tells it at once."""
        self.broken.add(node)
        self._do("crash", node)

    def stop(self, node: str) -> None:
        """slurmd ends; jobs on the node live on."""
        self.broken.add(node)
        self._do("stop", node)

    def start(self, node: str) -> None:
        """After crash or stop; returns when Slurm may use the node again."""
        self._do("start", node)
        wait_for(lambda: self.state(node) in ("idle", "mixed", "allocated"), f"{node} is back", 30)
        self.broken.discard(node)

    def netdown(self, node: str) -> None:
        self.broken.add(node)
        self._do("netdown", node)

    def netup(self, node: str) -> None:
        self._do("netup", node)
        wait_for(lambda: self.state(node) in ("idle", "mixed", "allocated"), f"{node} is back", 60)
        self.broken.discard(node)

    def fail(self, node: str) -> None:
        """Tell Slurm that the node is down, as an operator would, for a few seconds again and again: a last answer
        of the dead node, still on its way, makes the controller take it back.

        What sinfo says is no proof, since a job that cannot complete there hides the state; Slurm's own detection
        comes after 20 to 30 s in any case.
        """
        self.broken.add(node)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
            time.sleep(0.5)
            if self.state(node) == "down":
                return

    def exec(self, node: str, *command: str) -> str:
        """stdout of a command on the node; raises when it fails."""
        return self._do("exec", node, *command).stdout

    def run(self, *command: str) -> str:
        """stdout of a Slurm command on this machine."""
        environment = {**os.environ, "SLURM_CONF": self.conf}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def state(self, node: str) -> str:
        """State of a node as sinfo writes it, without flags such as '*'."""
        return self.states()[node]

    def states(self) -> dict[str, str]:
        """Of all nodes, as at one moment."""
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines()
        return {node: state.rstrip("*~#!%$@^-") for node, state in map(str.split, lines)}

    def clear(self) -> None:
        """No jobs, all nodes usable: what every test may count on."""
        for node in sorted(self.broken):
            self._do("netup", node, check=False)
            self._do("start", node, check=False)
        self.run("scancel", "--user=root")
        wait_for(lambda: not self.run("squeue", "-h", "-o", "%i").strip(), "all jobs are gone", 40)
        wait_for(self._usable, "all nodes are idle", 150, self)
        self.broken.clear()

    def _usable(self) -> bool:
        """Whether all nodes are idle. One that came back is asked for again where Slurm still has it down; it may
        come back by itself just then, which Slurm answers with an error."""
        self._seen = self.states()
        for node in self.broken:
            if self._seen[node] == "down":
                with contextlib.suppress(subprocess.CalledProcessError):
                    self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return set(self._seen.values()) == {"idle"}


def wait_for(true: Callable[[], object], what: str, seconds: float = 30, story: object = "") -> None:
    """Poll until `true()`; fails the test, saying what did not happen, and `story` as it is then."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what} {story!r}"
        time.sleep(0.1)


def why_not() -> str | None:
    """Why this machine cannot run the development cluster, or None."""
    if os.geteuid() != 0:
        return "the development cluster needs root (network namespaces)"
    missing = [
        tool for tool in _WANTED if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None
    ]
    return f"missing {', '.join(missing)}: run slurm/devcluster/install" if missing else None


@pytest.fixture(scope="session")
def _live_cluster() -> Iterator[DevCluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    cluster = DevCluster(os.environ.get("DEVCLUSTER_NAME", "xt"), 4)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(_live_cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    """The live cluster, idle; SLURM_CONF points every Slurm command of the test at it."""
    monkeypatch.setenv("SLURM_CONF", _live_cluster.conf)
    yield _live_cluster
    _live_cluster.clear()
