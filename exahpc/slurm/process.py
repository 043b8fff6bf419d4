"""Runs Slurm's commands: a clean environment, a time limit, plain errors."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exahpc.errors import SlurmError
from exahpc.slurm.api import Unanswered

log = logging.getLogger(__name__)

TIMEOUT = 60.0
"""Seconds for one command. Slurm's own patience (MessageTimeout) is 10 s by default, with retries inside."""

_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
_PASSING = (
    "socket timed out",
    "unable to contact slurm controller",
    "zero bytes were transmitted",
    "connection refused",
    "connection timed out",
    "connection reset",
    "transport endpoint is not connected",
    "slurm backup controller in standby mode",
    "slurm controller is in standby mode",
    "resource temporarily unavailable",
)


@dataclass(frozen=True)
class Answer:
    """What a command said. `ok`: it ended with 0."""

    argv: tuple[str, ...]
    code: int
    out: str
    error: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def passing(self) -> bool:
        """A controller that is busy or just restarting: asking again may help."""
        return not self.ok and any(words in self.error.lower() for words in _PASSING)

    def says(self, *words: str) -> bool:
        """Whether the error output holds one of these, in any case."""
        return any(word in self.error.lower() for word in words)

    def failure(self, what: str) -> SlurmError:
        """The error for a user: what was wanted, and Slurm's own words."""
        said = " ".join(self.error.split()) or f"exit code {self.code} without a word"
        return SlurmError(f"{what}: {self.argv[0]} says: {said}")


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours without Slurm's variables: SQUEUE_FORMAT and the like change output, SBATCH_* add flags, and those of
    the job we may be in would be taken for wishes of the next one."""
    base = os.environ if base is None else base
    kept = {
        name: value
        for name, value in base.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SRUN_"))
    }
    # BITSTR_LEN: pending tasks of an array are never abbreviated; TIME_FORMAT: Unix seconds
    return {**kept, "LC_ALL": "C", "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}


def call(argv: Sequence[str], *, timeout: float = TIMEOUT) -> Answer:
    """Run one command. Raises SlurmError when it is not there, Unanswered when it does not answer in time."""
    try:
        done = subprocess.run(
            argv,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            umask=0o077,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{argv[0]} is not on PATH here: load the site's Slurm module, or use a login node"
        ) from None
    except subprocess.TimeoutExpired as error:
        raise Unanswered(f"{argv[0]} did not answer: {error}") from None
    except OSError as error:
        raise SlurmError(f"{argv[0]} cannot be run: {error}") from None
    return Answer(tuple(argv), done.returncode, done.stdout, done.stderr)


def ask(argv: Sequence[str], *, pause: float = 1.0) -> Answer:
    """`call` for commands that may safely run twice: asked once more when the controller was just busy."""
    answer = call(argv)
    if answer.passing:
        log.info("%s: %s; asking once more", argv[0], answer.error.strip())
        time.sleep(pause)
        answer = call(argv)
    return answer
