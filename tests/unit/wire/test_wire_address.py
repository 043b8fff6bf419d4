"""A process publishes an address that its peers reach, and says which key names it wrongly."""

from __future__ import annotations

import contextlib
import socket

import pytest

from exahpc.deployment.parse import load
from exahpc.errors import LinkError
from exahpc.wire.address import head_address, host_address

TOML = 'name = "d"\nmodel.path = "/m"\n[[pool]]\nname = "a"\n'


def test_the_local_launcher_stays_on_this_machine() -> None:
    deployment = load(TOML + '[launcher]\nkind = "local"')
    assert host_address(deployment.launcher) == head_address(deployment) == "127.0.0.1"


def test_the_heads_interface_is_the_heads_alone() -> None:
    deployment = load(TOML + '[head]\ninterface = "lo"\n[launcher]\ninterface = "none0"')
    assert head_address(deployment) == "127.0.0.1"
    with pytest.raises(LinkError, match=r"launcher\.interface = 'none0' has no IPv4 address here .* lo"):
        host_address(deployment.launcher)
    with pytest.raises(LinkError, match=r"head\.interface = 'none1'"):
        head_address(load(TOML + '[head]\ninterface = "none1"'))


def test_without_an_interface_of_its_own_the_head_takes_the_launchers() -> None:
    assert head_address(load(TOML + '[launcher]\ninterface = "lo"')) == "127.0.0.1"


def test_a_host_name_that_means_loopback_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    assert host_address(load(TOML).launcher) == "10.1.2.3"
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with contextlib.suppress(LinkError):  # a machine without any network
        assert not host_address(load(TOML).launcher).startswith("127.")
