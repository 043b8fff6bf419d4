"""One entry process: listen, serve until TERM, finish what runs, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from typing import Any, cast

import uvicorn
import uvloop

from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.entry import descriptors
from exahpc.entry.app import Gateway
from exahpc.entry.connection import Connection
from exahpc.entry.dashboard import Dashboard
from exahpc.entry.dispatch import Dispatch
from exahpc.entry.keys import Keys
from exahpc.entry.library import Library
from exahpc.entry.listen import BACKLOG, Listener, listen
from exahpc.errors import RequestError
from exahpc.wire import link
from exahpc.wire.folder import Folder, door

log = logging.getLogger(__name__)

GRACE_SECONDS = 10
"""Time that running requests have after TERM: on the head, whose next life clients wait for ..."""
NODE_GRACE_SECONDS = 25
"""... and beside an agent: its requests run elsewhere by then. The supervisor waits LAST_CALL (30 s) for it."""
_ACCEPTS = 8  # new connections in one turn of the loop: uvloop takes one for each descriptor that listens
_LAST_BYTES = 0.05  # seconds for the errors of requests that outlast that time
_CHORES_EVERY = 2.0
_KEYS_EVERY = 2.0
_NODE_KEYS_EVERY = 20.0  # hundreds of nodes ask the shared file system


def run(folder: Folder, index: int, beside: str = "") -> None:
    """Serve until SIGTERM or SIGINT. beside: "POOL/TASK" of the agent on whose node it runs, "" on the head."""
    deployment = load(folder.toml, str(folder.path / "deployment.toml"))
    keys = Keys(folder)
    descriptors.take(deployment)
    # uvicorn raises the signal again after an orderly end; this process then ends with code 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    listener = listen(deployment, folder, index, beside)
    node = socket.gethostname() if beside else ""
    try:
        uvloop.run(_serve(deployment, folder, keys, listener, index, node))
    finally:
        listener.close()


async def _serve(
    deployment: Deployment, folder: Folder, keys: Keys, listener: Listener, index: int, node: str
) -> None:
    library, dashboard = Library(deployment, folder, keys), Dashboard(deployment, folder)
    gateway = Gateway(deployment, keys, index, library, dashboard)
    gateway.dispatch = Dispatch(
        deployment,
        link.context(),
        folder.fleet_key(),
        lambda: record.address if (record := folder.head()) else None,
        index=index,
        url=listener.endpoint.url,
        node=node,
        door=lambda agent: door(folder.path, *agent.key),
    )
    server = uvicorn.Server(_config(gateway, listener, NODE_GRACE_SECONDS if node else GRACE_SECONDS))
    chores = asyncio.create_task(_chores(server, keys, _NODE_KEYS_EVERY if node else _KEYS_EVERY))
    gc.freeze()  # what is imported stays: full collections need not look at it while streams wait
    gc.set_threshold(10_000)  # with 700, the ids of long prompts are looked through again and again
    log.info("entry %d serves %s at %s", index, deployment.served_name, listener.endpoint.url)
    try:
        await server.serve(sockets=[listener.sock, *(listener.sock.dup() for _ in range(1, _ACCEPTS))])
    finally:
        chores.cancel()
        gateway.dispatch.abandon_all(RequestError("this server is shutting down", status=503, type="server_error"))
        await asyncio.sleep(_LAST_BYTES)
        gateway.dispatch.close()
    log.info("entry %d has ended", index)


def _config(gateway: Gateway, listener: Listener, grace: int) -> uvicorn.Config:
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
        timeout_graceful_shutdown=grace,
        **tls,
    )


async def _chores(server: uvicorn.Server, keys: Keys, keys_every: float) -> None:
    """Close connections of clients that take too long; notice new and withdrawn API keys."""
    loop = asyncio.get_running_loop()
    look = loop.time() + keys_every
    while True:
        await asyncio.sleep(_CHORES_EVERY)
        try:
            now = loop.time()
            for connection in list(server.server_state.connections):
                if isinstance(connection, Connection):
                    connection.expire(now)
            if now >= look:
                look = now + keys_every
                await asyncio.to_thread(keys.reload)  # a shared file system may take its time
        except Exception:
            log.exception("a chore failed")
