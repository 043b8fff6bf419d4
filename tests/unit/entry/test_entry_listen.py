"""What leaves this machine is encrypted unless somebody says otherwise."""

from __future__ import annotations

import pytest

from exahpc.deployment.parse import load
from exahpc.entry import listen

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
