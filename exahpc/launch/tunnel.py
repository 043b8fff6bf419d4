"""`tunnel`: a local port that leads to the endpoint, however often the head moves.

Where this machine reaches the endpoint by itself, connections go there. Elsewhere ssh carries them: it forwards
a socket in a private directory, and a new ssh takes over when the head has moved or the old one has ended. The
local port is ours all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import shlex
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from exahpc.errors import LinkError
from exahpc.launch.forward import Forwarder, Streams
from exahpc.launch.whereabouts import ALIVE, LONGEST_PAUSE, Whereabouts, end
from exahpc.wire.folder import Endpoint

_REACH_SECONDS = 3.0
_FORWARDING = (
    *ALIVE,
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "ControlPath=none"),  # a shared connection would go on forwarding after us
)


def forward_argv(where: Whereabouts, via: str | None, listen: Path) -> tuple[str, ...]:
    """The ssh command that forwards the socket `listen` to the endpoint: by way of `via`, else of the head."""
    host = where.endpoint.host
    shown = f"[{host}]" if ":" in host else host
    forward = ("-L", f"{listen}:{shown}:{where.endpoint.port}")
    if via is not None and not _is_loopback(host):
        return ("ssh", "-N", *_FORWARDING, *forward, "--", via)
    jump = ("-J", via) if via is not None else ()  # only the head itself reaches its loopback
    return ("ssh", "-N", *_FORWARDING, *jump, *forward, "--", where.head)  # what another machine calls itself


async def reached(where: Whereabouts) -> bool:
    """Whether this machine reaches the endpoint by itself."""
    endpoint = where.endpoint
    if _is_loopback(endpoint.host) and where.head != socket.gethostname():
        return False
    try:
        async with asyncio.timeout(_REACH_SECONDS):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Tunnel:
    """via: the ssh destination in between, None to do without where that is possible; told: notes for people;
    opened: called when the way stands first, with the endpoint that it leads to."""

    def __init__(self, via: str | None, told: Callable[[str], None], opened: Callable[[Endpoint], None]) -> None:
        self._via, self._told, self._opened = via, told, opened
        self.forwarder = Forwarder()
        self._worked = False

    async def follow(self, records: AsyncIterator[Whereabouts | None]) -> None:
        """Point the forwarder to what the records say, for ever. Raises LinkError when no way stands at all."""
        known: Whereabouts | None = None
        carrying: asyncio.Task[None] | None = None
        missed = False
        with tempfile.TemporaryDirectory(prefix="exahpc-tunnel-") as private:
            try:
                async for where in records:
                    if carrying is not None and carrying.done():
                        carrying.result()
                    if where is None and not missed:
                        self._told("there is no endpoint: waiting for the deployment to come up")
                    missed = where is None
                    if where is None or (known is not None and where.endpoint == known.endpoint):
                        continue
                    if carrying is not None:
                        self._told(f"the head has moved to {where.head or where.endpoint.host}")
                        await _cancelled(carrying)
                        self.forwarder.target = None
                        self.forwarder.cut()
                    known = where
                    carrying = asyncio.create_task(self._carry(where, Path(private)))
            finally:
                if carrying is not None:
                    await _cancelled(carrying)
                self.forwarder.close()

    async def _carry(self, where: Whereabouts, private: Path) -> None:
        """The way to one place, for as long as that is the place. Raises LinkError when it never stood."""
        if self._via is None and await reached(where):
            self._stands(where, partial(asyncio.open_connection, where.endpoint.host, where.endpoint.port))
            await asyncio.Event().wait()
        if shutil.which("ssh") is None or not (self._via or where.head):
            raise LinkError(f"{where.endpoint.url} is not reached from here, and there is no ssh to go around")
        pause = 1.0
        while True:
            code, stood = await self._ssh(where, private / "way")
            if not self._worked:  # a way that stood before may stand again
                argv = shlex.join(forward_argv(where, self._via, private / "way"))
                hint = "" if self._via else "; name the login node with --via USER@LOGIN"
                raise LinkError(f"{where.endpoint.url} is not reached from here, nor by ssh ({argv}){hint}")
            pause = 1.0 if stood else min(LONGEST_PAUSE, 2 * pause)
            self._told(f"ssh has ended with code {code}: again in {pause:g} s")
            await asyncio.sleep(pause)

    async def _ssh(self, where: Whereabouts, socket_path: Path) -> tuple[int, bool]:
        """One ssh from its start to its end: its exit code, and whether it carried."""
        argv = forward_argv(where, self._via, socket_path)
        ssh = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
        stood = False
        try:
            while ssh.returncode is None and not stood:
                if stood := socket_path.exists():  # ssh listens only when it is let in
                    self._stands(where, partial(asyncio.open_unix_connection, str(socket_path)))
                else:
                    await asyncio.sleep(0.1)
            return await ssh.wait(), stood
        finally:
            self.forwarder.target = None
            await end(ssh)
            socket_path.unlink(missing_ok=True)

    def _stands(self, where: Whereabouts, target: Callable[[], Awaitable[Streams]]) -> None:
        self.forwarder.target = target
        if not self._worked:
            self._worked = True
            self._opened(where.endpoint)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, LinkError):
        await task
