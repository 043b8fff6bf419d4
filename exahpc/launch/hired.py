"""A deployment that is brought up for one batch, and taken down when that is done.

Its name follows from the output, so the same command finds what an earlier run of it has left: a deployment that
is up is gone on with, one that has ended (its walltime, a lost head) is brought up anew.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from exahpc.batch.run import Question
from exahpc.deployment import render
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, ExahpcError, LinkError
from exahpc.launch import place, prepare, ready, start, stop
from exahpc.launch.asking import Watching
from exahpc.slurm.api import SlurmClient
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

LIVES_IN_VAIN = 3
"""Deployments that may end one after another without that a single row was done."""
_DRAIN_SECONDS = 5.0


def name_for(output: Path) -> str:
    """Of the deployment that is brought up for this output: the same for the same path."""
    path = Path(output.parent.resolve(), output.name)
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-_")[:32]
    mark = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"batch-{stem}-{mark}" if stem else f"batch-{mark}"


class Hired:
    """One batch's own deployment. client: None with the local launcher; told: gets lines for the user.

    Times come from `clock` and `sleep`, so that a test need not wait.
    """

    def __init__(
        self,
        deployment: Deployment,
        client: SlurmClient | None,
        told: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.deployment, self._client, self._told = deployment, client, told
        self._clock, self._sleep = clock, sleep
        self.folder = Folder(place.home() / deployment.name)
        self._watching = Watching(self.folder, clock, told)
        self._vain = 0
        self._done = -1

    @property
    def text(self) -> str:
        """What is waited for, "" while rows run."""
        return self._watching.text

    def bring_up(self) -> None:
        """Start it, or go on with the one that is up. Comes back at once.

        Raises DeploymentError when another deployment of this name is up, SlurmError when Slurm refuses.
        """
        with start.alone(self.folder.path):
            if self._lives():
                self._told(f"going on with deployment {self.deployment.name}, which is up")
            else:
                prepare.create(self.folder.path, self.deployment)
                start.begin(self.folder, self.deployment, self._client, told=self._told)
        self._ended = start.ended(self.folder, self.deployment, self._client, self._clock)

    def _lives(self) -> bool:
        if not (self.folder.path / "deployment.toml").exists():
            return False
        reply = ready.look(self.folder, 3.0)
        if reply is not None and reply.draining:
            self._told("an earlier run of this command is taking its deployment down: waiting for that")
            self._finish(60.0)
            return False
        if reply is None and not stop.left(self.folder, self._client):
            return False
        if self.folder.toml != render.toml(self.deployment):
            name = self.deployment.name
            raise DeploymentError(
                f"deployment {name} of an earlier run is up, and was started with other options: give the same "
                f"ones, or end it first with `exahpc down {name}`"
            )
        return True

    def ask(self, question: Question) -> m.BatchState | m.Refused:
        """For `drive`. A deployment that has ended is brought up again.

        Raises LinkError while nobody answers, ExahpcError when that leads nowhere.
        """
        try:
            answer = self._watching.ask(question)
        except LinkError:
            if reason := self._ended():
                self._again(reason)
            raise
        if isinstance(answer, m.BatchState):
            done = answer.status.ok + answer.status.failed
            if self._done < done:
                self._vain = 0
            self._done = max(self._done, done)
        return answer

    def _again(self, reason: str) -> None:
        self._vain += 1
        if self._vain >= LIVES_IN_VAIN:
            raise ExahpcError(f"{reason}; {self._vain} times in a row, and no row was done meanwhile")
        self._told(f"{reason}; it is started again")
        self._finish(0.0)
        self.bring_up()

    def take_down(self) -> None:
        """End it, whatever state it is in, and also when it is down. Raises ExahpcError with what is left."""
        if not (self.folder.path / "deployment.toml").exists() or not stop.left(self.folder, self._client):
            return
        drained = stop.drain(self.folder, _DRAIN_SECONDS) is None
        self._finish(_DRAIN_SECONDS + stop.GRACE if drained else 0.0)
        self._told(f"{self.deployment.name} is down")

    def _finish(self, seconds: float) -> None:
        stop.finish(self.folder, self._client, seconds=seconds, clock=self._clock, sleep=self._sleep)

    def purge(self) -> None:
        """Remove its folder, when nobody will want to read its logs."""
        shutil.rmtree(self.folder.path, ignore_errors=True)
