"""The deployment's folder on the shared file system: who knows what, where it lies, with which mode.

Layout (folder 0700, every file 0600; all replaced atomically, so a reader sees the old or the new one):

    deployment.toml               what was submitted
    secrets/fleet.json            CURVE key pair of the links
    secrets/api_keys              one key a line; "name:key" names a key
    secrets/ca.{crt,key}          authority of the endpoint's TLS certificates
    head.json                     where the broker is (HeadRecord)
    endpoint.json                 where clients go (Endpoint)
    epochs/N                      claimed by the Nth broker
    incarnations/POOL.SLOT.N      claimed by the Nth step of a replica; POOL.tN.M by agents
    journal/                      the broker's journal
    versions/LABEL.toml           deployment files of rollouts; default: the label in force (none: deployment.toml)
    versions/assigned/POOL.TASK   the label that this task loads at its start, where it has one of its own
    slurm/                        job ids; local/: process ids of the local launcher
    local/wanted/POOL.TASK        with it and `[pool.scaling]`: this task is wanted
    batches/ID/                   submitted batches: see `tray`
    files/                        uploads, and what batches made of them: see `shelf`
    logs/                         head-*.log, POOL-TASK/*.log
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from exahpc.errors import DeploymentError, LinkError
from exahpc.wire.link import FleetKey

T = TypeVar("T")
UNNAMED = "key "
"""What the name of a key begins with that was given none."""


class HeadRecord(msgspec.Struct, frozen=True):
    """Where the broker of `epoch` listens."""

    epoch: int
    address: str
    host: str
    pid: int


class Endpoint(msgspec.Struct, frozen=True):
    """Where clients go. url ends in /v1; ca: certificate file to trust, or None without TLS."""

    url: str
    host: str
    port: int
    ca: str | None


def write_atomic(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace `path` by a 0600 file with these bytes, whole or not at all."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            error.filename = str(path)  # who writes is not told where, and the temporary name helps nobody
        raise


def claim(directory: Path, prefix: str = "") -> int:
    """The next free number, claimed for good: creating a file exclusively is atomic on shared file systems."""
    directory.mkdir(mode=0o700, exist_ok=True)

    def taken() -> list[int]:
        ends = (name.removeprefix(prefix) for name in os.listdir(directory) if name.startswith(prefix))
        return [int(end) for end in ends if end.isdecimal()]  # NFS leaves `.nfs…` of a file that somebody has open

    number = max(taken(), default=0) + 1
    while True:
        path = directory / f"{prefix}{number}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            number += 1
            continue
        found = taken()
        if max(found) > number:  # ours may have been claimed and cleaned up before: only the highest is surely new
            path.unlink(missing_ok=True)
            number = max(found) + 1
            continue
        for old in found:  # one marker is enough; a lost race only leaves one more behind
            if old < number:
                (directory / f"{prefix}{old}").unlink(missing_ok=True)
        return number


def runtime_directory(folder: Path, node: str, job: str = "") -> Path:
    """Node-local 0700 directory for the sockets of one deployment on one node; with `job`, of one Slurm job there:
    a task and its successor may share a node.

    Raises LinkError when somebody else made it: /tmp is shared with every user of the node.
    """
    tag = hashlib.sha256(f"{folder.resolve()}@{node}{':' + job if job else ''}".encode()).hexdigest()[:12]
    path = Path("/tmp") / f"exahpc-{os.getuid()}-{tag}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LinkError(f"{path} is not a private directory of this user: remove it, or ask who made it")
    return path


def node_name() -> str:
    """What Slurm calls this node, or its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def door(folder: Path, pool: str, task: int, incarnation: int) -> Path:
    """Where the agent of a task listens for entries of its own node (`wire.local`); others use its address.

    Raises LinkError as `runtime_directory` does.
    """
    return runtime_directory(folder, node_name()) / f"{pool}-{task}.{incarnation}.door"


