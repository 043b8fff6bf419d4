"""Which way to talk to Slurm: pyslurm where it fits this site's Slurm, the command line everywhere else."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys

from exahpc.errors import SlurmError
from exahpc.slurm.api import SlurmClient
from exahpc.slurm.cli import CommandLine
from exahpc.slurm.features import version

log = logging.getLogger(__name__)

VARIABLE = "EXAHPC_SLURM_CLIENT"
"""Environment variable: "cli" or "pyslurm"; wins over the automatic choice."""
_PROBE_SECONDS = 20.0
_PROBE = "import pyslurm; pyslurm.Jobs.load(); print('pyslurm', pyslurm.__version__)"


def choose(prefer: str | None = None) -> tuple[SlurmClient, str]:
    """The client, and why it is that one, for logs and `status`.

    prefer: "cli", "pyslurm", or None to decide by what works here; default: $EXAHPC_SLURM_CLIENT.
    Raises SlurmError when there is no Slurm here, or pyslurm is asked for and does not work.
    """
    prefer = prefer or os.environ.get(VARIABLE) or None
    if prefer not in (None, "cli", "pyslurm"):
        raise SlurmError(f'{VARIABLE} = {prefer!r}: must be "cli" or "pyslurm"')
    if shutil.which("sbatch") is None:
        raise SlurmError(
            "sbatch is not on PATH here: use a login node, load the site's Slurm module, "
            'or set launcher.kind = "local" to run on this machine'
        )
    if prefer == "cli":
        return CommandLine(), "asked for"
    found, why = probe(sys.executable)
    if found and prefer is None:
        site = version()
        if not fits(found, site):
            found, why = "", f"pyslurm {found} is made for another Slurm than this {site or 'unknown one'}"
    if found:
        from exahpc.slurm.pyslurm_client import PySlurm

        return PySlurm(), why
    if prefer == "pyslurm":
        raise SlurmError(f"pyslurm is asked for, but {why}")
    return CommandLine(), why


def probe(python: str) -> tuple[str, str]:
    """(version of a pyslurm that works here or "", the reason).

    In a child process: importing a pyslurm that does not fit can end the interpreter without an exception.
    """
    if python == sys.executable and importlib.util.find_spec("pyslurm") is None:
        return "", "pyslurm is not installed"
    try:
        done = subprocess.run(
            (python, "-c", _PROBE),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"pyslurm does not answer ({error})"
    words = done.stdout.split()
    if done.returncode == 0 and words[-2:-1] == ["pyslurm"]:
        return words[-1], f"pyslurm {words[-1]} works with this Slurm"
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return "", f"pyslurm does not work here (exit code {done.returncode}: {said})"


def fits(pyslurm: str, slurm: str) -> bool:
    """pyslurm binds one release of Slurm: year and month must be the same ("25.11.2" and "25.11.4")."""
    return bool(slurm) and pyslurm.split(".")[:2] == slurm.split(".")[:2]
