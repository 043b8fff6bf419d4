"""`python -m exahpc.clerk --folder F`: started by slurm/head.sbatch; with --batch, one of its own workers."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import click

from exahpc.clerk.main import Clerk, serve
from exahpc.deployment.parse import load
from exahpc.errors import ExahpcError
from exahpc.wire.folder import Folder
from exahpc.wire.tray import Tray

_LAST_CALL = 15.0
"""Seconds that a worker without a clerk may take for an orderly end."""


@click.command()
@click.option("--folder", "path", required=True, type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--batch", help="Run this batch, as a worker; ends when standard input does.")
def main(path: Path, batch: str | None) -> None:
    """Run the submitted batches of the deployment in FOLDER."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the walltime warning: a batch goes on in the next life
    folder = Folder(path)
    try:
        deployment = load(folder.toml, str(path / "deployment.toml"))
        if batch is None:
            tray = Tray(path)
            serve(Clerk(tray, deployment.head.batches, lambda one: _start(path, one)), tray)
            return
        _end_with_the_clerk()
        from exahpc.clerk.worker import Worker  # the clerk itself needs no HDF5

        code = Worker(folder, deployment, batch).run()
    except ExahpcError as error:
        logging.getLogger(__name__).error("%s", error)
        code = error.exit_code
    sys.exit(code)


def _start(path: Path, batch: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-P", "-m", "exahpc.clerk", "--folder", str(path), "--batch", batch]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=sys.stderr)


def _end_with_the_clerk() -> None:
    def told(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)  # its claim on the output is released on the way

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)

    def watch() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock, held by a thread, is an abort at exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_LAST_CALL)
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