class Folder:
    """Paths and atomic records of one deployment's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def create(path: Path, deployment_toml: str) -> Folder:
        """Make the folder with fresh secrets; keep the secrets of an earlier `up` under the same name."""
        folder = Folder(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        shutil.rmtree(path / "versions", ignore_errors=True)  # rollouts of an earlier life
        for name in ("secrets", "epochs", "incarnations", "journal", "slurm", "local", "logs", "versions"):
            (path / name).mkdir(mode=0o700, exist_ok=True)
        write_atomic(path / "deployment.toml", deployment_toml.encode())
        if not folder._fleet.exists():
            key = FleetKey.make()
            write_atomic(folder._fleet, msgspec.json.encode({"public": key.public, "secret": key.secret}))
        return folder

    @property
    def _fleet(self) -> Path:
        return self.path / "secrets" / "fleet.json"

    @property
    def toml(self) -> str:
        try:
            return (self.path / "deployment.toml").read_text()
        except FileNotFoundError:
            raise DeploymentError(f"{self.path} holds no deployment: run `exahpc up` first") from None

    # --- versions: see `deployment.versions` for what a label is ---

    def version_toml(self, version: str) -> str:
        """The deployment file of a version, "" for the one of `up`.

        Raises DeploymentError that lists what there is.
        """
        if not version:
            return self.toml
        try:
            return (self.path / "versions" / f"{version}.toml").read_text()
        except FileNotFoundError:
            known = ", ".join(self.versions()) or "none"
            raise DeploymentError(f'{self.path.name} has no version "{version}"; there are: {known}') from None

    def versions(self) -> list[str]:
        """Labels of all rollouts' deployment files."""
        return sorted(file.stem for file in (self.path / "versions").glob("*.toml"))

    def add_version(self, version: str, toml: str) -> None:
        (self.path / "versions").mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.path / "versions" / f"{version}.toml", toml.encode())

    def drop_version(self, version: str) -> None:
        """Forget a version that no task was ever to load."""
        (self.path / "versions" / f"{version}.toml").unlink(missing_ok=True)

    def assigned(self, pool: str, task: int) -> str:
        """The version that this task loads at its start."""
        mine = self._label(self._assigned / f"{pool}.{task}")
        return self.version_in_force() if mine is None else mine

    def assign(self, pool: str, task: int, version: str) -> None:
        self._assigned.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._assigned / f"{pool}.{task}", version.encode(), durable=True)

    def version_in_force(self) -> str:
        """What tasks load that have no version of their own."""
        return self._label(self.path / "versions" / "default") or ""

    def put_in_force(self, version: str) -> None:
        (self.path / "versions").mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.path / "versions" / "default", version.encode(), durable=True)

    @property
    def _assigned(self) -> Path:
        return self.path / "versions" / "assigned"

    @staticmethod
    def _label(path: Path) -> str | None:
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            return None

    def fleet_key(self) -> FleetKey:
        """Raises LinkError when the key may have been read by others."""
        if self._fleet.stat().st_mode & 0o077:
            raise LinkError(f"{self._fleet} is readable by others: chmod 600 it and make a new deployment")
        return FleetKey(**msgspec.json.decode(self._fleet.read_bytes()))

    def api_keys(self) -> dict[str, str]:
        """Key -> its name, from secrets/api_keys."""
        keys: dict[str, str] = {}
        for number, line in enumerate((self.path / "secrets" / "api_keys").read_text().splitlines(), 1):
            name, _, key = line.strip().rpartition(":")
            if key:
                keys[key] = name or f"{UNNAMED}{number}"
        return keys

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def head(self) -> HeadRecord | None:
        return self._read("head.json", HeadRecord)

    def publish_head(self, record: HeadRecord) -> None:
        write_atomic(self.path / "head.json", msgspec.json.encode(record))

    def endpoint(self) -> Endpoint | None:
        return self._read("endpoint.json", Endpoint)

    def publish_endpoint(self, endpoint: Endpoint) -> None:
        write_atomic(self.path / "endpoint.json", msgspec.json.encode(endpoint))

    def claim_epoch(self) -> int:
        return claim(self.path / "epochs")

    def claim_incarnation(self, pool: str, name: str) -> int:
        """name: a slot number, or "t<task>" for an agent."""
        return claim(self.path / "incarnations", f"{pool}.{name}.")

    def wanted_mark(self, pool: str, task: int) -> Path:
        """With the local launcher, a task of a pool that scales runs while this file exists; where the directory
        is gone, the deployment is taken down."""
        return self.path / "local" / "wanted" / f"{pool}.{task}"

    def logs(self, *parts: str) -> Path:
        """Path of a log file; its directory is made."""
        path = self.path.joinpath("logs", *parts)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
