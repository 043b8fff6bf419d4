"""Tells the world about alerts: a webhook, a command. In a thread of its own, bounded; nobody waits for it.

Neither the webhook's URL nor what a command prints is logged: both may hold secrets.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from exahpc.telemetry.alerts import Told

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Messages that wait; more are dropped, with a line in the log."""
SECONDS = 10.0
"""Longest time of one attempt."""
TRIES = 3
_PAUSE = 2.0


class Hooks:
    """deployment: its name, part of each message; webhook: URL or ""; command: program and arguments, or none."""

    def __init__(self, deployment: str, webhook: str, command: Sequence[str], *, pause: float = _PAUSE) -> None:
        self._deployment, self._webhook, self._command = deployment, webhook, list(command)
        self._pause = pause
        self._waiting: queue.Queue[Told] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def tell(self, told: Told) -> None:
        """Returns at once."""
        if not (self._webhook or self._command):
            return
        try:
            self._waiting.put_nowait(told)
        except queue.Full:
            log.error("the alert hooks do not keep up: %s (%s) was not passed on", told.alert, told.state)
            return
        if self._thread is None:  # most deployments never need it
            self._thread = threading.Thread(target=self._work, name="alert-hooks", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            told = self._waiting.get()
            body = msgspec.json.encode({"deployment": self._deployment, **msgspec.structs.asdict(told)})
            for what, go in (("webhook", self._post), ("command", self._run)):
                self._attempt(what, go, body)

    def _attempt(self, what: str, go: object, body: bytes) -> None:
        assert callable(go)
        for turn in range(TRIES):
            problem = go(body)
            if problem is None:
                return
            if turn + 1 < TRIES:
                time.sleep(self._pause * 2**turn)
        log.error("the alert %s failed %d times: %s", what, TRIES, problem)

    def _post(self, body: bytes) -> str | None:
        if not self._webhook:
            return None
        import httpx  # loads long, and only here

        where = urlsplit(self._webhook).hostname
        try:
            headers = {"content-type": "application/json"}
            found = httpx.post(self._webhook, content=body, headers=headers, timeout=SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return f"{type(error).__name__} at {where}"
        return None if found.is_success else f"{where} answers {found.status_code}"

    def _run(self, body: bytes) -> str | None:
        if not self._command:
            return None
        try:
            done = subprocess.run(
                self._command,
                input=body,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"{self._command[0]}: {type(error).__name__}"
        return f"{self._command[0]} ended with code {done.returncode}" if done.returncode else None
