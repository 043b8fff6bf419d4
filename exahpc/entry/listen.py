"""One port for all entries of a head: found once, published in endpoint.json, kept across restarts.

Each entry binds its own socket with SO_REUSEPORT and the kernel spreads connections. That option would also let
two deployments of one user share a port by mistake, so who joins a port must know that its owners are siblings:
every living entry holds a shared file lock in the node-local runtime directory. Who finds no such lock is first:
it keeps the published port (so that clients' URLs stay valid) if nobody listens there, else takes a fresh one.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exahpc.deployment.spec import Deployment
from exahpc.errors import LinkError
from exahpc.wire.address import head_address, node_address
from exahpc.wire.folder import Endpoint, Folder, runtime_directory
from exahpc.wire.tls import ensure_authority, issue_server

log = logging.getLogger(__name__)

BACKLOG = 4096


@dataclass(frozen=True)
class Certificate:
    """Files of the server's TLS certificate and key."""

    certificate: Path
    key: Path


class Listener:
    """The bound socket, the endpoint that all entries share, and the certificate (None: plain HTTP)."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, tls: Certificate | None, place: _Place) -> None:
        self.sock, self.endpoint, self.tls, self._place = sock, endpoint, tls, place

    def close(self) -> None:
        """Stop listening; the last entry of the node removes the lock files."""
        self.sock.close()
        self._place.leave()


def listen(deployment: Deployment, folder: Folder, index: int) -> Listener:
    """Bind this entry's socket and publish the endpoint if it is the first one.

    Raises LinkError when the address cannot be bound, or living siblings published no endpoint.
    """
    bind, host = deployment.head.bind, published_address(deployment)
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    secure = uses_tls(deployment, bind)
    place = _Place(runtime_directory(folder.path, node))
    with place.deciding():
        first = place.enter()
        known = folder.endpoint()
        if first:
            sock = _fresh(bind, [deployment.head.port, known.port if known else 0])
        elif known is not None and known.host == host:
            sock = _bound(bind, known.port, share=True)
        else:
            raise LinkError(f"entries run on {node}, but {folder.path}/endpoint.json names {known}, not {host}")
        tls, ca = None, None
        if secure:
            ca = str(ensure_authority(folder))
            names = [host, socket.gethostname(), socket.getfqdn(), node]
            tls = Certificate(*issue_server(folder, f"server-{index}", names))
        port = sock.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        url = f"{'https' if secure else 'http'}://{shown}:{port}/v1"
        endpoint = Endpoint(url, host, port, ca)
        if first and endpoint != known:
            folder.publish_endpoint(endpoint)
    return Listener(sock, endpoint, tls, place)


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
        return not (bind == "localhost" or _address(bind).is_loopback)
    return deployment.head.tls == "on"


def _address(bind: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(bind)
    except ValueError:
        try:
            return ipaddress.ip_address(socket.gethostbyname(bind))
        except OSError as error:
            raise LinkError(f"head.bind = {bind!r} is no address of this node: {error}") from error


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


class _Place:
    """File locks by which the entries of one deployment on one node know of each other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._alive = -1

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Only one entry of the node at a time is in here."""
        path = self._directory / "entry.deciding"
        while True:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    break
            os.close(fd)  # the last one removed it while we waited
        try:
            yield
        finally:
            os.close(fd)

    def enter(self) -> bool:
        """Join; only while deciding. True: no other entry lives."""
        fd = os.open(self._directory / "entry.alive", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            first = False
        fcntl.flock(fd, fcntl.LOCK_SH)
        self._alive = fd
        return first

    def leave(self) -> None:
        """The last one removes the files, and the directory if nothing else is in it."""
        with self.deciding():
            try:
                fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for name in ("entry.alive", "entry.deciding"):
                    (self._directory / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self._directory.rmdir()
            except BlockingIOError:
                pass
            os.close(self._alive)
