"""The address that a process of the deployment binds to and publishes."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

from exahpc.deployment.spec import Deployment, Launcher
from exahpc.errors import LinkError

_SIOCGIFADDR = 0x8915
LOOPBACK = "127.0.0.1"


def host_address(launcher: Launcher) -> str:
    """IPv4 address of this node as its peers reach it: of `launcher.interface` when named, loopback for the local
    launcher, else what the node's own host name resolves to.

    Raises LinkError when the interface has no address, or the host name leads to no address of this node.
    """
    if launcher.interface:
        return _of_interface("launcher.interface", launcher.interface)
    if launcher.kind == "local":
        return LOOPBACK
    return node_address()


def head_address(deployment: Deployment) -> str:
    """The same for broker and entries: of `head.interface` when named. Raises LinkError."""
    if deployment.head.interface:
        return _of_interface("head.interface", deployment.head.interface)
    return host_address(deployment.launcher)


def _of_interface(key: str, name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            known = ", ".join(found for _, found in socket.if_nameindex())
            raise LinkError(
                f"{key} = {name!r} has no IPv4 address here ({error.strerror}); interfaces of this node: {known}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def node_address() -> str:
    """IPv4 address that this node's own host name leads to. Raises LinkError."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(name)
        if not address.startswith("127."):  # Debian writes the host name as 127.0.1.1, which no peer reaches
            return address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: asks the kernel which address leads out
        return str(probe.getsockname()[0])
    raise LinkError(
        f"host name {name!r} leads to no address: set launcher.interface (or head.interface) to the fabric's"
    )
