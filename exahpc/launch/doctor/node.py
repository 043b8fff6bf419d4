"""`python -m exahpc.launch.doctor.node`: looks at its node and prints `facts.Node` as a line of JSON."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import msgspec

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError, LinkError, SlurmError
from exahpc.launch.doctor.facts import Files, Node, Port
from exahpc.slurm.process import ask
from exahpc.wire.address import host_address, node_address
from exahpc.wire.folder import write_atomic

_PACKAGES = ("exahpc", "msgspec", "pyzmq", "transformers", "h5py", "torch", "deepspeed", "mpi4py")
_AGENT = "import exahpc.agent.main"
_ROUNDS = 12
_INFINIBAND = Path("/sys/class/infiniband")


def look(directory: Path, deployment: Deployment | None, peers: int = 1, *, wait: float = 30.0) -> Node:
    """directory: shared, ours, there already; peers: nodes that look at it at the same time, this one counted;
    wait: seconds for their files."""
    address, no_address = _address(deployment)
    head_port = deployment.head.port if deployment else 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Node(
        host=socket.gethostname(),
        software=_software(),
        imports=_imports(),
        open_files=-1 if hard == resource.RLIM_INFINITY else hard,
        address=address,
        no_address=no_address,
        port=_port(address, head_port),
        files=files(directory, peers, wait),
        ports=fabric_ports(_INFINIBAND),
        ucx=_ucx(),
        commands=commands(os.environ),
    )


def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def _imports() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", _AGENT], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return time.perf_counter() - begun


def _address(deployment: Deployment | None) -> tuple[str, str]:
    try:
        return (host_address(deployment.launcher) if deployment else node_address()), ""
    except LinkError as error:
        return "", str(error)


def _port(address: str, port: int) -> str:
    """Why no port can be opened there; "" when one can."""
    try:
        with socket.create_server((address, port)):
            return ""
    except OSError as error:
        return f"port {port or '(any)'} at {address}: {error.strerror or error}"


def fabric_ports(root: Path) -> tuple[Port, ...]:
    """Ports under /sys/class/infiniband (InfiniBand, Omni-Path, RoCE): "4: ACTIVE", "200 Gb/sec (4X HDR)"."""
    found = []
    for port in sorted(root.glob("*/ports/*")):
        try:
            state, rate = (port / "state").read_text(), (port / "rate").read_text()
        except OSError:
            continue
        number = re.match(r"[\d.]+", rate)
        active = "ACTIVE" in state.upper()
        found.append(Port(port.parent.parent.name, active, float(number[0]) if number else 0.0))
    return tuple(found)


def _ucx() -> str:
    program = shutil.which("ucx_info")
    if program is None:
        return ""
    done = subprocess.run([program, "-v"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout)
    return found[0] if found else ""


def commands(environ: Mapping[str, str]) -> str | None:
    """Why Slurm's commands do not work here, "" when they do; None outside a job."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    for argv in (("scontrol", "--oneliner", "show", "job", job), ("sbatch", "--test-only", "--wrap=true")):
        try:
            answer = ask(argv)
        except SlurmError as error:
            return str(error)
        # partition and account are the deployment's business: here only whether the controller listens to us
        if not answer.ok and (argv[0] == "scontrol" or answer.says("access", "denied", "permission", "contact")):
            return str(answer.failure(" ".join(argv[:2])))
    return ""


# --- files -------------------------------------------------------------------------------------------------------


def files(directory: Path, peers: int, wait: float) -> Files:
    """Everything that the deployment's folder relies on."""
    host = socket.gethostname()
    own = directory / f"own-{host}-{os.getpid()}"
    own.mkdir(mode=0o700)
    try:
        won, missing = _among(directory, host, peers, wait) if peers > 1 else (None, ())
        return Files(
            torn=_torn(own / "replaced"),
            twice=_create(own / "once") and _create(own / "once"),
            locks=_locks(own / "lock"),
            fsync=_median(lambda: write_atomic(own / "durable", bytes(4096), durable=True)),
            create=_median(lambda: _come_and_go(own / "short")),
            skew=_skew(own / "clock"),
            won=won,
            missing=missing,
        )
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _torn(path: Path) -> int:
    """Reads that saw something else than one of the two versions, while a thread replaced the file."""
    versions = (b"a" * 4096, b"b" * 4096)
    write_atomic(path, versions[0])
    writing = threading.Thread(target=_rewrite, args=(path, versions))
    writing.start()
    torn = 0
    while writing.is_alive():
        try:
            torn += path.read_bytes() not in versions
        except OSError:
            torn += 1
    writing.join()
    return torn


def _rewrite(path: Path, versions: tuple[bytes, bytes]) -> None:
    for i in range(100):
        write_atomic(path, versions[i % 2])


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _locks(path: Path) -> str:
    """ "" when a second holder is kept out, else why not."""
    with path.open("wb") as first, path.open("wb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        except OSError as error:
            return error.strerror or errno.errorcode.get(error.errno or 0, "unknown")
    return "two holders at once"


def _median(act: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _come_and_go(path: Path) -> None:
    _create(path)
    path.unlink()


def _skew(path: Path) -> float:
    before = time.time()
    path.write_bytes(b"now")
    return path.stat().st_mtime - (before + time.time()) / 2


def _among(directory: Path, host: str, peers: int, wait: float) -> tuple[bool, tuple[str, ...]]:
    """(whether this node took the name that all want, what it did not see of the others)."""
    won = _create(directory / "taken")
    write_atomic(directory / f"here-{host}", host.encode())
    end = time.monotonic() + wait
    while len(seen := sorted(directory.glob("here-*"))) < peers and time.monotonic() < end:
        time.sleep(0.1)
    lost = peers - len(seen)
    return won, (f"{lost} of {peers} nodes",) if lost > 0 else ()


@click.command()
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--file", type=click.Path(path_type=Path), help="The deployment file.")
@click.option("--peers", type=int, default=1)
def main(directory: Path, file: Path | None, peers: int) -> None:
    """Look at this node."""
    try:
        deployment = parse.load(file.read_text(), str(file)) if file else None
        print(msgspec.json.encode(look(directory, deployment, peers)).decode(), flush=True)
    except (ExahpcError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
