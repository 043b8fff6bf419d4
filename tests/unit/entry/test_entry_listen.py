"""What leaves this machine is encrypted unless somebody says otherwise."""

from __future__ import annotations

import pytest

from exahpc.deployment.parse import load
from exahpc.entry import descriptors, listen

TOML = 'name = "d"\nmodel.path = "/m"\n[[pool]]\nname = "a"\n[head]\n{head}\n[launcher]\nkind = "{kind}"\n'


@pytest.mark.parametrize(
    ("kind", "head", "published", "tls"),
    [
        ("slurm", "", "10.1.2.3", True),
        ("slurm", 'bind = "127.0.0.1"', "127.0.0.1", False),
        ("slurm", 'bind = "10.0.0.7"', "10.0.0.7", True),
        ("slurm", 'tls = "off"', "10.1.2.3", False),
        ("local", "", "127.0.0.1", False),
        ("local", 'tls = "on"', "127.0.0.1", True),
        ("local", 'bind = "0.0.0.0"', "10.1.2.3", True),
    ],
)
def test_keys_cross_the_fabric_only_under_tls(
    kind: str, head: str, published: str, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda name: "10.1.2.3")
    deployment = load(TOML.format(kind=kind, head=head))
    assert listen.published_address(deployment) == published
    assert listen.uses_tls(deployment, deployment.head.bind) is tls


@pytest.mark.parametrize(
    ("kind", "head", "binds", "published"),
    [
        ("slurm", "", "0.0.0.0", "10.1.2.3"),
        ("slurm", 'interface = "nowhere0"', "0.0.0.0", "10.1.2.3"),  # the head's own, on a login node
        ("slurm", 'bind = "10.0.0.7"', "10.1.2.3", "10.1.2.3"),  # an address of the head only
        ("slurm", 'bind = "127.0.0.1"', "127.0.0.1", "127.0.0.1"),
        ("local", "", "127.0.0.1", "127.0.0.1"),
        ("local", 'bind = "10.0.0.7"', "10.0.0.7", "10.0.0.7"),
    ],
)
def test_an_entry_beside_an_agent_is_where_the_agent_is(
    kind: str, head: str, binds: str, published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda name: "10.1.2.3")
    assert listen.addresses(load(TOML.format(kind=kind, head=head)), on_node=True) == (binds, published)


def test_start_up_says_when_the_descriptor_limit_is_too_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = load(TOML.format(kind="local", head="entries = 2").replace("[head]", "replicas = 400\n[head]"))
    needed = descriptors.wanted(deployment)
    assert needed >= 400 * 16 // 2 + deployment.limits.max_waiting
    monkeypatch.setattr(descriptors, "require_descriptors", lambda count: None)
    for hard, said in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr("resource.getrlimit", lambda which, hard=hard: (1024, hard))
        caplog.clear()
        descriptors.take(deployment)
        assert ("ulimit -Hn" in caplog.text) is said


def test_more_entries_need_fewer_descriptors_each() -> None:
    few, many = (
        descriptors.wanted(load(TOML.format(kind="local", head=head)))
        for head in ("entries = 1", "entries = 1\nentries_on_nodes = 3")
    )
    assert many < few
