"""Where the head of a deployment is, from the records in its folder: on this machine, or on another one by ssh."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from exahpc.errors import LinkError
from exahpc.wire.folder import Endpoint, Folder, HeadRecord

T = TypeVar("T")

LOOK_SECONDS = 2.0
"""Between two looks into the deployment's folder; over ssh a little longer."""
LONGEST_PAUSE = 30.0
"""Before an ssh that ended is started again; the first time a second."""
ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
"""Options by which ssh notices that the other side is gone."""
_ENDING_SECONDS = 3.0


class Whereabouts(msgspec.Struct, frozen=True):
    """Where clients go, and the host name of the head's machine ("" when not known)."""

    endpoint: Endpoint
    head: str


def of_folder(folder: Folder) -> Whereabouts | None:
    """None while no entry has published an endpoint."""
    endpoint, head = folder.endpoint(), folder.head()
    return None if endpoint is None else Whereabouts(endpoint, head.host if head is not None else "")


async def watch(folder: Folder) -> AsyncIterator[Whereabouts | None]:
    """What the folder says, again and again, where it lies on this machine."""
    while True:
        yield await asyncio.to_thread(of_folder, folder)
        await asyncio.sleep(LOOK_SECONDS)


def remote_script(name: str) -> str:
    """A shell command for the other side: the certificate to trust, a line ".", then both records again and again,
    each on a line of its own. It ends soon after its reader."""
    shown = shlex.quote(name)
    place = shown if "/" in name else f'"${{EXAHPC_HOME:-$HOME/.exahpc}}"/{shown}'
    script = (
        f"cd {place} || exit 66; cat secrets/ca.crt; echo; echo .; "
        "while :; do cat endpoint.json; echo; cat head.json; echo; sleep 5; done 2>/dev/null"
    )
    return f"sh -c {shlex.quote(script)}"  # whatever the login shell is


class Remote:
    """The folder of a deployment on the machine `via`. ca: the certificate to trust, once `watch` has begun."""

    def __init__(self, via: str, name: str) -> None:
        self._via, self._name = via, name
        self.ca = b""

    async def watch(self) -> AsyncIterator[Whereabouts | None]:
        """What the folder says, again and again. An ssh that ends is started again, unless it never told anything.

        Raises LinkError.
        """
        told, pause = False, 1.0
        while True:
            async for where in self._session():
                told, pause = True, 1.0
                yield where
            if not told:
                raise LinkError(
                    f"`ssh {self._via}` did not tell where {self._name} is (see above): is the name right, and "
                    f"does it lie in ~/.exahpc there? (otherwise give the full path of its folder)"
                )
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _session(self) -> AsyncIterator[Whereabouts | None]:
        ssh = await asyncio.create_subprocess_exec(
            *("ssh", *ALIVE, self._via, remote_script(self._name)),
            stdin=asyncio.subprocess.DEVNULL,  # ssh asks for passwords at the terminal itself
            stdout=asyncio.subprocess.PIPE,
        )
        assert ssh.stdout is not None
        try:
            ca = []
            while (line := await ssh.stdout.readline()) and line != b".\n":
                ca.append(line)
            self.ca = b"".join(ca).strip()
            while pair := [line async for line in _lines(ssh.stdout, 2)]:
                yield _parsed(*pair)
        finally:
            await end(ssh)


async def _lines(stream: asyncio.StreamReader, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        if not (line := await stream.readline()).endswith(b"\n"):
            return
        yield line


def _parsed(endpoint: bytes = b"", head: bytes = b"") -> Whereabouts | None:
    record, where = _decoded(head, HeadRecord), _decoded(endpoint, Endpoint)
    return None if where is None else Whereabouts(where, record.host if record is not None else "")


def _decoded(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError:
        return None  # there is no such file, or it was cut off


async def end(process: asyncio.subprocess.Process) -> None:
    """Tell it to end, and wait a little."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):  # something that it started may hold its output
        await asyncio.wait_for(process.wait(), _ENDING_SECONDS)
