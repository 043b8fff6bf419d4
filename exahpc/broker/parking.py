"""Marks in the folder for the tasks that are wanted: with the local launcher, supervisors wait for them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable

from exahpc.deployment.spec import Deployment
from exahpc.wire.folder import Folder


class Parking:
    """The tasks of the pools that scale. A cluster needs none of this: there the broker submits and cancels."""

    def __init__(self, folder: Folder, deployment: Deployment) -> None:
        self._marks = {
            f"{pool.name}/{task}": folder.wanted_mark(pool.name, task)
            for pool in deployment.pool
            if pool.scaling.least is not None
            for task in range(pool.tasks)
        }
        self._told: dict[str, bool] = {}

    def sync(self, parked: Callable[[str], bool]) -> None:
        """Make the marks say what is so. Raises OSError."""
        for key, mark in self._marks.items():
            wanted = not parked(key)
            if self._told.get(key) == wanted:
                continue
            if wanted:
                mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                mark.touch(mode=0o600)
            else:
                mark.unlink(missing_ok=True)
            self._told[key] = wanted

    def end(self) -> None:
        """No task is started any more."""
        with contextlib.suppress(FileNotFoundError):
            for directory in {mark.parent for mark in self._marks.values()}:
                shutil.rmtree(directory)
