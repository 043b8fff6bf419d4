"""EMULATED: what the programs of this room share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import NoReturn

from exahpc.errors import ExahpcError
from exahpc.telemetry import logs

log = logging.getLogger(__name__)


def run(work: Callable[[], int | None]) -> NoReturn:
    """Do the work and exit with what it returns. Every line of the log says that it is emulated."""
    logs.begin("%(asctime)s EMULATED %(levelname).1s %(name)s: %(message)s")
    try:
        code = work()
    except ExahpcError as error:
        log.error("%s", error)
        code = error.exit_code
    sys.exit(code or 0)
