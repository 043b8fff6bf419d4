"""One entry process: listen, serve until TERM, finish what runs, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from typing import Any, cast

import uvicorn
import uvloop

from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.entry.app import Gateway
from exahpc.entry.connection import Connection
from exahpc.entry.dispatch import Dispatch
from exahpc.entry.keys import Keys
from exahpc.entry.listen import BACKLOG, Listener, listen
from exahpc.errors import RequestError
from exahpc.wire import link
from exahpc.wire.folder import Folder

log = logging.getLogger(__name__)

GRACE_SECONDS = 10
"""Time that running requests have after TERM."""
_LAST_BYTES = 0.05  # seconds for the errors of requests that outlast that time
_DESCRIPTORS = 65536
_FEW_DESCRIPTORS = 4096
_KEYS_EVERY = 2.0


def run(folder: Folder, index: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    deployment = load(folder.toml, str(folder.path / "deployment.toml"))
    keys = Keys(folder)
    _raise_descriptors()
    # uvicorn raises the signal again after an orderly end; this process then ends with code 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    listener = listen(deployment, folder, index)
    try:
        uvloop.run(_serve(deployment, folder, keys, listener, index))
    finally:
        listener.close()


async def _serve(deployment: Deployment, folder: Folder, keys: Keys, listener: Listener, index: int) -> None:
    gateway = Gateway(deployment, keys, index)
    gateway.dispatch = Dispatch(
        deployment,
        link.context(),
        folder.fleet_key(),
        lambda: record.address if (record := folder.head()) else None,
        index=index,
        url=listener.endpoint.url,
    )
    server = uvicorn.Server(_config(gateway, deployment, listener))
    chores = asyncio.create_task(_chores(server, keys))
    gc.freeze()  # what is imported stays: full collections need not look at it while streams wait
    log.info("entry %d serves %s at %s", index, deployment.served_name, listener.endpoint.url)
    try:
        await server.serve(sockets=[listener.sock])
    finally:
        chores.cancel()
        gateway.dispatch.abandon_all(RequestError("this server is shutting down", status=503, type="server_error"))
        await asyncio.sleep(_LAST_BYTES)
        gateway.dispatch.close()
    log.info("entry %d has ended", index)


def _config(gateway: Gateway, deployment: Deployment, listener: Listener) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if listener.tls is not None:
        tls = {"ssl_certfile": str(listener.tls.certificate), "ssl_keyfile": str(listener.tls.key)}
    return uvicorn.Config(
        cast(Any, gateway),  # no ASGI: only `Connection` calls it
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **tls,
    )


async def _chores(server: uvicorn.Server, keys: Keys) -> None:
    """Close connections of clients that take too long; notice new and withdrawn API keys."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_KEYS_EVERY)
        try:
            now = loop.time()
            for connection in list(server.server_state.connections):
                if isinstance(connection, Connection):
                    connection.expire(now)
            await asyncio.to_thread(keys.reload)  # a shared file system may take its time
        except Exception:
            log.exception("a chore failed")


def _raise_descriptors() -> None:
    """One descriptor a client and a few a link: take what the hard limit gives."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    link.require_descriptors(most)
    if most < _FEW_DESCRIPTORS:
        log.warning("only %d open files are allowed here: ask the site to raise it (ulimit -Hn)", most)
