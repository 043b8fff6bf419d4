"""EMULATED: `python -m exahpc.lab.emulated.replicas`: any number of emulated replicas in one process.

Whoever starts it (`starter`, tests) writes commands to its standard input and reads what ends from its standard
output, one JSON line each. When the input ends, so do all replicas.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import click
import msgspec
import uvloop

from exahpc.deployment.grid import kv_tokens
from exahpc.lab.emulated import program
from exahpc.lab.emulated.engine import Engine
from exahpc.lab.emulated.label import LABEL, labelled
from exahpc.lab.emulated.model import Latency
from exahpc.lab.emulated.replica import EmulatedReplica
from exahpc.wire.folder import Folder
from exahpc.wire.messages import ReplicaHello


class Start(msgspec.Struct, frozen=True, tag=True):
    """Serve the replica of this slot at `socket`."""

    slot: int
    incarnation: int
    socket: str


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End a replica as SIGKILL ends its ranks."""

    slot: int
    incarnation: int


class Freeze(msgspec.Struct, frozen=True, tag=True):
    """Make a replica fake-alive (or well again)."""

    slot: int
    frozen: bool


Command = Start | Kill | Freeze


class Over(msgspec.Struct, frozen=True):
    """A replica has ended. code: 0 in order, -9 killed."""

    slot: int
    incarnation: int
    code: int


class Replicas:
    """The replicas of this process, by slot."""

    def __init__(self, folder: Folder, pool: str, latency: Latency) -> None:
        """Raises DeploymentError when the deployment is not labelled."""
        deployment = labelled(folder)
        self._pool, self._context = deployment.pool_named(pool), deployment.model.context
        self._latency = latency
        self._replicas: dict[int, tuple[int, EmulatedReplica]] = {}

    def obey(self, command: Command) -> None:
        match command:
            case Start(slot, incarnation, socket):
                pool, tokens = self._pool, kv_tokens(self._pool, self._context)
                engine = Engine(
                    self._latency, sequences=pool.max_sequences, kv_tokens=tokens, context=self._context
                )
                hello = ReplicaHello(
                    pool.name, slot, incarnation, pool.max_sequences, tokens, self._context, step=LABEL
                )
                over = partial(self._over, slot, incarnation, 0)
                self._replicas[slot] = incarnation, EmulatedReplica(Path(socket), engine, hello, over)
            case Kill(slot, incarnation):
                known = self._replicas.get(slot)
                if known is not None and known[0] == incarnation:
                    known[1].close()
                    self._over(slot, incarnation, -9)
            case Freeze(slot, frozen):
                if slot in self._replicas:
                    self._replicas[slot][1].freeze(frozen)

    def _over(self, slot: int, incarnation: int, code: int) -> None:
        del self._replicas[slot]
        sys.stdout.buffer.write(msgspec.json.encode(Over(slot, incarnation, code)) + b"\n")
        sys.stdout.buffer.flush()

    def close(self) -> None:
        for _, replica in list(self._replicas.values()):
            replica.close()


async def serve(folder: Folder, pool: str, latency: Latency) -> None:
    """Obey until the input ends."""
    replicas = Replicas(folder, pool, latency)
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        replicas.obey(msgspec.json.decode(line, type=Command))
    replicas.close()


def latency_of(text: str) -> Latency:
    """From JSON, as `--latency` has it; what is left out stays as it is for the reference load."""
    return msgspec.json.decode(text, type=Latency)


@click.command()
@click.option("--folder", type=click.Path(exists=True, path_type=Path), required=True, help="Deployment's folder.")
@click.option("--pool", required=True)
@click.option("--latency", default="{}", help="What steps take, as JSON (exahpc.lab.emulated.model.Latency).")
def main(folder: Path, pool: str, latency: str) -> None:
    """Serve emulated replicas as told on standard input."""
    program.run(lambda: uvloop.run(serve(Folder(folder), pool, latency_of(latency))))


if __name__ == "__main__":
    main()
