"""Files of shared memory that the ranks of a node have mapped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

_MAPPED = re.compile(r" (/dev/shm/\S+)$", re.MULTILINE)


def mapped(maps: str) -> set[str]:
    """Those of a process that have a name still. maps: its /proc/PID/maps."""
    return set(_MAPPED.findall(maps))


def unlink(names: Iterable[str]) -> None:
    """Those that are ours. The other ranks of the node may be unlinking the same ones."""
    for name in names:
        with suppress(FileNotFoundError):
            if os.stat(name).st_uid == os.getuid():
                os.unlink(name)
