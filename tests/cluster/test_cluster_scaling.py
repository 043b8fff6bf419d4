"""On a cluster, replicas that nobody needs give their nodes back, and the first request brings one again. While a
task runs, its node has an entry of its own."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.live import Live, Load, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TOML = """
[slurm]
partition = "main"
time = "1:00:00"
[[pool]]
name = "a"
replicas = 2
max_sequences = 4
[pool.scaling]
least = 0
idle_seconds = 3
pause_seconds = 1
[walltime]
successors = "off"
drain_seconds = 20
[head]
placement = "local"
entries = 1
entries_on_nodes = 1
interface = "sc-br"
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("sc", 2) as cluster:
        yield cluster


@pytest.fixture
def tide(nodes: DevCluster) -> Iterator[Live]:
    with home() as made, deployed(nodes, made, "tide", TOML) as live:
        yield live


def entries(live: Live) -> dict[str, str]:
    """Node -> url."""
    lines = live.run("url", "tide", "--all").stdout.splitlines()
    return {node: url for url, node in (line.split("\t") for line in lines)}


def beside(live: Live, nodes: DevCluster) -> str:
    """The url of an entry on a node, or ""."""
    return next((url for node, url in entries(live).items() if node in nodes.nodes), "")


def test_idle_nodes_are_given_back_and_the_first_request_brings_one_again(tide: Live, nodes: DevCluster) -> None:
    def jobs() -> list[str]:
        return nodes.run("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    until("the first task has ended and Slurm holds nothing", lambda: not jobs(), 90)
    found = until("nothing is wanted", lambda: (s := tide.status()) and s.wanted == 0 and s, 30)
    assert [agent.parked for agent in found.agents] == [True, True]
    assert tide.stream("held, not refused", 50)  # no entry refused it meanwhile

    load = Load(tide, streams=2, tokens=100)
    url = until("the node's own entry is known", lambda: beside(tide, nodes), 60)
    endpoint = tide.folder.endpoint()
    assert endpoint is not None
    assert endpoint.ca is not None
    trust = ssl.create_default_context(cafile=endpoint.ca)
    answer = httpx.get(f"{url}/models", headers={"Authorization": f"Bearer {tide.key}"}, verify=trust)
    assert answer.json()["data"][0]["id"] == tide.model()
    load.stop()
    until("the node is given back again", lambda: not jobs(), 90)
    until("its entry is forgotten", lambda: list(entries(tide)) == ["head"], 30)
