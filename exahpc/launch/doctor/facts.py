"""What is gathered before anything is judged. Pure values; they travel as JSON."""

from __future__ import annotations

import msgspec


class SlurmFacts(msgspec.Struct, frozen=True):
    """version: "22.05.8"; config: `scontrol show config`; mpi: plugins that `srun --mpi=list` names; partition:
    `scontrol show partition` of the deployment's one; switches: nodes whose switch is known; refused: what sbatch
    said to each job of the deployment that it would not take (`--test-only`); tried: how many it was asked."""

    version: str
    config: dict[str, str]
    mpi: tuple[str, ...] = ()
    partition: dict[str, str] = {}
    switches: int = 0
    refused: tuple[str, ...] = ()
    tried: int = 0


class Files(msgspec.Struct, frozen=True):
    """Of the directory of deployments, as one node sees it.

    torn: reads that met neither the old nor the new file while it was replaced again and again; twice: an
    exclusive creation that succeeded a second time; locks: "" when they work, else the system's words; fsync,
    create: median seconds of writing 4 KiB durably, and of creating and removing a file; skew: seconds by which
    the file system's clock is ahead of the node's; won: whether this node was the one to take the name that all
    nodes wanted (None: alone); missing: nodes whose file it did not see in time.
    """

    torn: int
    twice: bool
    locks: str
    fsync: float
    create: float
    skew: float
    won: bool | None = None
    missing: tuple[str, ...] = ()


class Port(msgspec.Struct, frozen=True):
    """A port of InfiniBand or of another fabric that the kernel shows as such. rate: Gb/s."""

    device: str
    active: bool
    rate: float


class Node(msgspec.Struct, frozen=True):
    """One node. software: versions by package; imports: seconds until a fresh interpreter has an agent's modules;
    open_files: the hard limit (-1: none); address: what it publishes, or why it has none (then `no_address`);
    port: why a port could not be opened, "" when it could; ports: the fabric's; ucx: its version or ""; commands:
    why Slurm's commands do not work from here, "" when they do, None when not tried."""

    host: str
    software: dict[str, str]
    imports: float
    open_files: int
    address: str
    no_address: str
    port: str
    files: Files
    ports: tuple[Port, ...] = ()
    ucx: str = ""
    commands: str | None = None
