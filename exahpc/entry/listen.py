"""One port for all entries of a head, and one for those beside an agent: found once, kept across restarts.

Each entry binds its own socket with SO_REUSEPORT and the kernel spreads connections. That option would also let
two deployments of one user share a port by mistake, so who joins a port must know that its owners are siblings
(see `place`). Who finds none alive is first: it keeps the published port (so that clients' URLs stay valid) if
nobody listens there, else takes a fresh one. The head publishes its endpoint in endpoint.json; entries beside an
agent take any free port of their node, and the broker knows where they are.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

from exahpc.deployment.spec import Deployment
from exahpc.entry.place import Place
from exahpc.errors import LinkError
from exahpc.wire.address import head_address, host_address, node_address
from exahpc.wire.folder import Endpoint, Folder, node_name, runtime_directory
from exahpc.wire.tls import ensure_authority, issue_server

log = logging.getLogger(__name__)

BACKLOG = 4096


@dataclass(frozen=True)
class Certificate:
    """Files of the server's TLS certificate and key."""

    certificate: Path
    key: Path


class Listener:
    """The bound socket, the endpoint that siblings share, and the certificate (None: plain HTTP)."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, tls: Certificate | None, place: Place) -> None:
        self.sock, self.endpoint, self.tls, self._place = sock, endpoint, tls, place

    def close(self) -> None:
        """Stop listening; the last sibling removes the lock files."""
        self.sock.close()
        self._place.leave()


def listen(deployment: Deployment, folder: Folder, index: int, beside: str = "") -> Listener:
    """Bind this entry's socket and publish the endpoint if it is the first one. beside: see `Place`.

    Raises LinkError when the address cannot be bound, or living siblings published no endpoint.
    """
    bind, host = addresses(deployment, on_node=bool(beside))
    node = node_name()
    secure = uses_tls(deployment, bind)
    place = Place(folder, runtime_directory(folder.path, node), beside)
    with place.deciding():
        first = place.enter()
        known = place.endpoint()
        if first:  # a fixed port is the head's: both may be on one node
            sock = _fresh(bind, [0 if beside else deployment.head.port, known.port if known else 0])
        elif known is not None and known.host == host:
            sock = _bound(bind, known.port, share=True)
        else:
            raise LinkError(f"entries run on {node} already, but at {known}, not at {host}")
        tls, ca = None, None
        if secure:
            ca = str(ensure_authority(folder))
            names = [host, socket.gethostname(), socket.getfqdn(), node]
            name = f"{place.stem}.{index}" if beside else f"server-{index}"
            # hundreds of nodes write their keys to themselves, not to the shared file system
            tls = Certificate(*issue_server(folder, name, names, into=place.directory if beside else None))
        port = sock.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        url = f"{'https' if secure else 'http'}://{shown}:{port}/v1"
        endpoint = Endpoint(url, host, port, ca)
        if first and endpoint != known:
            place.publish(endpoint)
    return Listener(sock, endpoint, tls, place)


def addresses(deployment: Deployment, *, on_node: bool) -> tuple[str, str]:
    """(what to bind, what to publish). on_node: beside an agent, which may be another machine than the head's.

    Raises LinkError when the node has no address.
    """
    bind = deployment.head.bind
    if not on_node or deployment.launcher.kind == "local" or _is_loopback(bind):
        return bind, published_address(deployment)
    host = host_address(deployment.launcher)
    return (bind if _is_any(bind) else host), host


def published_address(deployment: Deployment) -> str:
    """Where clients find entries: head.bind, or what this node is called by when they listen everywhere."""
    bind = deployment.head.bind
    if not _is_any(bind):
        return bind
    if deployment.launcher.kind == "local" and not (deployment.head.interface or deployment.launcher.interface):
        return node_address()  # its own processes meet on loopback, but somebody asked for more
    return head_address(deployment)


def uses_tls(deployment: Deployment, bind: str) -> bool:
    """ "auto": a key must not cross a network in clear."""
    if deployment.head.tls == "auto":
        return not _is_loopback(bind)
    return deployment.head.tls == "on"


def _address(bind: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(bind)
    except ValueError:
        try:
            return ipaddress.ip_address(socket.gethostbyname(bind))
        except OSError as error:
            raise LinkError(f"head.bind = {bind!r} is no address of this node: {error}") from error


def _is_loopback(bind: str) -> bool:
    return bind == "localhost" or _address(bind).is_loopback


def _is_any(bind: str) -> bool:
    return bind != "localhost" and _address(bind).is_unspecified


def _fresh(bind: str, wanted: list[int]) -> socket.socket:
    """Bound to the first of the wanted ports on which nobody listens, else to any free one."""
    for port in dict.fromkeys(wanted):
        if port == 0:
            continue
        try:
            _bound(bind, port, share=False).close()  # fails when anybody at all holds the port
            return _bound(bind, port, share=True)
        except LinkError as error:
            log.warning("%s: looking for another port", error)
    return _bound(bind, 0, share=True)


def _bound(bind: str, port: int, *, share: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((bind, port))
        sock.listen(BACKLOG)  # before anybody learns the port; without share only this tells whether it is taken
    except OSError as error:
        sock.close()
        raise LinkError(f"cannot listen on {bind} port {port} (head.bind, head.port): {error}") from error
    sock.setblocking(False)
    return sock
