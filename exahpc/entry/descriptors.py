"""Open files: one a client and a few a link. An entry that runs out of them takes no client, and loses links."""

from __future__ import annotations

import logging
import resource

from exahpc.deployment.spec import Deployment
from exahpc.wire.link import require_descriptors

log = logging.getLogger(__name__)

_MOST = 65536
_A_LINK = 4  # its connection, its two queues' wake-ups and the monitor's
_OWN = 64  # the interpreter, logs, listening, the folder


def wanted(deployment: Deployment) -> int:
    """Open files of one entry while every replica is full, and so is its own line.

    Clients are taken to be spread evenly over the entries; those that only wait (`limits.max_waiting`) are the
    slack for when they are not.
    """
    tasks = sum(pool.tasks for pool in deployment.pool)
    running = sum(pool.replicas * pool.max_sequences for pool in deployment.pool)
    entries = deployment.head.entries + tasks * deployment.head.entries_on_nodes
    return -(-running // entries) + deployment.limits.max_waiting + tasks * _A_LINK + _OWN


def take(deployment: Deployment) -> None:
    """Take what the hard limit gives, and say so when that is too little."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    require_descriptors(most)
    needed = wanted(deployment)
    if most < needed:
        log.warning(
            "only %d open files are allowed here, but clients of full replicas and of a full line need %d: some "
            "will not be let in; ask the site to raise the hard limit (ulimit -Hn), raise head.entries or "
            "head.entries_on_nodes, or lower limits.max_waiting",
            most,
            needed,
        )
